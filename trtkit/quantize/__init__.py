"""Quantization that needs activations. INT8 weight-only needs none: see ``trtkit.checkpoint.weight_only``."""
