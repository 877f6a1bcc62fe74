"""Around the algorithm: trainer, checkpoints, logging."""
