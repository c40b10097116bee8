"""Checkpoints of a supervised training."""
