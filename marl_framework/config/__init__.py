"""Typed configuration: model, loading, overrides, and errors that name the key."""
