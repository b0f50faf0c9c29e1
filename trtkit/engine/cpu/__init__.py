"""The CPU back end: a TensorRT-LLM checkpoint as an OpenVINO model, run by OpenVINO GenAI's in-flight batching."""
