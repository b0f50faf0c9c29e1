"""What becomes of weights that the source has quantized already: the forms in which TensorRT-LLM takes them."""
