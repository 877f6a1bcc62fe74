"""Puts a trained team into one file that needs no library."""
