"""Actors and critics, and how a params file chooses one."""
