"""Typed parameters: the model, loading and overrides, and errors that name the key."""
