"""Python models that are copied into model repositories; they run inside Triton's Python stub."""
