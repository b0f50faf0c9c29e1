"""Checkpoints: Hugging Face folders and GGUF files in, TensorRT-LLM checkpoints out."""
