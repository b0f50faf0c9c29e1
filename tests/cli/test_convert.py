"""``trtkit convert``: its data types, and a dry run that refuses what the run itself would."""

from __future__ import annotations

import pytest

from tests.checkpoint.conftest import tiny_llama  # noqa: F401 - a fixture


def untie(tensors):
    tensors["lm_head.weight"] = -tensors["model.embed_tokens.weight"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--export", "hf", "--weights", "int8-wo"], "--weights: W8A16 cannot be exported"),
        (["--weights", "int8-wo", "--exclude", "*router"], "add lm_head to --exclude"),
        (
            ["--export", "hf", "--kv-cache", "fp8"],
            "--kv-cache: an FP8 KV cache beside plain weights has no form",
        ),
        (["--export", "hf", "--tp", "2"], "is for any number of ranks"),
    ],
)
def test_a_dry_run_refuses_what_cannot_be_exported(trtkit, tiny_llama, tmp_path, options, message):  # noqa: F811
    folder = tiny_llama()
    for dry in ([], ["--dry-run"]):
        code, _, err = trtkit("convert", folder, "-o", tmp_path / "out", *options, *dry)
        assert (code, message in err) == (2, True)


@pytest.mark.parametrize("form", ["trtllm", "hf"])
def test_a_dry_run_refuses_a_place_that_is_taken(trtkit, tiny_llama, tmp_path, form):  # noqa: F811
    folder, mine = tiny_llama(), tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("x")
    for out in (folder, mine, mine / "thesis.tex", mine / "thesis.tex" / "out"):
        assert trtkit("convert", folder, "-o", out, "--export", form, "--dry-run")[0] == 2
        assert trtkit("convert", folder, "-o", out, "--export", form)[0] == 2


def test_a_dry_run_compares_a_head_that_is_tied(trtkit, tiny_llama, tmp_path):  # noqa: F811
    folder = tiny_llama(tie_word_embeddings=True, edit=untie)
    code, _, err = trtkit("convert", folder, "-o", tmp_path / "out", "--dry-run")
    assert (code, "lm_head.weight differs from" in err) == (2, True)


def test_a_dry_run_of_what_can_be_written_writes_nothing(trtkit, tiny_llama, tmp_path):  # noqa: F811
    code, text, _ = trtkit("convert", tiny_llama(), "-o", tmp_path / "out", "--dry-run")
    assert (code, "dry run" in text, (tmp_path / "out").exists()) == (0, True, False)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_convert_takes_the_types_of_the_contract(trtkit, tiny_llama, tmp_path, dtype):  # noqa: F811
    assert trtkit("convert", tiny_llama(), "-o", tmp_path / "out", "--dtype", dtype)[0] == 0
    assert trtkit("verify", tmp_path / "out")[0] == 0
