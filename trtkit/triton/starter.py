"""How a repository that lies somewhere is started, whoever wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit.catalog.parallel import GPUS_PER_NODE
from trtkit.catalog.trtllm import NEWEST, PROFILES
from trtkit.errors import EnvironmentLacks, InputError
from trtkit.triton.launch import SCRIPT, Launch, Mode, Ports

if TYPE_CHECKING:
    from trtkit.triton.lint.model import Model


def read_launch(
    repo: Path, ports: Ports | None = None, *, hostfile: str = "", shm_prefix: str = ""
) -> Launch | None:
    """Return the launch of a repository that needs NVIDIA's image; None for one that any tritonserver runs.

    Raises:
        InputError: A configuration cannot be read, an engine does not say how many ranks it has, or nothing can start
            what is there.
    """
    from trtkit.triton.lint import read_models
    from trtkit.triton.lint.model import TENSORRT

    models = read_models(repo)
    engines = [model for model in models.values() if model.config.backend == TENSORRT]
    ports = ports or Ports()
    if engines:
        return _of_engines(engines, ports, hostfile, shm_prefix)
    for model in models.values():
        if model.is_llmapi or model.config.backend == "vllm":
            mode = Mode.LLMAPI if model.is_llmapi else Mode.PLAIN
            settings = _settings(model)
            world, nodes = _ranks(settings)
            place = _mount(model, str(settings.get("model", "")))
            return Launch(place, world, mode, (model.name,), nodes, ports=ports, shm_prefix=shm_prefix)
    return None


def refuse_here(repo: Path, launch: Launch) -> None:
    """Say where a repository can be served.

    Raises:
        EnvironmentLacks: Always.
    """
    tag = _tag(repo)
    kind = "vllm" if launch.mode is Mode.PLAIN else "trtllm"
    image = f"nvcr.io/nvidia/tritonserver:{tag}-{kind}-python-py3"
    how = f"bash {launch.repository}/{SCRIPT}" if (repo / SCRIPT).is_file() else launch.line()
    raise EnvironmentLacks(
        "the tritonserver of this machine has no back end for it",
        path=repo,
        hint=f"in {image}, with this folder at {launch.repository}: {how}",
    )


def _tag(repo: Path) -> str:
    from trtkit.triton.lint import read_models

    lines = [model.built.line for model in read_models(repo).values() if model.built]
    return PROFILES[lines[0] or NEWEST if lines else NEWEST].images[-1]


def _of_engines(engines: list[Model], ports: Ports, hostfile: str, shm_prefix: str) -> Launch:
    worlds = {model.name: model.built.world for model in engines if model.built}
    unknown = [model for model in engines if model.name not in worlds]
    if unknown:
        raise InputError(
            f"no engine of TensorRT-LLM lies where {unknown[0].name} wants it: nothing says how many ranks it has",
            path=unknown[0].file,
            hint="build it, or link it in: trtkit repo CONTRACT -o DIR --engine DIR; what is planned, the repository's"
            f" {SCRIPT} shows",
        )
    world = max(worlds.values())
    # A number that the configuration gives goes before what a machine usually has.
    given = engines[0].text("num_nodes")
    gpus = min(model.built.gpus_per_node for model in engines if model.built)
    nodes = int(given) if given.isascii() and given.isdigit() else -(-world // gpus)
    many = len(engines) > 1 or sum(group.count for group in engines[0].config.instance_group) > 1
    return Launch(
        _mount(engines[0], engines[0].text("gpt_model_path")),
        world,
        Mode.ORCHESTRATOR if many else Mode.LEADER,
        tuple(sorted(worlds)),
        nodes,
        hostfile,
        shm_prefix,
        ports,
    )


def _mount(model: Model, path: str) -> str:
    """Return where the server sees the repository, from a path below the model."""
    return model.split(path)[0] or str(model.folder.parent.absolute())


def _settings(model: Model) -> Mapping[str, Any]:
    from trtkit.triton.lint.settings import read_settings

    name = "model.yaml" if model.is_llmapi else "model.json"
    file = next((path for version in model.versions if (path := version / name).is_file()), None)
    settings = read_settings(file) if file else None
    if settings is None:
        raise InputError(
            f"there is no {name} that can be read", path=file or model.folder, hint="run trtkit repo again"
        )
    return settings


def _ranks(settings: Mapping[str, Any]) -> tuple[int, int]:
    """Return ranks and machines of a back end that starts them by itself."""
    usual = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "gpus_per_node": GPUS_PER_NODE}
    given = [(settings.get(key), size) for key, size in usual.items()]
    tp, pp, gpus = (size if type(size) is int and size > 0 else least for size, least in given)
    return tp * pp, -(-tp * pp // gpus)
