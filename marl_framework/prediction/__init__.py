"""Trains the map predictor of the search planner."""
