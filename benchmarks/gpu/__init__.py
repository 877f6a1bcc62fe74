"""What one run on a machine with a GPU tells: `python -m benchmarks.gpu`."""
