"""Files of runs: run folders, checkpoints and the history of earlier runs."""
