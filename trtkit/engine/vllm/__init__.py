"""vLLM: a Hugging Face folder and the arguments of its engine."""
