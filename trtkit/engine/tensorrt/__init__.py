"""TensorRT-LLM's engine flow: ``trtllm-build`` as a child, and what it built compared with what was planned."""
