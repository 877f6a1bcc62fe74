"""Distillation: train one team from several teachers, and train teams as teachers."""
