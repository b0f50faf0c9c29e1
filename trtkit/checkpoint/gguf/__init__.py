"""GGUF files, llama.cpp's format: read, put back in order, and written as Hugging Face folders."""
