"""What a refusal proposes is planned without an error."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plan.published import published
from trtkit.catalog.formats import KV_CACHE, WEIGHTS
from trtkit.catalog.gpus import GPUS
from trtkit.contract.formats import KvCacheFormat, WeightFormat
from trtkit.errors import ContractError
from trtkit.plan import Machine, make_plan

MACHINE = Machine(cores=2, memory_bytes=None)
MODELS = (
    "llama-2-7b",
    "llama-3.1-8b",
    "qwen3-8b",
    "qwen3-30b-a3b",
    "gemma-3-1b",
    "gemma-2-9b",
    "mixtral-8x7b",
    "phi-3-mini",
)
HINT = "nearest that works: "
FIELDS = {"quantization.weights": WeightFormat, "quantization.kv_cache": KvCacheFormat}


def taken(contract, problems):
    """Return the contract as the hints have it."""
    quantization = contract.quantization
    for each in problems:
        name = each.hint.removeprefix(HINT)
        if each.key == "quantization.weights":
            quantization = quantization.only(WeightFormat(name))
        elif each.key == "quantization.kv_cache":
            quantization = quantization.model_copy(update={"kv_cache": KvCacheFormat(name)})
    return contract.model_copy(update={"quantization": quantization})


@given(
    name=st.sampled_from(MODELS),
    gpu=st.sampled_from(list(GPUS)),
    backend=st.sampled_from(["tensorrt", "llmapi", "edgellm", "vllm", "rtx"]),
    weights=st.sampled_from(list(WEIGHTS)),
    kv_cache=st.sampled_from(list(KV_CACHE)),
    tp=st.sampled_from([1, 2, 4]),
)
@settings(max_examples=300, deadline=None)
def test_the_nearest_that_is_proposed_is_planned(contract_with, name, gpu, backend, weights, kv_cache, tp):
    tp = 1 if backend == "rtx" else tp
    limits = {"max_batch_size": 1, "max_seq_len": 512, "max_num_tokens": 512}
    engine = {"backend": backend, "gpu": gpu, "limits": limits, "tensor_parallel": tp}
    contract = contract_with(engine=engine, quantization={"weights": weights, "kv_cache": kv_cache})
    try:
        make_plan(contract, published(name), MACHINE)
    except ContractError as error:
        refused = [each for each in error.problems if each.key in FIELDS and each.hint.startswith(HINT)]
        if not refused or any(" " in each.hint.removeprefix(HINT) for each in refused):
            return
        try:
            make_plan(taken(contract, refused), published(name), MACHINE)
        except ContractError as second:
            left = {each.key for each in second.problems}
            known = {each.key for each in error.problems} - {each.key for each in refused}
            if not left <= known:
                pytest.fail(str(second))


def test_what_a_model_s_layers_have_not_is_never_proposed(contract_with):
    engine = {"backend": "tensorrt", "gpu": "a100-80"}
    contract = contract_with(engine=engine, quantization={"weights": "fp8-rowwise"})
    with pytest.raises(ContractError) as caught:
        make_plan(contract, published("qwen3-8b"), MACHINE)
    assert caught.value.problems[0].hint == f"{HINT}int8-wo"
