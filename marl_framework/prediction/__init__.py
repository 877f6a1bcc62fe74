"""Training of the search planner's map predictor."""
