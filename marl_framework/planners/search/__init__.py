"""Planners that search over all moves left, on the true or a predicted map."""
