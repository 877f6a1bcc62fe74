"""Algorithms for teams: their protocol, the built-in ones and shared parts."""
