"""TensorRT-LLM's Python API inside of Triton."""
