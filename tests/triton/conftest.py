"""A plan, two tokenizers trained here, and one real Triton over a tiny random engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from trtkit.plan.model import ModelConfig
from trtkit.plan.types import EngineLimits, MemoryPlan, Plan, QuantPlan, Zones

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
        vocab_size=vocab_size, special_tokens=["<unk>", *SPECIAL, *bytes_], show_progress=False, limit_alphabet=60
    )
    tokenizer.train_from_iterator(CORPUS[:1], trainer)
    tokenizer = _unmark_bytes(tokenizer, bytes_)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def _unmark_bytes(tokenizer: Tokenizer, bytes_: list[str]) -> Tokenizer:
    """Byte tokens must be in the vocabulary without being special."""
    import json

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
        max_position_embeddings=2048,
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
        limits=EngineLimits(8, 512, 1024, 2048, 32),
        memory=MemoryPlan(1 << 20, 1 << 20, 1024, 256, 256 * 32, None),
        zones=Zones(2048, 256 * 24, 8),
        enable_block_reuse=True,
    )
