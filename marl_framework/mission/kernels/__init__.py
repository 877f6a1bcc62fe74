"""Compiled loops of a step, each with its twin: PyTorch in `mission`, numpy for random words."""
