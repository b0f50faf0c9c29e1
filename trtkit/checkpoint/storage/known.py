"""Keys that tools write into their quantization blocks; any other one may mean something that nobody reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Known = Mapping[str, "Known | None"]
"""Keys, each with those of the object that it holds; None where that is nobody's business. ``*`` is any key."""


def _keys(text: str, **nested: Known) -> Known:
    return {**dict.fromkeys(text.split()), **nested}


_SCHEME = _keys(
    "num_bits type symmetric group_size strategy block_structure dynamic actorder scale_dtype zp_dtype observer "
    "observer_kwargs"
)
_GROUP = _keys("targets format", weights=_SCHEME, input_activations=_SCHEME, output_activations=_SCHEME)
_GPTQ = _keys(
    "quant_method method bits group_size sym desc_act static_groups act_group_aware damp_percent damp_auto_increment "
    "true_sequential lm_head checkpoint_format format pack_dtype meta dynamic is_marlin_format rotation adapter mse "
    "model_name_or_path model_file_base_name modules_to_not_convert modules_in_block_to_quantize tokenizer dataset "
    "model_seqlen block_name_to_quantize module_name_preceding_first_block batch_size pad_token_id backend "
    "use_exllama disable_exllama exllama_config max_input_length use_cuda_fp16 cache_block_outputs parallel_packing "
    "offload_to_disk v2 v2_alpha"
)
_AWQ = _keys("w_bit q_group_size zero_point version do_fuse fuse_max_seq_len modules_to_fuse")
KNOWN: Mapping[str, Known] = {
    "awq": {**_GPTQ, **_AWQ},
    "compressed-tensors": _keys(
        "quant_method format quantization_status global_compression_ratio ignore sparsity_config transform_config "
        "moe_sparsity_config version run_compressed",
        config_groups={"*": _GROUP},
        kv_cache_scheme=_SCHEME,
    ),
    "fbgemm_fp8": _keys("quant_method activation_scale_ub modules_to_not_convert"),
    "fp8": _keys(
        "quant_method activation_scheme ignored_layers modules_to_not_convert weight_block_size kv_cache_scheme"
    ),
    "gptq": _GPTQ,
    "modelopt": _keys(
        "quant_method producer quant_algo kv_cache_quant_algo exclude_modules ignore group_size has_zero_point "
        "pre_quant_scale",
        config_groups={"*": _GROUP},
        kv_cache_scheme=_SCHEME,
    ),
}
"""By ``quant_method``."""


def unknown_keys(block: Mapping[str, Any], known: Known, place: str = "") -> Iterator[str]:
    """Yield the dotted paths that are not known, but for those that hold nothing."""
    for key, value in block.items():
        inside = known.get(key, known.get("*"))
        if key not in known and "*" not in known:
            if value not in (None, False, "", [], {}):
                yield place + key
        elif inside is not None and isinstance(value, Mapping):
            yield from unknown_keys(value, inside, f"{place}{key}.")
