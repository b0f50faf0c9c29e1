import gzip
import json
from importlib import resources

import numpy as np
import pytest

from tests.checkpoint.conftest import tiny_llama  # noqa: F401 - a fixture
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.errors import EnvironmentLacks, InputError
from trtkit.quantize.calibrate import texts
from trtkit.quantize.calibrate.data import Data
from trtkit.quantize.calibrate.samples import draw, held_out


def origins(path, column="text"):
    return [record.text for record in Data(path, column).records()]


def lines(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_json_lines_have_a_text_each(tmp_path):
    path = lines(tmp_path / "a.jsonl", {"text": "one"}, {"text": "two", "id": 2})
    assert origins(path) == ["one", "two"]


def test_a_long_text_comes_in_parts_of_whole_lines_and_of_bounded_size(tmp_path):
    text = "".join(f"line {number} ends with a euro €\n" for number in range(30_000))
    (tmp_path / "a.txt").write_text(text)
    lines(tmp_path / "a.jsonl", {"text": text})
    for name in ("a.txt", "a.jsonl"):
        parts = origins(tmp_path / name)
        assert "".join(parts) == text
        assert len(parts) == len(text) // 2**18 + 1
        assert all(part.endswith("€\n") for part in parts)
    second = list(Data(tmp_path / "a.txt").records())[1]
    assert second.text.startswith(f"line {int(second.origin.rpartition(' ')[2]) - 1} ends")


def test_another_column_can_be_named(tmp_path):
    assert origins(lines(tmp_path / "a.jsonl", {"article": "one"}), "article") == ["one"]


def test_a_folder_is_read_by_its_files_whatever_it_is_called(tmp_path):
    folder = tmp_path / "cnn_dailymail.parquet" / "x.jsonl.d"
    lines(folder / "b.jsonl", {"text": "two"})
    (folder / "a.txt").write_text("one")
    (folder / "README.md").write_text("not a text")
    assert origins(tmp_path / "cnn_dailymail.parquet") == ["one", "two"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "one"}\n{"body": "two"}\n', "there is no field 'text'; line 2 has body"),
        ("a.jsonl", b'{"text": "one"}\n{"text": "\xff"}\n', "line 2 is not UTF-8: byte 0xff"),
        ("a.jsonl", b'{"text": "one"}\nnot json\n', "line 2 is not JSON"),
        ("a.jsonl", b"[1]\n", "line 1 is not a JSON object"),
        ("a.jsonl", b'{"text": 5}\n', "line 1: 'text' is int, not a text"),
        ("a.jsonl", b'{"text": null}\n', "line 1: 'text' is null\n    fix: leave such rows out"),
        ("a.txt", b"one\ntwo \xfe\n", "line 2 is not UTF-8: byte 0xfe"),
        ("a.txt", b"one\n" * 100_000 + b"two \xfe\n", "line 100001 is not UTF-8: byte 0xfe"),
        ("a.txt", b"one \xe2\x82", "line 1 is not UTF-8: byte 0xe2"),
        ("a.jsonl", b'{"text": "one"}\n{"text": "x\\ud83d"}\n', r"line 2 has half a letter, \ud83d without"),
        ("a.jsonl", gzip.compress(b'{"text": "one"}\n'), "is packed with gzip"),
        ("a.csv", b"text\none\n", "is in no form that is known"),
        ("a.parquet", b"text", "does not begin like one"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_place(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as error:
        origins(tmp_path / name)
    assert message in str(error.value)


def test_data_that_is_not_there_is_not_fetched(tmp_path):
    with pytest.raises(InputError, match="never fetched"):
        origins(tmp_path / "cnn_dailymail")
    with pytest.raises(InputError, match=r"no \.jsonl, \.txt, \.parquet file"):
        origins(tmp_path)


def test_a_field_that_is_there_twice_is_refused(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text('{"text": "a", "text": "b"}')
    with pytest.raises(InputError, match="line 1 names twice: text"):
        origins(path)


def test_parquet_is_known_by_its_content(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    path = tmp_path / "data.txt"
    parquet.write_table(pa.table({"text": ["one", "two"], "id": [1, 2]}), path)
    assert origins(path) == ["one", "two"]
    with pytest.raises(InputError, match="the file has text, id"):
        origins(path, "body")


def test_damaged_parquet_is_refused(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    offsets, letters = pa.py_buffer(np.array([0, 3], np.int32)), pa.py_buffer(b"ab\xff")
    parquet.write_table(
        pa.table({"text": pa.StringArray.from_buffers(1, offsets, letters)}), path, compression="none"
    )
    with pytest.raises(InputError, match="'text' is not UTF-8: byte 0xff"):
        origins(path)
    path.write_bytes(path.read_bytes()[:4] + b"\xff" * 16 + path.read_bytes()[20:])
    with pytest.raises(InputError, match="not a whole Parquet file"):
        origins(path)


def test_parquet_without_a_library_says_which_one(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(EnvironmentLacks, match="pyarrow"):
        origins(tmp_path / "a.parquet")


def test_the_two_built_in_texts_share_no_paragraph():
    both = (texts.calibration(), texts.held_out())
    parts = [{" ".join(each.split()) for each in text.split("\n\n")} for text in both]
    # Shorter ones are headings and lines of code that come back everywhere.
    assert not {each for each in parts[0] & parts[1] if len(each) >= 40}
    assert all(len(part) > 200 for part in parts)


def test_built_in_texts_come_with_their_license():
    folder = resources.files(texts)
    assert "PYTHON SOFTWARE FOUNDATION LICENSE" in folder.joinpath("LICENSE.txt").read_text()
    packed = [folder.joinpath(f"{name}.txt.xz").read_bytes() for name in ("calibration", "held_out")]
    assert sum(map(len, packed)) < 250_000


@pytest.fixture
def source(tiny_llama, tmp_path):  # noqa: F811
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    folder = tiny_llama()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<bos>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 256)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return HfCheckpoint.open(folder)


def drawn(source, path, **options):
    return draw(source, Data(path), **{"count": 4, "max_tokens": 8, "seed": 0} | options)


def test_every_sample_begins_as_a_prompt_does_and_none_is_padded(source, tmp_path):
    (tmp_path / "a.txt").write_text("abcdefghijklmnopqrs")
    found = drawn(source, tmp_path / "a.txt")
    assert [len(sample.ids) for sample in found.samples] == [8, 8, 6]
    assert all(sample.ids[0] == 256 for sample in found.samples)
    assert (found.used, found.asked, found.tokens) == (3, 4, 22)


def test_each_text_gives_its_start_before_any_gives_more(source, tmp_path):
    path = lines(tmp_path / "a.jsonl", *({"text": letter * 20} for letter in "abc"))
    found = drawn(source, path, count=4)
    assert [
        sample.origin.partition(",")[0] for sample in found.samples if "tokens 0 to" in sample.origin
    ] == [f"{path}:{number}" for number in (1, 2, 3)]
    assert found.used == 4


@pytest.mark.parametrize("letters", ["a", "a ", "\u20ac"])
def test_of_as_many_texts_as_samples_only_starts_are_read(letters, source, tmp_path):
    rows = ({"text": letters * length} for length in (3, 7, 100, 1000, 100_000))
    path = lines(tmp_path / "a.jsonl", *rows)
    starts = [
        sample for sample in drawn(source, path, count=1000).samples if ", tokens 0 to" in sample.origin
    ]
    found = drawn(source, path, count=5).samples
    assert [(s.origin, s.ids.tolist()) for s in found] == [(s.origin, s.ids.tolist()) for s in starts]


def test_texts_without_a_token_are_counted(source, tmp_path):
    path = lines(tmp_path / "a.jsonl", {"text": ""}, {"text": "  \n"}, {"text": "abc"})
    found = drawn(source, path)
    assert (found.used, found.skipped) == (1, 2)


def test_data_without_text_is_refused(source, tmp_path):
    with pytest.raises(InputError, match="no text in the data"):
        drawn(source, lines(tmp_path / "a.jsonl", {"text": ""}))


def test_the_seed_decides_which_texts_are_read(source, tmp_path):
    path = lines(tmp_path / "a.jsonl", *({"text": f"text {number}"} for number in range(50)))
    first, again, other = ([s.origin for s in drawn(source, path, seed=seed).samples] for seed in (1, 1, 2))
    assert first == again != other


def test_samples_longer_than_the_model_takes_are_refused(source, tmp_path):
    with pytest.raises(InputError, match="129"):
        drawn(source, None, max_tokens=129)


def test_a_tokenizer_of_another_model_is_refused(source, tmp_path):
    tokens = json.loads(source.tokenizer_file.read_text())
    tokens["model"]["vocab"] = {letter: i + 200 for letter, i in tokens["model"]["vocab"].items()}
    source.tokenizer_file.write_text(json.dumps(tokens))
    with pytest.raises(InputError, match="the model has 260"):
        drawn(source, None)


def test_held_out_samples_are_no_calibration_samples(source):
    judged = {tuple(sample.ids) for sample in held_out(source, count=9, max_tokens=64)}
    seen = {tuple(sample.ids) for sample in drawn(source, None, count=999, max_tokens=64).samples}
    assert len(judged) == 9
    assert not judged & seen
