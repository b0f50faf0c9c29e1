"""Calibration: run a model on sample texts, one decoder layer in memory at a time, and keep what quantization needs."""

from __future__ import annotations
