"""A request's sampling fields as OpenVINO GenAI's pipeline understands them."""

from __future__ import annotations

from typing import Any

from trtkit.engine.inflight.request import GenerationRequest


def pipeline_config(request: GenerationRequest, generated: int = 0) -> Any:
    """Return the ``GenerationConfig`` for what is left of a request after ``generated`` tokens."""
    import openvino_genai

    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = request.max_tokens - generated
    # The pipeline wants an end token even when it is told to ignore it.
    config.set_eos_token_id(request.end_id if request.stops_at_end_id else 0)
    config.ignore_eos = not request.stops_at_end_id
    if request.stops_at_end_id:
        config.min_new_tokens = max(0, (request.min_tokens or 0) - generated)
    config.logprobs = 1 if request.return_log_probs else 0
    for name in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
        if (value := getattr(request, name)) is not None:
            setattr(config, name, value)
    config.do_sample = not request.greedy
    if not request.greedy:
        # A draw must not repeat the random numbers of the part before it.
        config.rng_seed = ((request.seed or 0) + generated) % 2**64
        config.temperature = 1.0 if request.temperature is None else request.temperature
        config.top_p = request.top_p or 1.0
        if request.top_k:
            config.top_k = request.top_k
    return config
