"""Ground truths: one file a family of terrains."""
