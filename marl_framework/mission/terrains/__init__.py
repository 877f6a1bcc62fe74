"""Ground truths: a file for each family of terrains."""
