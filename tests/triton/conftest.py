"""A plan, two tokenizers trained here, and one real Triton over a tiny random engine."""

from __future__ import annotations

import json
import queue
import time
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from trtkit.catalog.model import ModelConfig
from trtkit.checkpoint.convert import convert
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.recipe import Plain
from trtkit.checkpoint.safetensors import SafetensorsWriter, TensorSpec
from trtkit.engine.cpu.compile import compile_engine
from trtkit.plan.types import EngineLimits, MemoryPlan, Plan, QuantPlan, Zones
from trtkit.triton.folder import write
from trtkit.triton.parts import install
from trtkit.triton.repository import render
from trtkit.triton.server import TritonServer

CORPUS = [
    "The quick brown fox jumps over the lazy dog.\n\n    def f(x):\n        return {'a': x}\n",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "日本語のテキストと中文文本。 👩‍👩‍👧 🇩🇪 e\u0301 ñ naïve",
] * 20
END, START = "<|end|>", "<|im_start|>"
SPECIAL = ["<pad>", END, START]


def byte_level(vocab_size: int = 480) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def sentencepiece_like(vocab_size: int = 520) -> Tokenizer:
    """Llama-2's kind: a space is U+2581, one is put before the text, unknown characters become byte tokens."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<unk>", *SPECIAL, *bytes_],
        show_progress=False,
        limit_alphabet=60,
    )
    tokenizer.train_from_iterator(CORPUS[:1], trainer)
    tokenizer = _unmark_bytes(tokenizer, bytes_)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def _unmark_bytes(tokenizer: Tokenizer, bytes_: list[str]) -> Tokenizer:
    """Byte tokens must be in the vocabulary without being special."""
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] not in bytes_]
    return Tokenizer.from_str(json.dumps(state))


@pytest.fixture(scope="session")
def byte_level_tokenizer() -> Tokenizer:
    return byte_level()


@pytest.fixture(scope="session", params=[byte_level, sentencepiece_like], ids=["byte-level", "sentencepiece"])
def tokenizer(request):
    return request.param()


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    byte_level().save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="session")
def plan() -> Plan:
    model = ModelConfig(
        architecture="LlamaForCausalLM",
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_size=16,
        intermediate_size=96,
        vocab_size=480,
        hidden_act="silu",
        norm_epsilon=1e-5,
        max_position_embeddings=8192,
        rotary_base=10_000.0,
        rotary_scaling=None,
        attn_bias=False,
        mlp_bias=False,
        tie_word_embeddings=False,
        dtype="float32",
        bos_token_id=None,
        eos_token_ids=(1,),
        pad_token_id=0,
    )
    return Plan(
        name="tiny",
        backend="cpu",
        gpu=None,
        tensor_parallel=1,
        pipeline_parallel=1,
        threads=1,
        dtype="float32",
        model=model,
        quantization=QuantPlan("none", "auto", None, None),
        limits=EngineLimits(8, 512, 8000, 2048, 32),
        memory=MemoryPlan(1 << 20, 1 << 20, 1024, 512, 512 * 32, None),
        zones=Zones(2048, 512 * 24, 8),
        enable_block_reuse=True,
    )


def write_random_llama(folder: Path, model: ModelConfig) -> None:
    """A Hugging Face folder whose greedy text wanders: big embeddings, small everything else."""
    folder.mkdir()
    config = {
        "architectures": [model.architecture],
        "model_type": "llama",
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_size,
        "intermediate_size": model.intermediate_size,
        "vocab_size": model.vocab_size,
        "hidden_act": model.hidden_act,
        "rms_norm_eps": model.norm_epsilon,
        "max_position_embeddings": model.max_position_embeddings,
        "rope_theta": model.rotary_base,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "eos_token_id": 1,
        "pad_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config))
    tensors = dict(_random_tensors(model, np.random.default_rng(7)))
    specs = [TensorSpec(name, "float32", values.shape) for name, values in tensors.items()]
    with SafetensorsWriter(folder / "model.safetensors", specs) as writer:
        for spec in writer.order:
            writer.write(spec, [tensors[spec.name]])


def _random_tensors(model: ModelConfig, rng: np.random.Generator):
    hidden, kv = model.hidden_size, model.num_kv_heads * model.head_size

    def normal(*shape):
        return rng.normal(0, shape[-1] ** -0.5, shape).astype(np.float32)

    yield "model.embed_tokens.weight", normal(model.vocab_size, hidden) * 8
    yield "lm_head.weight", normal(model.vocab_size, hidden) * 3
    yield "model.norm.weight", np.ones(hidden, np.float32)
    for layer in range(model.num_layers):
        prefix = f"model.layers.{layer}."
        for name, rows in (("q", hidden), ("k", kv), ("v", kv), ("o", hidden)):
            yield f"{prefix}self_attn.{name}_proj.weight", normal(rows, hidden) * 2
        yield f"{prefix}mlp.gate_proj.weight", normal(model.intermediate_size, hidden) * 2
        yield f"{prefix}mlp.up_proj.weight", normal(model.intermediate_size, hidden) * 2
        yield f"{prefix}mlp.down_proj.weight", normal(hidden, model.intermediate_size) * 2
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{prefix}{norm}.weight", np.ones(hidden, np.float32)


@pytest.fixture(scope="session")
def repo(tmp_path_factory, plan, tokenizer_dir) -> Path:
    """A whole repository: rendered, with a compiled engine and a tokenizer in place."""
    work = tmp_path_factory.mktemp("triton")
    write_random_llama(work / "hf", plan.model)
    convert(
        HfCheckpoint.open(work / "hf"), work / "checkpoint", dtype="float32", recipe=Plain(plan.quantization)
    )
    (work / "engine").mkdir()
    compile_engine(work / "checkpoint", work / "engine", plan)
    write(render(plan), work / "repo")
    install(work / "repo", work / "engine", tokenizer_dir)
    return work / "repo"


@pytest.fixture(scope="session")
def server(repo, tmp_path_factory):
    log_file = tmp_path_factory.mktemp("log") / "triton.log"
    with TritonServer(repo, log_file=log_file) as running:
        running.wait_ready(60)
        yield running


class Stream:
    """One request on a gRPC stream of its own: responses as dicts of arrays, then ``error`` if there was one."""

    def __init__(self, address: str, model: str, request_id: str, parameters, inputs) -> None:
        self.error: Exception | None = None
        self.finals = 0
        self._answers: queue.Queue = queue.Queue()
        self._client = grpcclient.InferenceServerClient(address)
        self._client.start_stream(
            lambda result, error: self._answers.put(error or result), headers={"triton_grpc_error": "true"}
        )
        self._client.async_stream_infer(
            model,
            [_input(name, values) for name, values in inputs.items()],
            request_id=request_id,
            enable_empty_final_response=True,
            parameters=parameters,
        )

    def __iter__(self):
        while not self.finals and self.error is None:
            answer = self._answers.get(timeout=30)
            if isinstance(answer, Exception):
                self.error = answer
                break
            message = answer.get_response()
            self.finals += message.parameters["triton_final_response"].bool_param
            if message.outputs:
                yield {output.name: answer.as_numpy(output.name) for output in message.outputs}
        self._client.close()

    def cancel(self) -> None:
        self._client.stop_stream(cancel_requests=True)
        self._client.close()


TYPES = {
    bool: (bool, "BOOL"),
    int: (np.int32, "INT32"),
    float: (np.float32, "FP32"),
    str: (object, "BYTES"),
    bytes: (object, "BYTES"),
}


def _input(name: str, value):
    """A scalar becomes [[value]], a list of rows stays."""
    rows = value if isinstance(value, list) else [[value]]
    first = next(iter(np.ravel(np.array(rows, object))), 0)
    dtype, triton_type = (np.uint64, "UINT64") if name == "seed" else TYPES[type(first)]
    array = np.array(rows, dtype)
    tensor = grpcclient.InferInput(name, array.shape, triton_type)
    tensor.set_data_from_numpy(array)
    return tensor


@pytest.fixture
def ask(server):
    def start(model: str, *, request_id: str = "", parameters=None, **inputs) -> Stream:
        return Stream(server.grpc_address, model, request_id, parameters, inputs)

    return start


@pytest.fixture
def gauge(server):
    """Read one gauge of the metrics endpoint."""

    def read(label: str) -> float:
        with urlopen(f"http://{server.host}:{server.metrics_port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return next(
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith("nv_trt_llm") and label in line
        )

    return read


@pytest.fixture
def eventually():
    """Wait for a condition; what lies behind it happens in another process."""

    def wait(condition, within_s: float = 20) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, f"not within {within_s} s"
            time.sleep(0.01)

    return wait
