"""Names that more than one room, or the outside world, relies on: files, headers, metrics, models."""

from __future__ import annotations

# Files
CHECKPOINT_CONFIG = "config.json"
"""TensorRT-LLM's name for the description beside checkpoint and engine shards."""
MANIFEST = "trtkit-manifest.json"


def rank_file(rank: int | str) -> str:
    """Return the file name of one rank's weights in a TensorRT-LLM checkpoint (``*`` for the pattern of all)."""
    return f"rank{rank}.safetensors"


# Triton models of the in-flight-batching repository
ENGINE_MODEL = "tensorrt_llm"
DRAFT_MODEL = "tensorrt_llm_draft"
"""The engine that drafts, where there are two."""
PREPROCESSING_MODEL = "preprocessing"
POSTPROCESSING_MODEL = "postprocessing"
ENSEMBLE_MODEL = "ensemble"
BLS_MODEL = "tensorrt_llm_bls"
TEXT_MODELS = (ENSEMBLE_MODEL, BLS_MODEL)
"""Models that take text in and give text out; the proxy counts their prompts with the tokenizer."""

# Request metadata understood by the proxy (lower case, as gRPC requires)
CLASS_HEADER = "x-trtkit-class"
TENANT_HEADER = "x-trtkit-tenant"
SESSION_HEADER = "x-trtkit-session"
"""Requests that share the beginning of their prompts, such as the turns of a conversation."""
TRITON_GRPC_ERROR_HEADER = "triton_grpc_error"

SPELL_CODE_PARAMETER = "trtkit_spell_error_code"
"""Request parameter that asks trtkit's models to spell an error's code before its text."""

# Response metadata sent by the proxy
REASON_TRAILER = "trtkit-reason"
CLASS_TRAILER = "trtkit-class"
DEADLINE_TRAILER = "trtkit-deadline-ms"
QUEUE_TRAILER = "trtkit-queue-ms"
CLIPPED_TRAILER = "trtkit-max-tokens-clipped"
REQUEST_ID_TRAILER = "trtkit-request-id"
"""The proxy's own id of a request, for ``trtkit explain``."""
CONSTRAINT_TRAILER = "trtkit-constraint"
PREDICTED_TRAILER = "trtkit-predicted-ttft-ms"
RELEGATED_TRAILER = "trtkit-relegated"
BACKEND_TRAILER = "trtkit-backend"
"""Number of the engine that a request was sent to, from 0 in the order in which the proxy was told of them."""
PUSHBACK_TRAILER = "grpc-retry-pushback-ms"
"""gRFC A6: signed milliseconds to wait before a retry; negative means do not retry."""

METRIC_PREFIX = "trtkit_proxy_"
