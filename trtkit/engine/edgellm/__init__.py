"""TensorRT Edge-LLM: NVIDIA's exporter to ONNX, run in an environment of its own."""
