"""What ``tensorrt_llm.LLM`` takes on its PyTorch back end, release line by release line. Data only.

Names were read from ``tensorrt_llm/llmapi/llm_args.py`` of three states between 0.21 and 1.3; its models forbid every
other key. What the first of them lacks is dated to the line in which it is known to be.
"""

from __future__ import annotations

from collections.abc import Mapping

from trtkit.catalog.trtllm import LLMAPI_SINCE

_FIRST, _LATE = LLMAPI_SINCE, "1.2"


def _names(first: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), first)


_LLM = _names(
    _FIRST,
    "model tokenizer backend dtype trust_remote_code tensor_parallel_size pipeline_parallel_size "
    "moe_expert_parallel_size moe_tensor_parallel_size gpus_per_node max_batch_size max_input_len max_seq_len "
    "max_num_tokens enable_chunked_prefill kv_cache_config speculative_config enable_lora lora_config "
    "guided_decoding_backend",
)
_KV = _names(
    _FIRST,
    "enable_block_reuse max_tokens max_attention_window sink_token_length free_gpu_memory_fraction host_cache_size "
    "onboard_blocks enable_partial_reuse copy_on_partial_reuse dtype",
) | _names(_LATE, "tokens_per_block")
_SPECULATION = _names(_FIRST, "decoding_type max_draft_len speculative_model_dir")

ARGS: Mapping[str, Mapping[str, str]] = {"": _LLM, "kv_cache_config": _KV, "speculative_config": _SPECULATION}
"""By section ("" for the arguments themselves): each name that trtkit may write, and the first line that has it."""
UNCERTAIN: Mapping[str, str] = {
    "tokens_per_block": "1.1 may have it too; which of its releases first did is not known"
}
"""Names whose first line no release file was seen to confirm."""
BLOCK_TOKENS = 32
"""Block size of lines that have no argument for it."""
