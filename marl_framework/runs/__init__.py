"""Files of runs: run folders, checkpoints and archived runs."""
