"""Keys of ``config.json`` that mean the same for every decoder."""

from __future__ import annotations

from typing import Any

IGNORABLE = frozenset({
    # Provenance and bookkeeping of transformers
    "_attn_implementation", "_attn_implementation_autoset", "_name_or_path", "architectures",
    "chunk_size_feed_forward", "finetuning_task", "id2label", "is_decoder", "is_llama_config", "label2id",
    "model_type", "name_or_path", "problem_type", "prefix", "return_dict", "return_dict_in_generate",
    "task_specific_params", "tokenizer_class", "torchscript", "transformers.js_config",
    "transformers_version", "unsloth_fixed", "unsloth_version", "use_cache", "output_attentions",
    "output_hidden_states", "tf_legacy_loss", "use_bfloat16", "vocab_file", "max_sequence_length",
    # Training only
    "attention_dropout", "attn_pdrop", "dropout", "embd_pdrop", "hidden_dropout", "initializer_range",
    "resid_pdrop", "gradient_checkpointing", "rope_interleaved", "use_flash_attention",
    "_flash_attn_2_enabled",
    # Slices the same matrix products
    "pretraining_tp",
    # Defaults of sampling: requests and generation_config.json name them
    "bad_words_ids", "begin_suppress_tokens", "decoder_start_token_id", "diversity_penalty", "do_sample",
    "early_stopping", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty",
    "forced_bos_token_id", "forced_eos_token_id", "length_penalty", "max_length", "min_length",
    "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences", "output_scores",
    "remove_invalid_values", "repetition_penalty", "sep_token_id", "suppress_tokens", "temperature",
    "top_k", "top_p", "typical_p",
    # Encoder-decoder leftovers of the base class
    "add_cross_attention", "cross_attention_hidden_size", "pruned_heads", "tie_encoder_decoder",
    # Has no effect without sliding_window, which is read
    "max_window_layers", "use_sliding_window",
})  # fmt: skip

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "alibi": (False,),
    "attention_chunk_size": (0,),
    "attention_multiplier": (1,),
    "attn_logit_softcapping": (),
    "attn_soft_cap": (),
    "clip_qkv": (),
    "embedding_multiplier": (1,),
    "emb_scale": (1,),
    "final_logit_softcapping": (),
    "is_encoder_decoder": (False,),
    "layernorm_learnable_scale": (True,),
    "lm_head_bias": (False,),
    "logit_scale": (1,),
    "logits_scaling": (1,),
    "no_rope_layer_interval": (0,),
    "no_rope_layers": ([],),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "partial_rotary_factor": (1,),
    "qk_layernorm": (False,),
    "qkv_bias": (False,),
    "quantization_config": (),
    "query_pre_attn_scalar": (),
    "residual_multiplier": (1,),
    "rotary_pct": (1,),
    "scale_embedding": (False,),
    "use_alibi": (False,),
    "use_logn_attn": (False,),
    "use_qk_norm": (False,),
}
"""Keys that change the result, with the values that change nothing; null never does."""
