"""Terrains (ground truths); one file per family."""
