"""Trains one team from several teachers, and teams to become teachers."""
