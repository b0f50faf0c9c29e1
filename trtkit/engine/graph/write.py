"""From a TensorRT-LLM checkpoint to an ONNX file."""

from __future__ import annotations

from pathlib import Path

from trtkit.checkpoint.progress import Progress, silent
from trtkit.engine.graph.file import write_files
from trtkit.engine.graph.network import Network
from trtkit.engine.graph.spec import DATA_FILE, MODEL_FILE, GraphFacts, GraphSpec
from trtkit.engine.graph.supported import open_supported


def write_graph(checkpoint: Path, out: Path, spec: GraphSpec, progress: Progress = silent) -> GraphFacts:
    """Write ``model.onnx`` and ``model.onnx.data`` into the folder ``out``, which exists.

    Raises:
        ContractError: The checkpoint is damaged, or holds what no graph can express; with all problems.
        StageError: A tensor cannot be meant, or is of no use.
        InputError: A weight is outside of the range of ``spec.dtype``.
        EnvironmentLacks: The package ``onnx`` is not installed.
    """
    network = Network(open_supported(checkpoint, spec), spec)
    graph = network.build()
    data_bytes = write_files(graph, out, progress)
    present = (present for _, present in spec.cache_names(network.decoder.num_layers))
    return GraphFacts(
        model=out / MODEL_FILE,
        data=out / DATA_FILE,
        cache=network.cache,
        vocab_size=network.vocab_size,
        linears=network.linear.forms,
        attentions=tuple(network.attention.names),
        rotaries=tuple(network.attention.rotaries),
        cache_updates=tuple(present),
        data_bytes=data_bytes,
        paged=spec.paged,
    )
