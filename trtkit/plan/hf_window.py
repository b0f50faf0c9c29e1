"""Sliding attention windows in ``config.json``: how far back, and in which layers."""

from __future__ import annotations

from trtkit.catalog.architectures import Architecture
from trtkit.catalog.architectures.architecture import Window
from trtkit.plan.hf_fields import Fields

WINDOW_KEYS = frozenset(
    {"sliding_window", "layer_types", "sliding_window_pattern", "_sliding_window_pattern"}
)
_PATTERN_KEYS = ("sliding_window_pattern", "_sliding_window_pattern")
_SLIDING, _FULL = "sliding_attention", "full_attention"


def read_window(fields: Fields, arch: Architecture) -> tuple[int | None, int | None]:
    """Return the window in tokens, and which n-th layers have none; None and None without a window.

    A window that the longest sequence does not exceed is none.
    """
    kinds = _layer_kinds(fields, arch)
    pattern = _pattern(fields, arch, kinds) if arch.window is Window.PATTERN else None
    window = fields.raw.get("sliding_window", arch.sliding_window_default)
    if window is None or fields.raw.get("use_sliding_window") is False or set(kinds) == {_FULL}:
        if _SLIDING in kinds:
            fields.error("sliding_window", "layer_types name sliding_attention, and no window is given")
        return None, None
    if type(window) is not int:
        fields.error("sliding_window", f"must be a number of tokens or null, is {window!r}")
        return None, None
    _, positions = fields.value(arch.keys["max_position_embeddings"], None)
    if window < 1:
        fields.error("sliding_window", f"is {window}, and no window is written null")
        return None, None
    if type(positions) is int and window >= positions:
        return None, None
    if arch.window is not Window.PATTERN:
        _check_alike(fields, kinds)
    if arch.window is Window.REFUSED:
        message = (
            f"attention reaches back {window} tokens only, which this architecture's engine cannot honour"
        )
        hint = f"lower max_position_embeddings to {window}: up to there the window changes nothing"
        fields.error("sliding_window", message, hint)
        return None, None
    message = (
        f"attention reaches back {window} tokens: the runtime needs max_attention_window, no engine holds it"
    )
    fields.warn("sliding_window", message)
    return window, pattern


def _layer_kinds(fields: Fields, arch: Architecture) -> list[str]:
    kinds = fields.raw.get("layer_types") or []
    if not isinstance(kinds, list) or not set(map(str, kinds)) <= {_SLIDING, _FULL}:
        fields.error("layer_types", f"kinds of layers other than {_SLIDING} and {_FULL} are not known")
        return []
    key, layers = fields.value(arch.keys["num_layers"], None)
    if kinds and type(layers) is int and len(kinds) != layers:
        fields.error("layer_types", f"names {len(kinds)} layers, and {key} is {layers}")
    return kinds


def _check_alike(fields: Fields, kinds: list[str]) -> None:
    key, given = fields.value(_PATTERN_KEYS, None)
    if given is not None or _FULL in kinds:
        fields.error(key if given is not None else "layer_types", "only some layers have the window here")


def _pattern(fields: Fields, arch: Architecture, kinds: list[str]) -> int | None:
    """Return n, and refuse kinds of layers that the architecture's engine would not have in that order."""
    key, given = fields.value(_PATTERN_KEYS, None)
    default = arch.window_pattern_default
    pattern = default if given is None else given
    if type(pattern) is not int or pattern < 1:
        fields.error(key, f"must be a positive whole number, is {pattern!r}")
        return None
    # An engine that is told the pattern goes by it in every layer, with a window or without.
    if "sliding_window_pattern" not in arch.numerics:
        if pattern != default:
            fields.error(key, f"says {pattern}, and every {default}th layer of a {arch.name} sees everything")
        if set(kinds) == {_FULL}:
            return None
    wrong = [i for i, kind in enumerate(kinds) if (kind == _FULL) != ((i + 1) % pattern == 0)]
    if wrong:
        message = f"layer {wrong[0]} is {kinds[wrong[0]]}, and the engine lets every {pattern}th layer see everything"
        fields.error("layer_types", message)
    return pattern
