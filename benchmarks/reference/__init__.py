"""Comparison with plain implementations of the mission and with the published code."""
