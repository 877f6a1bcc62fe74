"""Evaluation: fly planners over fixed missions, measure, report and draw."""
