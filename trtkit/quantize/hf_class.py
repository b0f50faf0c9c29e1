"""The class of transformers that computes a source's model, and its configuration, by what trtkit reads of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from trtkit.checkpoint.hf import HfCheckpoint, read_json
from trtkit.errors import InputError, TrtkitError

_CHOSEN_HERE = ("auto_map", "dtype", "torch_dtype", "attn_implementation", "_attn_implementation")
"""Keys of a config.json that say how to load a model, which is no concern of its publisher's here."""


class HfClass(NamedTuple):
    """What a model is made by."""

    kind: Any
    config: Any
    attention: str
    """Implementation of attention that computes all that the model has."""


def hf_class(source: HfCheckpoint) -> HfClass:
    """Return class and configuration; AutoConfig would ask the folder's own code, or for a known ``model_type``.

    Raises:
        InputError: This release of transformers has no such class, or cannot read the configuration.
    """
    import transformers

    name = source.config.architecture
    if not hasattr(transformers, name):
        raise InputError(f"transformers {transformers.__version__} has no {name}", path=source.folder)
    kind, raw = getattr(transformers, name), read_json(source.folder / "config.json")
    with refusals(source):
        config = kind.config_class.from_dict({key: raw[key] for key in raw if key not in _CHOSEN_HERE})
    # SDPA has no caps on scores, and eager attention adds ALiBi twice.
    capped = source.config.numerics.get("attn_logit_softcapping") is not None
    return HfClass(kind, config, "eager" if capped else "sdpa")


@contextmanager
def refusals(source: HfCheckpoint) -> Iterator[None]:
    """Tell what transformers does not take as an error of the source."""
    try:
        yield
    except (TrtkitError, MemoryError):
        raise
    except Exception as error:  # its checks of fields raise errors of their own, with no base but this
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"transformers cannot load it: {reason}", path=source.folder / "config.json"
        ) from error
