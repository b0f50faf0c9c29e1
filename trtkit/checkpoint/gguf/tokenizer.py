"""The tokenizer inside a GGUF file → ``tokenizer.json`` and ``tokenizer_config.json``."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtkit.checkpoint.gguf.cuts import CUTS
from trtkit.checkpoint.gguf.file import GgufFile
from trtkit.checkpoint.gguf.merges import merges_by_score
from trtkit.checkpoint.hf import read_json

_NOTE = "tokenizer_missing.json"
_SPACE = "▁"
_LIST = "tokenizer.ggml."
_NAMES = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}


class _Kind(enum.IntEnum):
    """llama.cpp's kinds of tokens."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Matched in the text before it is cut.
_WHOLE = {_Kind.UNKNOWN, _Kind.CONTROL, _Kind.USER_DEFINED}
_SPECIAL = {_Kind.UNKNOWN, _Kind.CONTROL}


class _CannotRebuildError(Exception):
    """What stands in the way."""


@dataclass(frozen=True)
class _Vocabulary:
    """The tokens by id, without those that only fill the table up."""

    fields: Mapping[str, Any]
    tokens: Sequence[str]
    kinds: Sequence[int]

    @classmethod
    def read(cls, fields: Mapping[str, Any], extra: Sequence[str]) -> _Vocabulary:
        """Read the tables that every tokenizer has, and make sure that the ``extra`` ones are there."""
        lacking = [key for key in ("tokens", "token_type", *extra) if _LIST + key not in fields]
        if lacking:
            raise _CannotRebuildError(f"it lacks {', '.join(lacking)}")
        tokens, kinds = fields[_LIST + "tokens"], fields[_LIST + "token_type"]
        if len(tokens) != len(kinds):
            raise _CannotRebuildError(f"it has {len(tokens)} tokens and {len(kinds)} types of tokens")
        vocabulary = cls(fields, tokens, kinds)
        twice = [token for token, count in Counter(vocabulary.used.values()).items() if count > 1]
        if twice:
            raise _CannotRebuildError(f"it has these tokens twice: {', '.join(map(repr, twice[:5]))}")
        return vocabulary

    @property
    def used(self) -> dict[int, str]:
        """Return the tokens that text can become, by id."""
        pairs = enumerate(zip(self.tokens, self.kinds, strict=True))
        return {index: token for index, (token, kind) in pairs if kind != _Kind.UNUSED}

    @property
    def ids(self) -> dict[str, int]:
        """Return the ids by token."""
        return {token: index for index, token in self.used.items()}

    def added(self) -> list[dict[str, Any]]:
        """Return the tokens that are matched in the text as a whole."""
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        return [
            {"id": index, "content": token, **flags, "special": self.kinds[index] in _SPECIAL}
            for index, token in self.used.items()
            if self.kinds[index] in _WHOLE
        ]

    def special(self, name: str) -> str | None:
        """Return the token that the file names as its ``bos``, ``eos``, ``padding`` or ``unknown`` one."""
        index = self.fields.get(f"{_LIST}{name}_token_id")
        return self.tokens[index] if type(index) is int and 0 <= index < len(self.tokens) else None


def tokenizer_files(file: GgufFile, *, max_length: int) -> dict[str, dict[str, Any]]:
    """Return the content of both files by name; a note instead, when the tokenizer cannot be rebuilt exactly."""
    try:
        tokenizer, vocabulary = _rebuild(file)
    except _CannotRebuildError as reason:
        return {_NOTE: {"reason": str(reason)}}
    return {"tokenizer.json": tokenizer, "tokenizer_config.json": _tokenizer_config(vocabulary, max_length)}


def why_missing(folder: Path) -> str | None:
    """Return why the tokenizer of a converted file was left out, or None when it was not."""
    note = folder / _NOTE
    return str(read_json(note)["reason"]) if note.exists() else None


def _rebuild(file: GgufFile) -> tuple[dict[str, Any], _Vocabulary]:
    kind = file.fields.get(_LIST + "model")
    if kind == "gpt2":
        return _byte_level(file.fields)
    if kind == "llama":
        if file.architecture == "phi3":
            raise _CannotRebuildError("which of Phi-3's special tokens swallow spaces is not in the file")
        return _sentence_piece(file.fields)
    raise _CannotRebuildError(f"its kind is {kind!r}, and only 'gpt2' and 'llama' can be rebuilt")


def _byte_level(fields: Mapping[str, Any]) -> tuple[dict[str, Any], _Vocabulary]:
    """Return a byte-pair encoding whose merges the file lists."""
    name = fields.get(_LIST + "pre")
    if name not in CUTS:
        known = ", ".join(CUTS)
        raise _CannotRebuildError(f"it cuts text as {name!r} does, and only {known} can be rebuilt")
    cut = CUTS[name]
    vocabulary = _Vocabulary.read(fields, ("merges",))
    merges = [merge.split(" ") for merge in fields[_LIST + "merges"]]
    ids = vocabulary.ids
    if any(len(merge) != 2 or not {*merge, "".join(merge)} <= ids.keys() for merge in merges):
        raise _CannotRebuildError("its merges name tokens that it does not have")
    tokenizer = _tokenizer(
        vocabulary,
        model=_bpe(ids, merges, ignore_merges=cut.ignore_merges),
        normalizer={"type": "NFC"} if cut.composes else None,
        pre_tokenizer={"type": "Sequence", "pretokenizers": list(cut.steps)},
        decoder={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        edges=_edges(vocabulary, bos=cut.adds_bos),
    )
    return tokenizer, vocabulary


def _sentence_piece(fields: Mapping[str, Any]) -> tuple[dict[str, Any], _Vocabulary]:
    """Return SentencePiece's byte-pair encoding, whose merges follow from the scores of tokens."""
    for key in ("remove_extra_whitespaces", "precompiled_charsmap"):
        if fields.get(_LIST + key):
            raise _CannotRebuildError(f"it normalizes text ({key})")
    vocabulary = _Vocabulary.read(fields, ("scores",))
    ids, scores = vocabulary.ids, fields[_LIST + "scores"]
    if len(scores) != len(vocabulary.tokens):
        raise _CannotRebuildError(f"it has {len(vocabulary.tokens)} tokens and {len(scores)} scores")
    normal = {token: scores[i] for token, i in ids.items() if vocabulary.kinds[i] == _Kind.NORMAL}
    has_bytes = sum(kind == _Kind.BYTE for kind in vocabulary.kinds) == 256
    prefix = fields.get(_LIST + "add_space_prefix", True)
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    prepend = {"type": "Prepend", "prepend": _SPACE}
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        *([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []),
    ]
    tokenizer = _tokenizer(
        vocabulary,
        model=_bpe(
            ids,
            merges_by_score(normal),
            unk_token=vocabulary.special("unknown"),
            fuse_unk=True,
            byte_fallback=has_bytes,
        ),
        normalizer={"type": "Sequence", "normalizers": [prepend, spaces] if prefix else [spaces]},
        pre_tokenizer=None,
        decoder={"type": "Sequence", "decoders": steps},
        edges=_edges(vocabulary, bos=True),
    )
    return tokenizer, vocabulary


def _tokenizer(
    vocabulary: _Vocabulary,
    *,
    model: dict[str, Any],
    normalizer: dict[str, Any] | None,
    pre_tokenizer: dict[str, Any] | None,
    decoder: dict[str, Any],
    edges: tuple[str | None, str | None],
) -> dict[str, Any]:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": vocabulary.added(),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": _template(vocabulary, *edges) if any(edges) else None,
        "decoder": decoder,
        "model": model,
    }


def _bpe(ids: Mapping[str, int], merges: Sequence[Sequence[str]], **settings: Any) -> dict[str, Any]:
    defaults = {
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    return {"type": "BPE", **defaults, **settings, "vocab": ids, "merges": merges}


def _edges(vocabulary: _Vocabulary, *, bos: bool) -> tuple[str | None, str | None]:
    """Return the tokens that are put before and behind every text; ``bos`` is what an absent flag means."""
    found = []
    for name, default in (("bos", bos), ("eos", False)):
        wanted = vocabulary.fields.get(f"{_LIST}add_{name}_token", default)
        token = vocabulary.special(name) if wanted else None
        if wanted and token is None:
            raise _CannotRebuildError(f"it adds {name} to every text, and does not say which token that is")
        found.append(token)
    if vocabulary.fields.get(_LIST + "add_sep_token"):
        raise _CannotRebuildError("it adds sep to every text")
    return found[0], found[1]


def _template(vocabulary: _Vocabulary, bos: str | None, eos: str | None) -> dict[str, Any]:
    def around(sequence: str, type_id: int) -> list[dict[str, Any]]:
        pieces = [
            {"SpecialToken": {"id": token, "type_id": type_id}} if token else None for token in (bos, eos)
        ]
        middle = {"Sequence": {"id": sequence, "type_id": type_id}}
        return [piece for piece in (pieces[0], middle, pieces[1]) if piece]

    ids = vocabulary.ids
    return {
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": around("A", 0) + around("B", 1),
        "special_tokens": {
            token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in (bos, eos) if token
        },
    }


def _tokenizer_config(vocabulary: _Vocabulary, max_length: int) -> dict[str, Any]:
    named = {f"{name}_token": vocabulary.special(key) for name, key in _NAMES.items()}
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        **{key: token for key, token in named.items() if token is not None},
    }
    if "tokenizer.chat_template" in vocabulary.fields:
        config["chat_template"] = vocabulary.fields["tokenizer.chat_template"]
    return config
