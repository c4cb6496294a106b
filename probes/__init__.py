"""Checkpoints against signatures."""
