"""Training: trainers, resuming, random streams, ranks and logging."""
