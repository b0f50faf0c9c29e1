"""Which tensor of a text request goes where, as tables.

This file is also copied beside the BLS model as ``trtkit_wiring.py``: it imports nothing.
"""

from __future__ import annotations

TO_PREPROCESSING = {
    "QUERY": "text_input",
    "DECODER_QUERY": "decoder_text_input",
    "REQUEST_OUTPUT_LEN": "max_tokens",
    "BAD_WORDS_DICT": "bad_words",
    "STOP_WORDS_DICT": "stop_words",
    "EMBEDDING_BIAS_WORDS": "embedding_bias_words",
    "EMBEDDING_BIAS_WEIGHTS": "embedding_bias_weights",
    "END_ID": "end_id",
    "PAD_ID": "pad_id",
    "PROMPT_TABLE_EXTRA_ID": "prompt_table_extra_id",
}
"""Input of preprocessing to input of ensemble and BLS."""

FROM_PREPROCESSING = {
    "input_ids": "INPUT_ID",
    "input_lengths": "REQUEST_INPUT_LEN",
    "decoder_input_ids": "DECODER_INPUT_ID",
    "decoder_input_lengths": "REQUEST_DECODER_INPUT_LEN",
    "request_output_len": "REQUEST_OUTPUT_LEN",
    "stop_words_list": "STOP_WORDS_IDS",
    "bad_words_list": "BAD_WORDS_IDS",
    "embedding_bias": "EMBEDDING_BIAS",
    "end_id": "OUT_END_ID",
    "pad_id": "OUT_PAD_ID",
    "prompt_table_extra_ids": "OUT_PROMPT_TABLE_EXTRA_IDS",
}
"""Input of the engine to output of preprocessing."""

TO_ENGINE = {
    "runtime_top_k": "top_k",
    "runtime_top_p": "top_p",
    "len_penalty": "length_penalty",
    "streaming": "stream",
} | {
    name: name
    for name in [
        "temperature",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "min_tokens",
        "seed",
        "beam_width",
        "num_return_sequences",
        "return_log_probs",
        "return_context_logits",
        "return_generation_logits",
        "return_perf_metrics",
        "exclude_input_in_output",
        "prompt_embedding_table",
        "prompt_vocab_size",
        "lora_task_id",
        "lora_weights",
        "lora_config",
        "guided_decoding_guide_type",
        "guided_decoding_guide",
    ]
}
"""Input of the engine to input of ensemble and BLS."""

RESULTS = [
    "cum_log_probs",
    "output_log_probs",
    "context_logits",
    "generation_logits",
    "batch_index",
    "sequence_index",
    "kv_cache_alloc_new_blocks",
    "kv_cache_reused_blocks",
    "kv_cache_alloc_total_blocks",
    "arrival_time_ns",
    "first_scheduled_time_ns",
    "first_token_time_ns",
    "last_token_time_ns",
    "acceptance_rate",
    "total_accepted_draft_tokens",
    "total_draft_tokens",
]
"""What the engine says about a sequence besides its tokens: same name in engine, ensemble and BLS."""
