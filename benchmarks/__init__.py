"""Measurements of the library, each answering one question and runnable as a module."""
