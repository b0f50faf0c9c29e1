"""What TensorRT-LLM's loader demands of a checkpoint, rank by rank: names and shapes, and data types beside them."""

import json
import struct

GATED = {
    "LlamaForCausalLM", "MistralForCausalLM", "GraniteForCausalLM", "InternLM2ForCausalLM", "Qwen2ForCausalLM",
    "Qwen3ForCausalLM", "GemmaForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM", "MedusaForCausalLM",
    "EagleForCausalLM",
}  # fmt: skip
EXPERTS = {"MixtralForCausalLM", "Qwen2MoeForCausalLM"}
QUANTIZATION_KEYS = {
    "quant_algo", "kv_cache_quant_algo", "group_size", "smoothquant_val", "clamp_val", "has_zero_point",
    "pre_quant_scale", "exclude_modules", "use_meta_recipe",
}  # fmt: skip
MAPPING_KEYS = {"world_size", "tp_size", "pp_size", "cp_size", "moe_tp_size", "moe_ep_size", "gpus_per_node"}
SHORT = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
STATIC = {"W8A8_SQ_PER_TENSOR_PLUGIN", "W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN"}
FLOATS = {"F32", "BF16", "F16"}


def check_config(config):
    """Refuse what keyword arguments of ``QuantConfig`` and ``Mapping`` are not."""
    for name, known, kind in (
        ("quantization", QUANTIZATION_KEYS, "QuantConfig"),
        ("mapping", MAPPING_KEYS, "Mapping"),
    ):
        for key in config.get(name) or {}:
            if key not in known:
                raise TypeError(f"{kind}.__init__() got an unexpected keyword argument '{key}'")
    for key in ("architecture", "dtype", "hidden_size", "num_hidden_layers", "num_attention_heads"):
        config[key]
    if config["architecture"] not in GATED | EXPERTS:
        raise AssertionError(f"Unsupported model architecture: {config['architecture']}")


def check_rank(config, path, rank):
    """Compare one rank's file with what its model is made of."""
    wanted, found = expected(config, rank), read_header(path)
    missing = sorted(set(wanted) - set(found))
    if missing:
        raise RuntimeError(f"Required but not provided tensors:{set(missing)}")
    for name in sorted(set(found) - set(wanted)):
        print(f"[TRT-LLM] [W] Provided but not expected tensors: {name}", flush=True)
    for name, (shape, dtypes) in wanted.items():
        dtype, have = found[name]
        if have != list(shape) and not (have == [] and list(shape) == [1]):
            raise AssertionError(f"shape mismatch of {name}: {have}, the parameter has {list(shape)}")
        if dtype not in dtypes:
            raise TypeError(f"dtype mismatch of {name}: {dtype}, the parameter has {sorted(dtypes)}")


def read_header(path):
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"]) for name, entry in header.items()}


class Sizes:
    """The rank-local sizes."""

    def __init__(self, config, rank):
        mapping = config.get("mapping") or {}
        self.tp, self.pp = mapping.get("tp_size", 1), mapping.get("pp_size", 1)
        self.stage = rank // self.tp
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        kv_heads = config.get("num_key_value_heads") or heads
        self.hidden, self.vocab = hidden, config["vocab_size"]
        self.head = config.get("head_size") or hidden // heads
        assert heads % self.tp == 0
        assert kv_heads % self.tp == 0 or self.tp % kv_heads == 0
        assert config["num_hidden_layers"] % self.pp == 0
        self.q = heads // self.tp * self.head
        self.kv = max(1, kv_heads // self.tp) * self.head
        self.inner = config.get("intermediate_size") or 4 * hidden
        self.layers = config["num_hidden_layers"] // self.pp
        self.padded = -(-self.vocab // self.tp)


def expected(config, rank):
    """Return shape and accepted data types of every tensor of a rank."""
    sizes, model = Sizes(config, rank), SHORT[config["dtype"]]
    tensors = {}
    if sizes.stage == 0:
        rows, columns = sizes.vocab, sizes.hidden
        if config.get("use_parallel_embedding"):
            by_rows = config.get("embedding_sharding_dim", 0) == 0
            rows, columns = (sizes.padded, columns) if by_rows else (rows, columns // sizes.tp)
        tensors["transformer.vocab_embedding.weight"] = ((rows, columns), {model})
    if sizes.stage == sizes.pp - 1:
        tensors["transformer.ln_f.weight"] = ((sizes.hidden,), {model})
        tensors["lm_head.weight"] = ((sizes.padded, sizes.hidden), {model})
    for layer in range(sizes.layers):
        for name, wanted in _layer(config, sizes, model).items():
            tensors[f"transformer.layers.{layer}.{name}"] = wanted
    return tensors | _heads(config, sizes, model)


def _heads(config, sizes, model):
    if config["architecture"] != "MedusaForCausalLM":
        return {}
    own, rows = sizes.hidden // sizes.tp, sizes.padded
    found = {}
    for head in range(config.get("num_medusa_heads", 4)):
        for layer in range(config.get("num_medusa_layers", 1)):
            linear = f"medusa_heads.{head}.medusa_layers.{layer}.linear."
            found[linear + "weight"] = ((own, sizes.hidden), {model})
            found[linear + "bias"] = ((own,), {model})
        found[f"medusa_heads.{head}.lm_head.weight"] = ((rows, sizes.hidden), {model})
    return found


def _layer(config, sizes, model):
    arch, quant = config["architecture"], config.get("quantization") or {}
    norms = ["input_layernorm", "post_layernorm"]
    if arch in {"Gemma2ForCausalLM", "Gemma3ForCausalLM"}:
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    found = {f"{norm}.weight": ((sizes.hidden,), {model}) for norm in norms}
    if arch in {"Qwen3ForCausalLM", "Gemma3ForCausalLM"}:
        for norm in ("q_layernorm", "k_layernorm"):
            found[f"attention.{norm}.weight"] = ((sizes.head,), {model})
    is_qwen = arch.startswith("Qwen")
    bias = config.get("attn_bias", arch.startswith("Qwen2"))
    shapes = {
        "attention.qkv": (sizes.q + 2 * sizes.kv, sizes.hidden),
        "attention.dense": (sizes.hidden, sizes.q),
    }
    biased = {"attention.qkv": bias, "attention.dense": bias and not is_qwen}
    if arch in EXPERTS:
        found |= _experts(config, sizes, model, quant)
    else:
        own = sizes.inner // sizes.tp
        assert sizes.inner % sizes.tp == 0
        shapes |= {
            "mlp.fc": (own, sizes.hidden),
            "mlp.gate": (own, sizes.hidden),
            "mlp.proj": (sizes.hidden, own),
        }
        biased |= dict.fromkeys(("mlp.fc", "mlp.gate", "mlp.proj"), config.get("mlp_bias", False))
    for name, (rows, columns) in shapes.items():
        found |= _linear(name, rows, columns, quant, model)
        if biased[name]:
            found[f"{name}.bias"] = ((rows,), {model})
    return found | _beside(sizes, quant, model)


def _linear(name, rows, columns, quant, model):
    algo, group = quant.get("quant_algo"), quant.get("group_size", 128)
    one, wide = ((1,), {"F32"}), {"F8_E4M3", "I8"}
    parts = {
        None: lambda: {"weight": ((rows, columns), {model})},
        "W8A16": lambda: {"weight": ((rows, columns), {model})},
        "W4A16": lambda: {"weight": ((rows, columns), {model})},
        "FP8": lambda: {
            "weight": ((rows, columns), wide),
            "weights_scaling_factor": one,
            "activation_scaling_factor": one,
        },
        "FP8_PER_CHANNEL_PER_TOKEN": lambda: {
            "weight": ((rows, columns), wide),
            "per_channel_scale": ((rows,), {"F32"}),
        },
        "W8A8_SQ_PER_CHANNEL": lambda: {
            "weight": ((rows, columns), {"I8"}),
            "weights_scaling_factor": ((rows,), {"F32"}),
            "activation_scaling_factor": one,
            "prequant_scaling_factor": ((columns,), {model}),
        },
        "W4A16_AWQ": lambda: _awq(rows, columns, group, quant, model),
        "W4A8_AWQ": lambda: {
            **_awq(rows, columns, group, quant, model),
            "activation_scaling_factor": one,
            "weights_scaling_factor_2": one,
        },
        "W4A16_GPTQ": lambda: {
            "weight": ((columns, rows // 4), {model}),
            "weights_scaling_factor": ((columns // group, rows), {model}),
            "zero": ((columns // group, rows), {model}),
        },
    }
    found = _smoothed(name, rows, columns, algo) if _is_plugin(algo) else parts[algo]()
    return {f"{name}.{part}": wanted for part, wanted in found.items()}


def _is_plugin(algo):
    return bool(algo) and algo.startswith("W8A8_SQ") and algo.endswith("_PLUGIN")


def _awq(rows, columns, group, quant, model):
    found = {
        "weight": ((rows // 2, columns), {"I8"}),
        "weights_scaling_factor": ((rows, columns // group), FLOATS),
    }
    if quant.get("pre_quant_scale"):
        found["prequant_scaling_factor"] = ((columns,), {model})
    if quant.get("has_zero_point"):
        found["zero"] = ((columns // group, rows), {model})
    return found


def _smoothed(name, rows, columns, algo):
    by_row = "PER_CHANNEL" in algo or name == "attention.qkv"
    found = {
        "weight": ((rows, columns), {"I8"}),
        "per_channel_scale": ((1, rows) if by_row else (1, 1), {"F32"}),
    }
    if algo in STATIC:
        found["act_scale"] = ((1, 1), {"F32"})
    if name in {"attention.dense", "mlp.proj"}:
        found["smoother"] = ((1, columns), {"F32"})
    return found


def _beside(sizes, quant, model):
    found, algo = {}, quant.get("quant_algo")
    if _is_plugin(algo):
        for norm in ("input_layernorm", "post_layernorm"):
            found[f"{norm}.scale_to_int"] = ((1,), {"F32", model})
        if algo in STATIC:
            for owner in ("attention", "mlp"):
                found[f"{owner}.quantization_scaling_factor"] = ((1,), {"F32"})
    if algo == "FP8_PER_CHANNEL_PER_TOKEN" and quant.get("clamp_val"):
        for owner in ("input_layernorm", "post_layernorm", "attention", "mlp"):
            found[f"{owner}.clamp_val"] = ((2,), {"F32"})
    if quant.get("kv_cache_quant_algo"):
        found["attention.kv_cache_scaling_factor"] = ((1,), {"F32"})
    return found


def _experts(config, sizes, model, quant):
    moe, mapping = config["moe"], config.get("mapping") or {}
    groups = max(1, mapping.get("moe_ep_size", 1))
    width = config.get("moe_intermediate_size") or sizes.inner
    own, local = width // (sizes.tp // groups), moe["num_experts"] // groups
    algo = quant.get("quant_algo")
    weight = {"F8_E4M3", "I8"} if algo == "FP8" else {model}
    assert algo in {None, "FP8", "W8A16"}, f"the double knows no experts of {algo}"
    found = {
        "mlp.fc.weight": ((local, 2 * own, sizes.hidden), weight),
        "mlp.proj.weight": ((local, sizes.hidden, own), weight),
        "mlp.router.weight": ((moe["num_experts"], sizes.hidden), {"F32"}),
    }
    if algo == "FP8":
        for name in ("mlp.fc", "mlp.proj"):
            found[f"{name}.weights_scaling_factor"] = ((local, 1), {"F32"})
            found[f"{name}.activation_scaling_factor"] = ((1,), {"F32"})
    shared = moe.get("shared_expert_intermediate_size", 0)
    if shared:
        found["mlp.shared_expert.fc.weight"] = ((2 * shared // sizes.tp, sizes.hidden), {model})
        found["mlp.shared_expert.proj.weight"] = ((sizes.hidden, shared // sizes.tp), {model})
        found["mlp.shared_expert_gate.weight"] = ((1, sizes.hidden), {model})
    return found
