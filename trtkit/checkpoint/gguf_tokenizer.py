"""The tokenizer inside a GGUF file → ``tokenizer.json`` and ``tokenizer_config.json``."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtkit.errors import InputError

_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_PRE_TOKENIZERS: dict[str, list[dict[str, Any]]] = {
    "gpt-2": [_BYTE_LEVEL],
    "smollm": [{"type": "Digits", "individual_digits": True}, _BYTE_LEVEL],
}
"""How text is cut before byte-pair encoding, by ``tokenizer.ggml.pre``: another cut gives other tokens."""
_HINT = "use the model's Hugging Face folder instead: it has its own tokenizer.json"


class _TokenType(enum.IntEnum):
    """llama.cpp's kinds of tokens that are matched in the text before it is cut."""

    CONTROL = 3
    USER_DEFINED = 4


def tokenizer_files(fields: Mapping[str, Any], path: Path, *, max_length: int) -> dict[str, dict[str, Any]]:
    """Return the content of both files by name.

    Raises:
        InputError: The tokenizer is of a kind that cannot be rebuilt exactly.
    """
    pre_tokenizers = _pre_tokenizers(fields, path)
    tokens = fields["tokenizer.ggml.tokens"]
    return {
        "tokenizer.json": {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": _added_tokens(fields),
            "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre_tokenizers},
            "post_processor": None,
            "decoder": {**_BYTE_LEVEL, "add_prefix_space": True},
            "model": _byte_pair_encoding(tokens, fields["tokenizer.ggml.merges"]),
        },
        "tokenizer_config.json": _tokenizer_config(fields, tokens, max_length),
    }


def _pre_tokenizers(fields: Mapping[str, Any], path: Path) -> list[dict[str, Any]]:
    kind = fields.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise InputError(f"the tokenizer {kind!r} cannot be rebuilt, only 'gpt2'", path=path, hint=_HINT)
    pre = fields.get("tokenizer.ggml.pre")
    if pre not in _PRE_TOKENIZERS:
        known = ", ".join(_PRE_TOKENIZERS)
        raise InputError(f"the pre-tokenizer {pre!r} cannot be rebuilt, only {known}", path=path, hint=_HINT)
    added = [edge for edge in ("bos", "eos") if fields.get(f"tokenizer.ggml.add_{edge}_token")]
    if added:
        raise InputError(f"the tokenizer adds {' and '.join(added)} to every text", path=path, hint=_HINT)
    lacking = [key for key in ("tokens", "token_type", "merges") if f"tokenizer.ggml.{key}" not in fields]
    if lacking:
        raise InputError(f"the tokenizer lacks {', '.join(lacking)}", path=path, hint=_HINT)
    if len(fields["tokenizer.ggml.tokens"]) != len(fields["tokenizer.ggml.token_type"]):
        raise InputError("the tokenizer has not one type for each token", path=path, hint=_HINT)
    return _PRE_TOKENIZERS[pre]


def _added_tokens(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    kinds = zip(fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"], strict=True)
    return [
        {
            "id": index,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == _TokenType.CONTROL,
        }
        for index, (token, kind) in enumerate(kinds)
        if kind in (_TokenType.CONTROL, _TokenType.USER_DEFINED)
    ]


def _byte_pair_encoding(tokens: list[str], merges: list[str]) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": {token: index for index, token in enumerate(tokens)},
        "merges": [merge.split(" ") for merge in merges],
    }


def _tokenizer_config(fields: Mapping[str, Any], tokens: list[str], max_length: int) -> dict[str, Any]:
    names = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    ids = {name: fields.get(f"tokenizer.ggml.{key}_token_id") for name, key in names.items()}
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        **{
            f"{name}_token": tokens[index]
            for name, index in ids.items()
            if index is not None and index < len(tokens)
        },
    }
    if "tokenizer.chat_template" in fields:
        config["chat_template"] = fields["tokenizer.chat_template"]
    return config
