"""Actors, critics and the map predictor."""
