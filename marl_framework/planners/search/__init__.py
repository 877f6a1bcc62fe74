"""Planners that search over all moves left: what to expect of the map, and how to search on it."""
