"""How a repository that lies somewhere is started, whoever wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trtkit.catalog.trtllm import NEWEST, PROFILES
from trtkit.errors import EnvironmentLacks, InputError
from trtkit.triton.launch import SCRIPT, Launch, Mode, Ports
from trtkit.triton.runtime import GPUS_PER_NODE

if TYPE_CHECKING:
    from trtkit.triton.lint.model import Model


def read_launch(
    repo: Path, ports: Ports | None = None, *, hostfile: str = "", shm_prefix: str = "trtkit"
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
    place = str(repo.absolute())
    for model in models.values():
        if model.is_llmapi:
            world, nodes = _llmapi_ranks(model)
            return Launch(place, world, Mode.LLMAPI, (model.name,), nodes, ports=ports, shm_prefix=shm_prefix)
        if model.config.backend == "vllm":
            return Launch(place, 1, Mode.PLAIN, (model.name,), ports=ports, shm_prefix=shm_prefix)
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
            hint="build it, or link it in: trtkit repo CONTRACT -o DIR --engine DIR",
        )
    world = max(worlds.values())
    # A number that the configuration gives goes before what a machine usually has.
    given = engines[0].text("num_nodes")
    nodes = int(given) if given.isdigit() else -(-world // GPUS_PER_NODE)
    many = len(engines) > 1 or sum(group.count for group in engines[0].config.instance_group) > 1
    return Launch(
        _mount(engines[0]),
        world,
        Mode.ORCHESTRATOR if many else Mode.LEADER,
        tuple(sorted(worlds)),
        nodes,
        hostfile,
        shm_prefix,
        ports,
    )


def _mount(model: Model) -> str:
    """Return where the server sees the repository: what comes before the model in its engine's path."""
    before, found, _ = model.text("gpt_model_path").partition(f"/{model.name}/")
    return before if found and before else str(model.folder.parent.absolute())


def _llmapi_ranks(model: Model) -> tuple[int, int]:
    """Return ranks and machines of the Python API's settings."""
    import yaml

    file = model.versions[0] / "model.yaml"
    try:
        settings = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
        sizes = [int(settings.get(f"{kind}_parallel_size", 1)) for kind in ("tensor", "pipeline")]
        per_node = int(settings.get("gpus_per_node") or GPUS_PER_NODE)
    except (OSError, ValueError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise InputError(f"cannot be read: {error}", path=file, hint="run trtkit repo again") from error
    world = sizes[0] * sizes[1]
    return world, -(-world // per_node)
