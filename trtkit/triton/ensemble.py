"""The ensemble's three steps: preprocessing, engine, postprocessing."""

from __future__ import annotations

from dataclasses import dataclass

from trtkit.conventions import ENGINE_MODEL, POSTPROCESSING_MODEL, PREPROCESSING_MODEL
from trtkit.triton.generation import Generation
from trtkit.triton.tensors import CONTEXT_INPUT, CONTEXT_OUTPUT
from trtkit.triton.wiring import FROM_PREPROCESSING, RESULTS, TO_ENGINE, TO_PREPROCESSING


@dataclass(frozen=True)
class Step:
    """One model of the ensemble: its own tensor names to the ensemble's tensor names."""

    model: str
    inputs: dict[str, str]
    outputs: dict[str, str]


def _internal(preprocessing_output: str) -> str:
    """Name a tensor between preprocessing and engine as the stock ensemble does."""
    if preprocessing_output in {"OUT_END_ID", "OUT_PAD_ID"}:
        return preprocessing_output.replace("OUT", "_PREPROCESSOR")
    return f"_{preprocessing_output}"


def ensemble_steps(*, with_context: bool, generation: Generation) -> tuple[Step, Step, Step]:
    """Return the steps; ``with_context`` also wires the CPU engine's context into postprocessing."""
    preprocessed = {engine_input: _internal(output) for engine_input, output in FROM_PREPROCESSING.items()}
    context_out = {CONTEXT_OUTPUT.name: "_CONTEXT_IDS"} if with_context else {}
    context_in = {CONTEXT_INPUT.name: "_CONTEXT_IDS"} if with_context else {}
    tokens = {"output_ids": "_TOKENS_BATCH", "sequence_length": "_SEQUENCE_LENGTH"}
    results = {name: name for name in RESULTS if name not in generation.absent}
    return (
        Step(
            PREPROCESSING_MODEL,
            TO_PREPROCESSING,
            {output: _internal(output) for output in FROM_PREPROCESSING.values()},
        ),
        Step(ENGINE_MODEL, preprocessed | _asked(generation), tokens | context_out | results),
        Step(
            POSTPROCESSING_MODEL,
            {"TOKENS_BATCH": "_TOKENS_BATCH", "SEQUENCE_LENGTH": "_SEQUENCE_LENGTH"} | context_in,
            {"OUTPUT": "text_output"},
        ),
    )


def _asked(generation: Generation) -> dict[str, str]:
    """Return the engine's inputs that clients give, by the names that its line has for them."""
    return {
        generation.renamed.get(name, name): source
        for name, source in TO_ENGINE.items()
        if name not in generation.absent
    }
