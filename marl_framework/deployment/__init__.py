"""Writes the files of a flight in the field: maps, tracks and missions of autopilots."""
