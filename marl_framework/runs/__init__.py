"""What lies on disk: run folders, checkpoints, the history of runs."""
