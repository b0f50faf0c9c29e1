"""A tiny random Llama with a real byte-level tokenizer, compiled once per session."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.checkpoint.conftest import save
from trtkit.catalog.model import ModelConfig
from trtkit.checkpoint.safetensors import numpy_dtype
from trtkit.checkpoint.trtllm import TrtllmCheckpoint
from trtkit.engine.cpu.compile import compile_engine
from trtkit.engine.cpu.runtime import CpuEngine
from trtkit.engine.inflight.engine import InflightEngine
from trtkit.engine.inflight.request import FinishReason, GenerationRequest, TokenChunk
from trtkit.plan.kv import kv_bytes_per_token
from trtkit.plan.types import EngineLimits, MemoryPlan, Plan, QuantPlan, Zones

VOCAB = 400
TEXT = "the quick brown fox jumps over a lazy dog, again and again. Zürich, 東京, 👩‍👩‍👧 and 🎉! \n\nUser: 123 {}\"'"


def tiny_config(**changes: Any) -> dict[str, Any]:
    config = {
        "architecture": "LlamaForCausalLM",
        "dtype": "bfloat16",
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_size": 16,
        "intermediate_size": 96,
        "hidden_act": "silu",
        "norm_epsilon": 1e-5,
        "position_embedding_type": "rope_gpt_neox",
        "max_position_embeddings": 512,
        "rotary_base": 10000.0,
        "rotary_scaling": None,
        "attn_bias": False,
        "mlp_bias": False,
        "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
    }
    return config | changes


def tiny_tensors(
    config: dict[str, Any], *, tied: bool = False, qk_norm: bool = False
) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    hidden, inner, size = config["hidden_size"], config["intermediate_size"], config["head_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]

    def weight(out: int, width: int) -> np.ndarray:
        return rng.standard_normal((out, width)) / np.sqrt(width)

    def norm(width: int) -> np.ndarray:
        return 1 + 0.1 * rng.standard_normal(width)

    tensors = {"transformer.vocab_embedding.weight": rng.standard_normal((config["vocab_size"], hidden))}
    for index in range(config["num_hidden_layers"]):
        layer = f"transformer.layers.{index}."
        linears = {
            "attention.qkv": (weight((heads + 2 * kv_heads) * size, hidden) * 2, "attn_bias"),
            "attention.dense": (weight(hidden, heads * size), "attn_bias"),
            "mlp.fc": (weight(inner, hidden), "mlp_bias"),
            "mlp.gate": (weight(inner, hidden), "mlp_bias"),
            "mlp.proj": (weight(hidden, inner) * 3, "mlp_bias"),
        }
        for name, (tensor, bias) in linears.items():
            tensors[layer + name + ".weight"] = tensor
            if config[bias]:
                tensors[layer + name + ".bias"] = rng.standard_normal(len(tensor))
        for name in ("input_layernorm", "post_layernorm"):
            tensors[layer + name + ".weight"] = norm(hidden)
        for name in ("q_layernorm", "k_layernorm") if qk_norm else ():
            tensors[layer + f"attention.{name}.weight"] = norm(size)
    tensors["transformer.ln_f.weight"] = norm(hidden)
    if not tied:
        tensors["lm_head.weight"] = weight(config["vocab_size"], hidden) * 4
    return tensors


def write_checkpoint(folder: Path, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Path:
    """Write tensors as they are, those in float64 in the checkpoint's data type."""
    plain = numpy_dtype(config["dtype"])
    stored = {
        name: each.astype(plain if each.dtype == np.float64 else each.dtype) for name, each in tensors.items()
    }
    folder.mkdir(parents=True)
    save(folder / "rank0.safetensors", stored)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[..., TrtllmCheckpoint]:
    """Write a tiny checkpoint with changes to its config, and open it."""

    def make(*, tied: bool = False, qk_norm: bool = False, **changes: Any) -> TrtllmCheckpoint:
        config = tiny_config(**changes)
        tensors = tiny_tensors(config, tied=tied, qk_norm=qk_norm)
        return TrtllmCheckpoint.open(write_checkpoint(tmp_path / "checkpoint", config, tensors))

    return make


def tiny_plan(**limits: int) -> Plan:
    model = ModelConfig("LlamaForCausalLM", 64, 2, 4, 2, 16, 96, VOCAB, "silu", 1e-5, 512, 1e4, None, False, False,
                        False, "bfloat16", 1, (2,), None)  # fmt: skip
    shape = {"max_batch_size": 32, "max_input_len": 200, "max_seq_len": 300, "max_num_tokens": 128}
    kv_bytes = kv_bytes_per_token("cpu", num_layers=2, num_kv_heads=2, head_size=16)
    return Plan(
        name="tiny", backend="cpu", gpu=None, tensor_parallel=1, pipeline_parallel=1, threads=1, dtype="bfloat16",
        model=model, quantization=QuantPlan("none", "auto", None, None),
        limits=EngineLimits(**(shape | {"tokens_per_block": 32} | limits)),
        memory=MemoryPlan(0, 0, kv_bytes, 320, 320 * 32, None),
        zones=Zones(128, 7680, 32), enable_block_reuse=True,
    )  # fmt: skip


@pytest.fixture(scope="session")
def plan() -> Plan:
    """The plan of the tiny engine."""
    return tiny_plan()


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """A byte-level BPE with some merges, of the tiny model's vocabulary size."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, initial_alphabet=alphabet, special_tokens=["<s>", "<|im_end|>"], show_progress=False
    )
    tokenizer.train_from_iterator([TEXT] * 4, trainer)
    return tokenizer


@pytest.fixture(scope="session")
def tokenizer_dir(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="session")
def engine_dir(tmp_path_factory: pytest.TempPathFactory, plan: Plan) -> Path:
    """The compiled tiny engine."""
    root = tmp_path_factory.mktemp("engine")
    config = tiny_config()
    write_checkpoint(root / "checkpoint", config, tiny_tensors(config))
    (root / "engine").mkdir()
    compile_engine(root / "checkpoint", root / "engine", plan)
    return root / "engine"


@dataclass
class Reply:
    """Everything that came back for one request."""

    chunks: list[TokenChunk] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)
    first_s: float = 0.0
    """When the first chunk came."""

    def __call__(self, chunk: TokenChunk) -> None:
        assert not self.done.is_set(), "a chunk after the last one"
        self.first_s = self.first_s or time.monotonic()
        self.chunks.append(chunk)
        if chunk.finish_reason is not None:
            self.done.set()

    def wait(self) -> Reply:
        assert self.done.wait(60), "no last chunk"
        return self

    @property
    def tokens(self) -> list[int]:
        return [token for chunk in self.chunks for token in chunk.tokens]

    @property
    def reason(self) -> FinishReason | None:
        return self.chunks[-1].finish_reason


class Client:
    """An engine and a way to ask it."""

    def __init__(self, engine: InflightEngine) -> None:
        self.engine = engine
        self._count = 0

    def start(self, prompt: list[int], max_tokens: int = 24, **fields: Any) -> Reply:
        self._count += 1
        request = GenerationRequest(fields.pop("request_id", f"r{self._count}"), prompt, max_tokens, **fields)
        reply = Reply()
        self.engine.submit(request, reply)
        return reply

    def ask(self, prompt: list[int], max_tokens: int = 24, **fields: Any) -> Reply:
        return self.start(prompt, max_tokens, **fields).wait()


@contextmanager
def running(
    engine_dir: Path, tokenizer_dir: Path | None = None, *, open_engine: Callable[..., Any] = CpuEngine
) -> Iterator[Client]:
    engine = open_engine(engine_dir, tokenizer_dir)
    yield Client(engine)
    engine.close()


@pytest.fixture(scope="session")
def client(engine_dir: Path) -> Iterator[Client]:
    """An engine without a tokenizer."""
    with running(engine_dir) as client:
        yield client


@pytest.fixture(scope="session")
def text_client(engine_dir: Path, tokenizer_dir: Path) -> Iterator[Client]:
    """An engine with a tokenizer."""
    with running(engine_dir, tokenizer_dir) as client:
        yield client


@pytest.fixture
def serve() -> Iterator[Callable[[Path], Client]]:
    """Open further engines, closed after the test."""
    with ExitStack() as stack:
        yield lambda engine_dir: stack.enter_context(running(engine_dir))


@pytest.fixture
def with_limits(plan: Plan) -> Callable[..., Plan]:
    """The plan with other limits."""
    return lambda **limits: replace(plan, limits=replace(plan.limits, **limits))
