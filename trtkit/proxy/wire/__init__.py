"""Triton's messages: what a request asks for, what a response says, and whether they fit the model."""
