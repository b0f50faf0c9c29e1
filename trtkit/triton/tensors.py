"""The tensor contract of TensorRT-LLM's in-flight-batching repository, release 25.05, as tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

BOOL, FP16, FP32, STRING = "BOOL", "FP16", "FP32", "STRING"
INT32, INT64, UINT8, UINT64 = "INT32", "INT64", "UINT8", "UINT64"


@dataclass(frozen=True)
class Tensor:
    """One input or output: dims without the batch dimension, data type as protobuf names it without TYPE_."""

    name: str
    dtype: str
    dims: tuple[int, ...] = (1,)
    optional: bool = False
    scalar: bool = False
    """The client sends [1], the model sees an empty shape."""
    ragged: bool = False


def _optional(
    dtype: str, names: str, *dims: int, scalar: bool = False, ragged: bool = False
) -> Iterator[Tensor]:
    for name in names.split():
        yield Tensor(name, dtype, dims or (1,), optional=True, scalar=scalar, ragged=ragged)


def _outputs(dtype: str, names: str, *dims: int) -> Iterator[Tensor]:
    for name in names.split():
        yield Tensor(name, dtype, dims or (1,))


PREPROCESSING_INPUTS = (
    Tensor("QUERY", STRING),
    *_optional(STRING, "DECODER_QUERY"),
    *_optional(UINT8, "IMAGE_BYTES", -1, -1, -1, -1),
    *_optional(STRING, "IMAGE_URL"),
    *_optional(UINT8, "VIDEO_BYTES", -1, -1, -1, -1),
    Tensor("REQUEST_OUTPUT_LEN", INT32),
    *_optional(STRING, "BAD_WORDS_DICT STOP_WORDS_DICT EMBEDDING_BIAS_WORDS", -1),
    *_optional(FP32, "EMBEDDING_BIAS_WEIGHTS", -1),
    *_optional(INT32, "END_ID PAD_ID"),
    *_optional(UINT64, "PROMPT_TABLE_EXTRA_ID"),
)

PREPROCESSING_OUTPUTS = (
    *_outputs(INT32, "INPUT_ID", -1),
    *_outputs(INT32, "REQUEST_INPUT_LEN"),
    *_outputs(INT32, "DECODER_INPUT_ID", -1),
    *_outputs(INT32, "REQUEST_DECODER_INPUT_LEN"),
    *_outputs(INT32, "BAD_WORDS_IDS STOP_WORDS_IDS", 2, -1),
    *_outputs(FP32, "EMBEDDING_BIAS", -1),
    *_outputs(INT32, "REQUEST_OUTPUT_LEN", -1),
    *_outputs(INT32, "OUT_END_ID OUT_PAD_ID"),
    *_outputs(UINT64, "OUT_PROMPT_TABLE_EXTRA_IDS", -1),
    *_outputs(FP16, "PIXEL_VALUES", -1, -1, -1, -1),
    *_outputs(INT64, "ASPECT_RATIO_IDS", -1),
    *_outputs(INT64, "ASPECT_RATIO_MASK", -1, -1),
    *_outputs(INT64, "CROSS_ATTENTION_MASK", -1, -1, -1),
    *_outputs(INT64, "IMAGE_SIZES", 2),
    *_outputs(BOOL, "IS_VIDEO_INPUT"),
    *_outputs(INT64, "ATTENTION_MASK", -1),
    *_outputs(INT64, "IMAGE_GRID_THW", 3),
    *_outputs(INT32, "VISION_INPUT_ID", -1),
)

ENGINE_INPUTS = (
    *_optional(INT32, "input_ids", -1, ragged=True),
    *_optional(FP16, "encoder_input_features", -1, -1, ragged=True),
    *_optional(INT32, "encoder_output_lengths", scalar=True),
    Tensor("input_lengths", INT32, scalar=True),
    Tensor("request_output_len", INT32, scalar=True),
    *_optional(INT32, "num_return_sequences", scalar=True),
    *_optional(INT32, "draft_input_ids decoder_input_ids", -1, ragged=True),
    *_optional(INT32, "decoder_input_lengths", scalar=True),
    *_optional(FP32, "draft_logits", -1, -1, ragged=True),
    *_optional(FP32, "draft_acceptance_threshold", scalar=True),
    *_optional(INT32, "end_id pad_id", scalar=True),
    *_optional(INT32, "stop_words_list bad_words_list", 2, -1, ragged=True),
    *_optional(FP32, "embedding_bias", -1, ragged=True),
    *_optional(INT32, "beam_width", scalar=True),
    *_optional(FP32, "temperature", scalar=True),
    *_optional(INT32, "runtime_top_k", scalar=True),
    *_optional(FP32, "runtime_top_p runtime_top_p_min runtime_top_p_decay", scalar=True),
    *_optional(INT32, "runtime_top_p_reset_ids", scalar=True),
    *_optional(FP32, "len_penalty", scalar=True),
    *_optional(BOOL, "early_stopping", scalar=True),
    *_optional(FP32, "repetition_penalty", scalar=True),
    *_optional(INT32, "min_tokens", scalar=True),
    *_optional(FP32, "beam_search_diversity_rate presence_penalty frequency_penalty", scalar=True),
    *_optional(UINT64, "seed", scalar=True),
    *_optional(BOOL, "return_log_probs return_context_logits return_generation_logits", scalar=True),
    *_optional(BOOL, "return_perf_metrics exclude_input_in_output stop streaming", scalar=True),
    *_optional(FP16, "prompt_embedding_table", -1, -1, ragged=True),
    *_optional(UINT64, "prompt_table_extra_ids", -1, ragged=True),
    *_optional(INT32, "prompt_vocab_size", scalar=True),
    *_optional(BOOL, "cross_attention_mask", -1, -1, ragged=True),
    *_optional(FP32, "mrope_rotary_cos_sin", -1),
    *_optional(INT64, "mrope_position_deltas"),
    *_optional(UINT64, "lora_task_id", scalar=True),
    *_optional(FP16, "lora_weights", -1, -1, ragged=True),
    *_optional(INT32, "lora_config", -1, 3, ragged=True),
    *_optional(UINT8, "context_phase_params", -1, ragged=True),
    *_optional(BOOL, "skip_cross_attn_blocks", ragged=True),
    *_optional(
        INT32,
        "retention_token_range_starts retention_token_range_ends"
        " retention_token_range_priorities retention_token_range_durations_ms",
        -1,
        ragged=True,
    ),
    *_optional(INT32, "retention_decode_priority retention_decode_duration_ms", ragged=True),
    *_optional(STRING, "guided_decoding_guide_type guided_decoding_guide", ragged=True),
    *_optional(
        INT32, "lookahead_window_size lookahead_ngram_size lookahead_verification_set_size", ragged=True
    ),
)

_RESULTS = (
    *_outputs(FP32, "cum_log_probs", -1),
    *_outputs(FP32, "output_log_probs", -1, -1),
    *_outputs(FP32, "context_logits", -1, -1),
    *_outputs(FP32, "generation_logits", -1, -1, -1),
    *_outputs(INT32, "batch_index sequence_index"),
    *_outputs(INT32, "kv_cache_alloc_new_blocks kv_cache_reused_blocks kv_cache_alloc_total_blocks"),
    *_outputs(INT64, "arrival_time_ns first_scheduled_time_ns first_token_time_ns last_token_time_ns"),
    *_outputs(FP32, "acceptance_rate"),
    *_outputs(INT32, "total_accepted_draft_tokens total_draft_tokens"),
)
"""What the engine says about a sequence besides its tokens; ensemble and BLS pass it on under the same names."""

ENGINE_OUTPUTS = (
    *_outputs(INT32, "output_ids", -1, -1),
    *_outputs(INT32, "sequence_length", -1),
    *_RESULTS,
    *_outputs(UINT8, "context_phase_params", -1),
)

LOGITS = frozenset(["draft_logits", "context_logits", "generation_logits"])
"""Tensors of the engine's own data type for logits."""

CONTEXT_OUTPUT = Tensor("context_ids", INT32, (-1, -1))
"""Beyond release 25.05, CPU only: the tokens just before a streamed chunk, for a stateless postprocessing."""
CONTEXT_INPUT = Tensor("CONTEXT_IDS", INT32, (-1, -1), optional=True)

POSTPROCESSING_INPUTS = (
    Tensor("TOKENS_BATCH", INT32, (-1, -1)),
    Tensor("SEQUENCE_LENGTH", INT32, (-1,)),
    CONTEXT_INPUT,
)
POSTPROCESSING_OUTPUTS = (Tensor("OUTPUT", STRING, (-1,)),)

_TEXT_INPUTS = (
    Tensor("text_input", STRING),
    *_optional(STRING, "decoder_text_input"),
    Tensor("max_tokens", INT32),
    *_optional(INT32, "num_return_sequences"),
    *_optional(STRING, "bad_words stop_words", -1),
    *_optional(BOOL, "exclude_input_in_output"),
    *_optional(INT32, "end_id pad_id top_k"),
    *_optional(FP32, "top_p temperature length_penalty repetition_penalty"),
    *_optional(INT32, "min_tokens"),
    *_optional(FP32, "presence_penalty frequency_penalty"),
    *_optional(UINT64, "seed"),
    *_optional(BOOL, "return_log_probs return_context_logits return_generation_logits return_perf_metrics"),
    *_optional(INT32, "beam_width"),
    *_optional(BOOL, "stream"),
    *_optional(FP16, "prompt_embedding_table", -1, -1),
    *_optional(UINT64, "prompt_table_extra_id"),
    *_optional(INT32, "prompt_vocab_size"),
    *_optional(STRING, "embedding_bias_words", -1),
    *_optional(FP32, "embedding_bias_weights", -1),
    *_optional(UINT64, "lora_task_id"),
    *_optional(FP16, "lora_weights", -1, -1, ragged=True),
    *_optional(INT32, "lora_config", -1, 3, ragged=True),
)
_GUIDED = tuple(_optional(STRING, "guided_decoding_guide_type guided_decoding_guide"))

ENSEMBLE_INPUTS = (*_TEXT_INPUTS, *(replace(tensor, ragged=True) for tensor in _GUIDED))

_BLS_SCALARS = frozenset(
    [
        "return_log_probs",
        "return_context_logits",
        "return_generation_logits",
        "return_perf_metrics",
        "num_return_sequences",
        "lora_task_id",
    ]
)
BLS_INPUTS = (
    *(replace(tensor, scalar=tensor.name in _BLS_SCALARS) for tensor in _TEXT_INPUTS),
    *_optional(FP16, "image_input", -1, 3, -1, -1),
    *_optional(UINT8, "image_bytes_input", -1, -1, -1, -1),
    *_optional(STRING, "image_url_input"),
    *_optional(UINT8, "video_bytes_input", -1, -1, -1, -1),
    *_optional(INT32, "num_draft_tokens"),
    *_optional(BOOL, "use_draft_logits", scalar=True),
    *_GUIDED,
)

TEXT_OUTPUTS = (Tensor("text_output", STRING, (-1,)), *_RESULTS)
"""Outputs of ensemble and BLS."""
