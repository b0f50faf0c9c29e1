"""From TensorRT-LLM's tensors to the engine's requests, one per batch row."""

from trtkit_io import Refusal, array, refuse_above, refuse_inputs, required
from trtkit_text import decode_word_list

from trtkit.engine.inflight.request import GenerationRequest

UNSUPPORTED = [
    "encoder_input_features",
    "encoder_output_lengths",
    "draft_input_ids",
    "decoder_input_ids",
    "decoder_input_lengths",
    "draft_logits",
    "draft_acceptance_threshold",
    "embedding_bias",
    "runtime_top_p_min",
    "runtime_top_p_decay",
    "runtime_top_p_reset_ids",
    "return_context_logits",
    "return_generation_logits",
    "return_perf_metrics",
    "prompt_embedding_table",
    "prompt_table_extra_ids",
    "cross_attention_mask",
    "mrope_rotary_cos_sin",
    "mrope_position_deltas",
    "lora_task_id",
    "lora_weights",
    "lora_config",
    "context_phase_params",
    "skip_cross_attn_blocks",
    "guided_decoding_guide_type",
    "guided_decoding_guide",
    "lookahead_window_size",
    "lookahead_ngram_size",
    "lookahead_verification_set_size",
]
"""Inputs that would change the answer. Hints (retention_*, beam-search knobs at one beam) are ignored."""

OPTIONS = {
    # engine's field: (tensor, type)
    "end_id": ("end_id", int),
    "pad_id": ("pad_id", int),
    "temperature": ("temperature", float),
    "top_k": ("runtime_top_k", int),
    "top_p": ("runtime_top_p", float),
    "repetition_penalty": ("repetition_penalty", float),
    "presence_penalty": ("presence_penalty", float),
    "frequency_penalty": ("frequency_penalty", float),
    "min_tokens": ("min_tokens", int),
    "seed": ("seed", int),
    "streaming": ("streaming", bool),
    "return_log_probs": ("return_log_probs", bool),
}
WORD_LISTS = {"stop_words": "stop_words_list", "bad_words": "bad_words_list"}


def flag(request, name, *, default=False):
    """Return a BOOL input of the first row."""
    values = array(request, name)
    return default if values is None else bool(values.reshape(-1)[0])


def check_supported(request):
    """Raise Refusal for what no engine of trtkit can honour."""
    refuse_inputs(request, UNSUPPORTED)
    refuse_above(request, {"beam_width": 1, "num_return_sequences": 1})


def generation_requests(request, number):
    """Return one engine request per batch row; raises Refusal."""
    ids = required(request, "input_ids")
    lengths = required(request, "input_lengths").reshape(-1)
    max_tokens = required(request, "request_output_len").reshape(-1)
    if not ids.size:
        raise Refusal("the prompt is empty: it has no tokens")
    if lengths.min() < 1 or lengths.max() > ids.shape[1]:
        raise Refusal(f"input_lengths must be between 1 and {ids.shape[1]}, got {lengths.tolist()}")
    if max_tokens.min() < 1:
        raise Refusal(f"request_output_len must be above 0, got {int(max_tokens.min())}")
    return [
        GenerationRequest(
            request_id=f"{number}.{row}:{request.request_id()}",
            input_ids=ids[row, : lengths[row]].tolist(),
            max_tokens=int(max_tokens[row]),
            **_options(request, row),
            **_word_lists(request, row),
        )
        for row in range(len(lengths))
    ]


def _options(request, row):
    given = {field: (array(request, name), kind) for field, (name, kind) in OPTIONS.items()}
    options = {"streaming": False} | {
        field: kind(values.reshape(-1)[row]) for field, (values, kind) in given.items() if values is not None
    }
    # TensorRT-LLM takes 0 (and a negative top_p) for "not set".
    unset = {"top_k": options.get("top_k") == 0, "top_p": options.get("top_p", 1) <= 0}
    return {key: value for key, value in options.items() if not unset.get(key, False)}


def _word_lists(request, row):
    given = {field: array(request, name) for field, name in WORD_LISTS.items()}
    try:
        return {
            field: tuple(map(tuple, decode_word_list(rows[row])))
            for field, rows in given.items()
            if rows is not None
        }
    except ValueError as error:
        raise Refusal(str(error)) from None
