"""Exports a trained team to one file that runs without this library."""
