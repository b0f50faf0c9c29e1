"""What TensorRT-LLM's Triton back end takes, release line by release line: tensors and parameters of its model.

Read from the templates of ``all_models/inflight_batcher_llm`` at the tags v0.5.0 to v0.19.0 and branch r25.05, and from
the last ones before they were removed. Line 0.19 is what its only image, 25.05, has: that branch is between 0.19 and
0.20 and has the new names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from trtkit.catalog.trtllm import LINES
from trtkit.errors import InputError
from trtkit.triton.tensors import Tensor

_FIRST, _GUIDED_SINCE, _MAIN = LINES[0], "0.19", "1.0"
TEXT, FLAG, INTEGER, FRACTION = "text", "true or false", "a whole number", "a number from 0 to 1"
INTEGERS = "whole numbers, such as 512 or 512,4096"
GROUPS = "whole numbers, with ; between the instances, such as 0,1;2,3"
TREE = "paths of a tree, such as {0},{0,1}"


@dataclass(frozen=True)
class Parameter:
    """One key of ``parameters``."""

    name: str
    kind: str = TEXT
    default: str | None = None
    """What the back end takes where the key is absent; None for nothing, or what other keys say."""
    since: str = _FIRST
    until: str = LINES[-1]
    required: str | None = None
    """First line whose back end refuses to load without the key, even if its value is empty."""
    choices: tuple[str, ...] = ()

    def in_line(self, line: str) -> bool:
        """Return whether a line knows it."""
        return LINES.index(self.since) <= LINES.index(line) <= LINES.index(self.until)

    def needed_by(self, line: str) -> bool:
        """Return whether a line cannot do without it."""
        return self.required is not None and LINES.index(line) >= LINES.index(self.required)


_MODES = ("top_k", "top_p", "top_k_top_p", "beam_search", "medusa", "redrafter", "lookahead", "eagle", "auto")
_LOOKAHEAD = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")
ENGINE_PARAMETERS: dict[str, Parameter] = {
    row.name: row
    for row in (
        Parameter(
            "gpt_model_type",
            required=_FIRST,
            choices=("inflight_fused_batching", "inflight_batching", "V1", "v1"),
        ),
        Parameter("gpt_model_path"),
        Parameter("encoder_model_path"),
        Parameter("max_beam_width", INTEGER, "1"),
        Parameter("max_tokens_in_paged_kv_cache", INTEGER),
        Parameter("max_attention_window_size", INTEGERS),
        Parameter("sink_token_length", INTEGER),
        Parameter(
            "batch_scheduler_policy",
            default="guaranteed_no_evict",
            choices=("guaranteed_no_evict", "max_utilization"),
        ),
        Parameter("kv_cache_free_gpu_mem_fraction", FRACTION, "0.9"),
        Parameter("cross_kv_cache_fraction", FRACTION, "0.5"),
        Parameter("kv_cache_host_memory_bytes", INTEGER, "0"),
        Parameter("kv_cache_onboard_blocks", FLAG, "true"),
        Parameter("enable_kv_cache_reuse", FLAG),  # false up to 0.18, true since
        Parameter("enable_trt_overlap", FLAG, since=_MAIN),
        Parameter("exclude_input_in_output", FLAG, "false"),
        Parameter("cancellation_check_period_ms", INTEGER, "100"),
        Parameter("stats_check_period_ms", INTEGER, "100"),
        Parameter("recv_poll_period_ms", INTEGER, "0"),
        Parameter("iter_stats_max_iterations", INTEGER, "1000"),
        Parameter("request_stats_max_iterations", INTEGER, "0"),
        Parameter("normalize_log_probs", FLAG, "true"),
        Parameter("enable_chunked_context", FLAG, "false"),
        Parameter("gpu_device_ids", GROUPS),
        Parameter("participant_ids", GROUPS),
        Parameter("num_nodes", INTEGER, "1", since=_GUIDED_SINCE),
        Parameter("executor_worker_path"),
        Parameter("decoding_mode", choices=_MODES),
        Parameter("medusa_choices", TREE),
        Parameter("eagle_choices", TREE),
        *(Parameter(name, INTEGER, since=_GUIDED_SINCE) for name in _LOOKAHEAD),
        Parameter("gpu_weights_percent", FRACTION, "1.0"),
        Parameter("multi_block_mode", FLAG, "true"),
        Parameter("enable_context_fmha_fp32_acc", FLAG, "false"),
        Parameter("cuda_graph_mode", FLAG, "false"),
        Parameter("cuda_graph_cache_size", INTEGER, "0"),
        Parameter("speculative_decoding_fast_logits", FLAG, "false"),
        Parameter("lora_cache_optimal_adapter_size", INTEGER, "8"),
        Parameter("lora_cache_max_adapter_size", INTEGER, "64"),
        Parameter("lora_cache_gpu_memory_fraction", FRACTION, "0.05"),
        Parameter("lora_cache_host_memory_bytes", INTEGER, str(1 << 30)),
        # An unfilled placeholder is taken for a path: the key is never written.
        Parameter("lora_prefetch_dir", since=_GUIDED_SINCE),
        Parameter("tokenizer_dir", since=_GUIDED_SINCE, required=_GUIDED_SINCE),
        Parameter("guided_decoding_backend", since=_GUIDED_SINCE, required=_GUIDED_SINCE, choices=("xgrammar",)),
        Parameter("xgrammar_tokenizer_info_path", since=_GUIDED_SINCE, required=_GUIDED_SINCE),
        Parameter("FORCE_CPU_ONLY_INPUT_TENSORS"),
    )
}  # fmt: skip
REMOVED: Mapping[str, str] = {
    "max_num_sequences": "0.8",
    "max_kv_cache_length": "0.7",
    "worker_path": "0.10, whose back end refuses to load with it: it is executor_worker_path",
}
"""Keys of old templates, and the line that dropped them."""

_EARLY = ("0.17", "0.18")
_SINCE_0_19 = (
    "mrope_rotary_cos_sin mrope_position_deltas guided_decoding_guide_type guided_decoding_guide "
    "lookahead_window_size lookahead_ngram_size lookahead_verification_set_size arrival_time_ns "
    "first_scheduled_time_ns first_token_time_ns last_token_time_ns acceptance_rate total_accepted_draft_tokens "
    "total_draft_tokens"
)


@dataclass(frozen=True)
class Generation:
    """The tensors and parameters of one line."""

    line: str
    renamed: Mapping[str, str] = field(default_factory=dict)
    """What the engine's model calls tensors of later lines."""
    absent: frozenset[str] = frozenset()
    """Tensors of later lines that it does not have."""

    def present(self, tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
        """Return the tensors that the line has, by the names that clients see everywhere."""
        return tuple(tensor for tensor in tensors if tensor.name not in self.absent)

    def engine_tensors(self, tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
        """Return the same by the engine's own names."""
        return tuple(
            replace(each, name=self.renamed.get(each.name, each.name)) for each in self.present(tensors)
        )

    def parameters(self) -> dict[str, Parameter]:
        """Return the parameters that the line knows."""
        return {name: row for name, row in ENGINE_PARAMETERS.items() if row.in_line(self.line)}

    def keep(self, values: Mapping[str, str]) -> dict[str, str]:
        """Return the parameters that the line knows; one that it does not is never written."""
        known = self.parameters()
        return {name: value for name, value in values.items() if name in known}


def generation_of(line: str) -> Generation:
    """Return the generation of a release line.

    Raises:
        InputError: The engine flow is not known of the line.
    """
    if line not in LINES:
        raise InputError(
            f"no templates are known of TensorRT-LLM {line}", hint=f"lines that are: {', '.join(LINES)}"
        )
    if line not in _EARLY:
        return Generation(line)
    old = {
        "min_tokens": "min_length",
        "seed": "random_seed",
        "return_perf_metrics": "return_kv_cache_reuse_stats",
    }
    return Generation(line, old, frozenset(_SINCE_0_19.split()))
