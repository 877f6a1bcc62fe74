"""Around the algorithm: trainer, resuming, seeds and ranks, logging."""
