"""The paged KV cache as OpenVINO's CPU plugin lays it out."""

from __future__ import annotations

BLOCK_TOKENS = 32
"""Tokens per block: fixed by the CPU plugin's paged attention."""
