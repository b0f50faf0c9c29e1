"""Quantized checkpoints from plain weights and recorded activation ranges: one file per algorithm."""
