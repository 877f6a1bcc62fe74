"""Planners that search over all remaining moves, on the true map or a predicted one."""
