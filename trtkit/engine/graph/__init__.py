"""A TensorRT-LLM checkpoint as one ONNX graph with a KV cache of slots or of blocks."""
