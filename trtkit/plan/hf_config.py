"""A Hugging Face ``config.json`` → :class:`ModelConfig`, or every problem at once. Pure.

Read as data, without transformers: a file that is newer than any library stays readable. A key that would
change the result and that the engine cannot honour is an error; a key that nobody knows is a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

from trtkit.catalog.architectures import ARCHITECTURES, WRAPPERS, Architecture
from trtkit.catalog.architectures.architecture import REQUIRED, Numeric
from trtkit.catalog.architectures.model_types import CLASS_OF, OTHERS
from trtkit.catalog.model import ModelConfig, Moe
from trtkit.errors import ContractError, Problem, Severity
from trtkit.plan.hf_fields import Fields
from trtkit.plan.hf_rope import ROPE_KEYS, check_rotation, read_rope, read_rotary_pct
from trtkit.plan.hf_window import WINDOW_KEYS, read_window

_GENERATION = "generation_config.json"
_TOKEN_KEYS = frozenset({"bos_token_id", "eos_token_id", "pad_token_id"})
DTYPE_KEYS = ("dtype", "torch_dtype")
QUANTIZED_KEYS = frozenset({"compression_config", "quantization", "quantization_config"})
"""Read by whoever opens the weights."""
_EXACT_GELU = ("gelu", "gelu_python")
DTYPES = {"bfloat16", "float16", "float32"}


def parse_hf_config(
    raw: Mapping[str, Any], *, file: str = "config.json", generation: Mapping[str, Any] | None = None
) -> tuple[ModelConfig, list[Problem]]:
    """Normalise a configuration; return it with its warnings. ``generation`` is ``generation_config.json``.

    Raises:
        ContractError: The configuration cannot be honoured; all errors are listed.
    """
    arch = find_architecture(raw, file)
    fields = Fields(arch.adapt(raw), file)
    _check_family(fields, arch)
    config = _read(fields, arch, generation or {})
    if not _errors(fields):
        # Sizes that were reported as wrong would only be reported again.
        _check_geometry(fields, arch, config)
        _check_tokens(fields, config, generation or {})
    _check_other_keys(fields, arch, config)
    if errors := _errors(fields):
        raise ContractError(errors)
    return config, fields.problems


def _errors(fields: Fields) -> list[Problem]:
    return [problem for problem in fields.problems if problem.severity is Severity.ERROR]


def find_architecture(raw: Mapping[str, Any], file: str = "config.json") -> Architecture:
    """Return the catalog's entry for the class named in ``architectures``.

    Raises:
        ContractError: There is none; the supported ones are listed.
    """
    names = raw.get("architectures")
    supported = "supported: " + ", ".join(ARCHITECTURES)
    if not isinstance(names, list) or not names:
        raise ContractError([Problem("the field is missing", key="architectures", hint=supported, file=file)])
    if not isinstance(names[0], str) or names[0] not in ARCHITECTURES:
        message = f"{names[0]!r} is not supported"
        hint = WRAPPERS.get(str(names[0]), supported)
        raise ContractError([Problem(message, key="architectures", hint=hint, file=file)])
    return ARCHITECTURES[names[0]]


def _check_family(fields: Fields, arch: Architecture) -> None:
    """Refuse a ``model_type`` of another family, by which transformers would go; one that is not known is nothing."""
    names = list(dict.fromkeys(map(str, fields.raw["architectures"])))
    if len(names) > 1:
        fields.warn("architectures", f"names several: {names[0]} is taken, not {', '.join(names[1:])}")
    kind = str(fields.raw.get("model_type"))
    owner = CLASS_OF.get(kind, "another class" if kind in OTHERS else arch.name)
    if owner != arch.name:
        message = f"{kind!r} is {owner}, and architectures says {arch.name}: transformers goes by the former"
        fields.error("model_type", message, "correct the one that is wrong")


def _read(fields: Fields, arch: Architecture, generation: Mapping[str, Any]) -> ModelConfig:
    def args(name: str) -> tuple[Any, ...]:
        return (arch.keys[name], arch.defaults[name]) if name in arch.defaults else (arch.keys[name],)

    num_heads, hidden_size = fields.count(*args("num_heads")), fields.count(*args("hidden_size"))
    rotary_base, rotary_scaling = read_rope(fields, arch)
    window, window_pattern = read_window(fields, arch)
    bos, eos, pad = (_token_ids(fields, name, generation) for name in ("bos", "eos", "pad"))
    if not eos:
        fields.warn("eos_token_id", "no token ends an answer: only max_tokens will")
    return ModelConfig(
        architecture=arch.name,
        hidden_size=hidden_size,
        num_layers=fields.layers(*args("num_layers")),
        num_heads=num_heads,
        num_kv_heads=fields.count(*args("num_kv_heads")) or num_heads,
        head_size=fields.count(*args("head_size")) or max(1, hidden_size // num_heads),
        intermediate_size=fields.count(*args("intermediate_size")) or 4 * hidden_size,
        vocab_size=fields.count(*args("vocab_size")),
        hidden_act=_activation(fields, arch, args("hidden_act")),
        norm_epsilon=fields.number(*args("norm_epsilon")),
        max_position_embeddings=fields.count(*args("max_position_embeddings")),
        rotary_base=rotary_base,
        rotary_scaling=rotary_scaling,
        attn_bias=fields.flag(*args("attn_bias")),
        mlp_bias=fields.flag(*args("mlp_bias")),
        tie_word_embeddings=fields.flag(*args("tie_word_embeddings")),
        dtype=_dtype(fields),
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=eos,
        pad_token_id=pad[0] if pad else None,
        moe=_moe(fields, args) if "num_experts" in arch.keys else None,
        rotary_pct=read_rotary_pct(fields, arch),
        sliding_window=window,
        sliding_window_pattern=window_pattern,
        numerics={name: _numeric(fields, spec) for name, spec in arch.numerics.items()},
    )


def _moe(fields: Fields, args: Callable[[str], tuple[Any, ...]]) -> Moe:
    renormalize = fields.flag(*args("renormalize"))
    if renormalize and args("renormalize")[0]:
        message = "is honoured by normalization_mode RENORMALIZE; TensorRT-LLM's own converter writes NONE"
        fields.warn(args("renormalize")[0][0], message)
    return Moe(
        num_experts=fields.layers(*args("num_experts")),
        experts_per_token=fields.count(*args("experts_per_token")),
        intermediate_size=fields.count(*args("expert_intermediate_size")),
        shared_intermediate_size=fields.count(*args("shared_intermediate_size")),
        renormalize=renormalize,
    )


def _numeric(fields: Fields, spec: Numeric) -> Any:
    args = (spec.keys,) if spec.default is REQUIRED else (spec.keys, spec.default)
    if spec.kind is bool:
        flag = fields.flag(*args)
        return spec.words.get(flag, flag)
    if spec.kind is int:
        return fields.count(*args)
    if spec.default is None and all(fields.raw.get(key) is None for key in spec.keys):
        return None
    return fields.number(*args)


def _activation(fields: Fields, arch: Architecture, args: tuple[Any, ...]) -> str:
    key, value = fields.value(*args)
    name = arch.activations.get(str(value), "")
    if not name:
        fields.error(
            key, f"{arch.name} engines do not have {value!r}", f"known: {', '.join(arch.activations)}"
        )
    elif value in _EXACT_GELU:
        # They differ by less than 0.0005; reference checkpoints have it too.
        fields.warn(key, "GELU by the error function: TensorRT-LLM computes its approximation by tanh")
    return name


def _dtype(fields: Fields) -> str:
    key, value = fields.value(DTYPE_KEYS, None)
    if value is None:
        fields.warn(DTYPE_KEYS[0], "is absent; float32 is assumed, as transformers does")
        return "float32"
    name = str(value).removeprefix("torch.")
    if name not in DTYPES:
        fields.error(key, f"{value!r} is not one of {', '.join(sorted(DTYPES))}")
    return name


def _token_ids(fields: Fields, name: str, generation: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the ids of one special token; as in transformers, ``generation_config.json`` goes first."""
    key = f"{name}_token_id"
    value = fields.raw.get(key) if generation.get(key) is None else generation[key]
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if any(isinstance(token, bool) or not isinstance(token, int) for token in ids):
        message = f"must be a token id or a list of them, is {value!r}"
        fields.problems.append(Problem(message, key=key, file=_token_file(fields, key, generation)))
        return ()
    # -1 is how early conversions wrote "none".
    return tuple(dict.fromkeys(token for token in ids if token >= 0))


def _token_file(fields: Fields, key: str, generation: Mapping[str, Any]) -> str:
    named = fields.file if generation.get(key) is None else PurePath(fields.file).with_name(_GENERATION)
    return str(named)


def _check_tokens(fields: Fields, config: ModelConfig, generation: Mapping[str, Any]) -> None:
    for key, ids in (
        ("bos_token_id", (config.bos_token_id,)),
        ("eos_token_id", config.eos_token_ids),
        ("pad_token_id", (config.pad_token_id,)),
    ):
        for token in ids:
            if token is not None and token >= config.vocab_size:
                message = f"{token} is outside the vocabulary of {config.vocab_size}"
                file = _token_file(fields, key, generation)
                fields.problems.append(Problem(message, key=key, file=file, severity=Severity.WARNING))


def _check_geometry(fields: Fields, arch: Architecture, config: ModelConfig) -> None:
    moe = config.moe
    if moe and moe.experts_per_token > moe.num_experts:
        message = f"{moe.experts_per_token} of {moe.num_experts} experts cannot be chosen"
        fields.error(arch.keys["experts_per_token"][0], message)
    divides = config.hidden_size % config.num_heads == 0
    if not divides and all(fields.raw.get(key) is None for key in arch.keys["head_size"]):
        fields.error(
            "head_dim",
            f"is absent, and hidden_size {config.hidden_size} is no multiple of {config.num_heads} heads",
        )
    if config.num_heads % config.num_kv_heads:
        fields.error(
            "num_key_value_heads",
            f"{config.num_heads} query heads cannot share {config.num_kv_heads} KV heads evenly",
        )
    check_rotation(fields, arch, config)


def _check_other_keys(fields: Fields, arch: Architecture, config: ModelConfig) -> None:
    """Compare every remaining key with what is known: neutral, ignorable, or neither."""
    spellings = (*arch.keys.values(), *(spec.keys for spec in arch.numerics.values()))
    read = {key for keys in spellings for key in keys}
    read |= ROPE_KEYS | _TOKEN_KEYS | WINDOW_KEYS | QUANTIZED_KEYS | set(DTYPE_KEYS)
    sound = not _errors(fields)
    for key, value in fields.raw.items():
        if value is None or key in read or key in arch.ignorable:
            continue
        if key in arch.neutral:
            if value not in arch.neutral[key]:
                fields.error(
                    key, f"{value!r} would change the result, and {arch.name} engines cannot honour it"
                )
        elif key in arch.restated:
            expected = getattr(config, arch.restated[key])
            if sound and value != expected:
                message = f"says {value!r}, and {arch.name} engines would go by {expected!r}"
                fields.error(key, message, f"remove it if the model was trained with {expected!r}")
        else:
            fields.warn(key, "the field is not known and is not used")
