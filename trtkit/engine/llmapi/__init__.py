"""TensorRT-LLM's Python API: a Hugging Face folder and the arguments of ``LLM``."""
