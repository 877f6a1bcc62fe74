"""Inputs of the networks: maps built from the state of a mission."""
