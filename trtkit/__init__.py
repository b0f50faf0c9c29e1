"""trtkit: one contract from a Hugging Face checkpoint to SLO-keeping LLM streams from Triton."""

__version__ = "0.1.0"
