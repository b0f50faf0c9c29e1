"""How the steps of an ensemble hang together: what Triton checks of it when it loads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from trtkit.errors import Problem
from trtkit.triton.lint.model import Model, Models

_ENSEMBLE = "ensemble"


def wiring_problems(model: Model, models: Models) -> Iterator[Problem]:
    """Check that every tensor is written once and read, and that both ends agree in data type and shape."""
    steps, name = model.config.ensemble_scheduling.step, model.config.platform
    if name != _ENSEMBLE:
        if model.config.HasField("ensemble_scheduling"):
            yield model.problem("has steps and is no ensemble", "platform", f'write platform: "{_ENSEMBLE}"')
        return
    if not steps:
        yield model.problem("an ensemble without steps", "ensemble_scheduling", "say which models it runs")
        return
    for number, step in enumerate(steps):
        for message, hint in _step_problems(model, models, step):
            yield model.problem(message, f"ensemble_scheduling.step[{number}]", hint)
    yield from _flow_problems(model)
    yield from _agreement(model, models)


def _step_problems(model: Model, models: Models, step: Any) -> Iterator[tuple[str, str]]:
    target, name = models.get(step.model_name), step.model_name
    for side, mapping in (("input_map", step.input_map), ("output_map", step.output_map)):
        if not mapping:
            yield f"has no {side}", "a step of Triton reads and writes something"
    if target is None:
        yield f"there is no model {name!r}", "add or rename it"
        return
    if model.name in _reached(target, models):
        yield f"model {name!r} leads back to this ensemble", "take one of the steps out"
    if step.model_version > 0 and str(step.model_version) not in {each.name for each in target.versions}:
        yield f"model {name!r} has no version {step.model_version}", "write model_version: -1, the newest"
    most, taken = model.config.max_batch_size, target.config.max_batch_size
    if taken < most:
        yield f"model {name!r} takes {taken} requests at once, the ensemble {most}", "make them equal"
    for side, mapping, declared in (
        ("input", step.input_map, target.config.input),
        ("output", step.output_map, target.config.output),
    ):
        names = {tensor.name for tensor in declared}
        for tensor in sorted(set(mapping) - names):
            yield f"model {name!r} has no {side} {tensor!r}", f"it has {', '.join(sorted(names))}"
    for tensor in target.config.input:
        if not tensor.optional and tensor.name not in step.input_map:
            yield f"model {name!r} needs {tensor.name!r}, which nothing is mapped to", "map a tensor to it"


def _reached(model: Model, models: Models) -> set[str]:
    """Return the names of the models that one leads to, its own included."""
    found, waiting = set(), [model.name]
    while waiting:
        name = waiting.pop()
        if name in models and name not in found:
            found.add(name)
            waiting += [step.model_name for step in models[name].config.ensemble_scheduling.step]
    return found


def _flow_problems(model: Model) -> Iterator[Problem]:
    steps, key = model.config.ensemble_scheduling.step, "ensemble_scheduling"
    given = [tensor.name for tensor in model.config.input]
    asked = [tensor.name for tensor in model.config.output]
    written = Counter([*given, *(outer for step in steps for outer in step.output_map.values())])
    read = {*asked, *(outer for step in steps for outer in step.input_map.values())}
    for name, times in written.items():
        if times > 1:
            yield model.problem(f"{name!r} is written {times} times", key, "give each its own name")
        if name not in read:
            yield model.problem(f"nothing reads {name!r}", key, "map it to an input, or take it out")
    for name in sorted(read - set(written)):
        yield model.problem(f"nothing writes {name!r}", key, "map an output to it, or take it out")
    late = sorted((read & set(written)) - _reachable(given, steps))
    if late and not read - set(written):
        message = f"{', '.join(map(repr, late))} cannot be had: the steps wait for each other"
        yield model.problem(message, key, "no step may need what comes of its own output")


def _reachable(given: Sequence[str], steps: Sequence[Any]) -> set[str]:
    """Return the tensors that are there once every step has run that can."""
    there, waiting = set(given), list(steps)
    while ready := [step for step in waiting if set(step.input_map.values()) <= there]:
        there.update(outer for step in ready for outer in step.output_map.values())
        waiting = [step for step in waiting if step not in ready]
    return there


def _agreement(model: Model, models: Models) -> Iterator[Problem]:
    first: dict[str, tuple[Model, Any]] = {
        tensor.name: (model, tensor) for tensor in (*model.config.input, *model.config.output)
    }
    for number, step in enumerate(model.config.ensemble_scheduling.step):
        target = models.get(step.model_name)
        if target is None:
            continue
        declared = {tensor.name: tensor for tensor in (*target.config.input, *target.config.output)}
        for inner, outer in sorted((*step.input_map.items(), *step.output_map.items())):
            if inner not in declared:
                continue
            other, tensor = first.setdefault(outer, (target, declared[inner]))
            if differs := _difference(other, tensor, target, declared[inner]):
                message = f"{outer!r} and {target.name}.{inner} differ in {differs}"
                key = f"ensemble_scheduling.step[{number}]"
                yield model.problem(message, key, f"make {other.name} and {target.name} agree")


def _difference(one: Model, left: Any, other: Model, right: Any) -> str:
    if left.data_type != right.data_type:
        return "data type"
    shapes = (list(left.dims), list(right.dims))
    # Triton lets the batch of one side meet a dimension of the other.
    whole = [
        [-1] * bool(each.config.max_batch_size) + dims
        for each, dims in zip((one, other), shapes, strict=True)
    ]
    return "" if _meet(*shapes) or _meet(*whole) else f"shape: {shapes[0]} and {shapes[1]}"


def _meet(left: Sequence[int], right: Sequence[int]) -> bool:
    """Tell whether two shapes can be the same; -1 stands for any size."""
    return len(left) == len(right) and all(
        -1 in pair or pair[0] == pair[1] for pair in zip(left, right, strict=True)
    )
