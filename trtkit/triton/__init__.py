"""Triton: model repositories as data, the Python models they hold, and a real tritonserver to run them."""
