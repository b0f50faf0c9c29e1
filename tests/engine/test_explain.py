from trtkit.engine.explain import changes, why_not_a_hit
from trtkit.engine.store import CachePolicy, Stage, Store


def stage(**inputs):
    def write(out):
        (out / "weights").write_bytes(b"abc")
        return {}

    return Stage("compile", inputs, write)


def plan(**fields):
    return {"plan": {"limits.max_batch_size": 4, "limits.max_seq_len": 64, "threads": 1} | fields}


def test_the_first_build_has_nothing_to_be_compared_with(tmp_path):
    assert why_not_a_hit(Store(tmp_path), stage(**plan())) == ("nothing that compile makes is in the store",)


def test_a_hit_has_no_reasons(tmp_path):
    Store(tmp_path).produce(stage(**plan()))
    assert why_not_a_hit(Store(tmp_path), stage(**plan())) == ()


def test_a_change_is_told_in_the_contract_s_words_with_both_values(tmp_path):
    Store(tmp_path).produce(stage(**plan()))
    reasons = why_not_a_hit(Store(tmp_path), stage(**plan(**{"limits.max_batch_size": 8})))
    assert reasons == ("engine.limits.max_batch_size: 4 -> 8",)


def test_the_nearest_earlier_product_is_compared(tmp_path):
    store = Store(tmp_path)
    store.produce(stage(**plan(threads=2)))
    store.produce(stage(**plan(**{"limits.max_batch_size": 9, "limits.max_seq_len": 9, "threads": 9})))
    assert why_not_a_hit(store, stage(**plan())) == ("engine.threads: 2 -> 1",)


def test_damage_goes_before_differences(tmp_path):
    product = Store(tmp_path).produce(stage(**plan()))
    (product.path / "weights").unlink()
    assert why_not_a_hit(Store(tmp_path), stage(**plan())) == ("its product is damaged: weights is missing",)


def test_a_policy_that_looks_at_nothing_says_so(tmp_path):
    Store(tmp_path).produce(stage(**plan()))
    (reason,) = why_not_a_hit(Store(tmp_path, CachePolicy.REDO), stage(**plan()))
    assert "--cache redo" in reason


def test_sources_tools_and_code_have_names():
    old = {"code": "a" * 64, "source": {"model.safetensors": "b" * 64}, "backend": {"openvino": "2026.3"}}
    new = {"code": "c" * 64, "source": {"other.safetensors": "b" * 64}, "backend": {"openvino": "2026.4"}}
    assert {str(change) for change in changes(old, new)} == {
        "trtkit's own code: aaaaaaaaaaaa -> cccccccccccc",
        "model.source: model.safetensors: bbbbbbbbbbbb -> absent",
        "model.source: other.safetensors: absent -> bbbbbbbbbbbb",
        "version or setting of openvino: 2026.3 -> 2026.4",
    }


def test_a_key_and_what_follows_from_it_are_one_change():
    old = {"plan": {"quantization.weights": "none", "quantization.quant_algo": None}}
    new = {"plan": {"quantization.weights": "int8-wo", "quantization.quant_algo": "W8A16"}}
    assert [str(change) for change in changes(old, new)] == ["quantization.weights: none -> int8-wo"]


def test_lists_and_tuples_are_equal_as_in_json():
    assert changes({"plan": {"dtype": [1, 2]}}, {"plan": {"dtype": (1, 2)}}) == []
