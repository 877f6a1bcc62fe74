"""Flights in which each UAV decides from what it has read and heard."""
