import json
import subprocess
import sys

import numpy as np
import pytest

from tests.architectures.variants import llama
from tests.checkpoint.conftest import save
from tests.cli.conftest import trtkit  # noqa: F401 - a fixture
from tests.quantize.calibrated import build
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.safetensors import SafetensorsWriter, TensorSpec, read_header
from trtkit.plan.host import LIBRARIES_BYTES, layerwise_need

LAYER_BYTES = 2 * (4 * 768 * 768 + 3 * 768 * 2560)


@pytest.fixture
def model(tmp_path):
    return build(tmp_path / "llama", llama(hidden_size=128, intermediate_size=256))


def arguments(model, out):
    return [
        "calibrate",
        model,
        "-o",
        out,
        "--data",
        model.parent / "texts.txt",
        "--samples",
        3,
        "--max-length",
        24,
    ]


def test_a_file_is_written_and_described(trtkit, model, tmp_path):  # noqa: F811
    out = tmp_path / "ranges.safetensors"
    code, text, _ = trtkit(*arguments(model, out), "--output", "json")
    document = json.loads(text)
    assert code == 0
    assert document["samples"] == {"asked": 3, "used": 3, "skipped": 0}
    assert "model.layers.1.self_attn.o_proj|x" in read_header(out)


def test_a_dry_run_tells_what_it_takes_and_writes_nothing(trtkit, model, tmp_path):  # noqa: F811
    out = tmp_path / "ranges.safetensors"
    code, text, _ = trtkit(*arguments(model, out), "--for", "int4-awq", "--dry-run", "--output", "json")
    document = json.loads(text)
    assert (code, document["file"], document["group_size"]) == (0, None, 128)
    weights = 4 * (2 * 128 * 128 + 2 * 64 * 128 + 3 * 128 * 256 + 2 * 128)  # float32
    assert document["needs"]["layer_bytes"] == weights
    assert not list(tmp_path.glob("*ranges*"))


def test_fewer_samples_than_asked_for_are_a_warning(trtkit, model, tmp_path):  # noqa: F811
    code, _, told = trtkit(*arguments(model, tmp_path / "x"), "--samples", 99, "--dry-run")
    assert code == 0
    assert "4 samples of 99 that were asked for" in told


def test_data_that_cannot_be_used_is_an_input_error(trtkit, model, tmp_path):  # noqa: F811
    code, _, told = trtkit(*arguments(model, tmp_path / "x"), "--data", tmp_path / "nothing")
    assert code == 2
    assert "never fetched" in told
    assert "Traceback" not in told


def test_a_folder_in_place_of_the_file_is_refused_before_the_model_runs(trtkit, model, tmp_path):  # noqa: F811
    code, _, told = trtkit(*arguments(model, tmp_path))
    assert code == 2
    assert "is a folder" in told
    assert "layers x samples" not in told


def wide_model(folder, layers):
    """Write a model whose layers are large and its other tensors small; returns it."""
    build(folder, llama(hidden_size=64, num_hidden_layers=1))
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "hidden_size": 768,
        "intermediate_size": 2560,
        "num_attention_heads": 12,
        "num_key_value_heads": 12,
    }
    config |= {"head_dim": 64, "num_hidden_layers": layers, "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config))
    sides = dict.fromkeys(
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"), (768, 768)
    )
    sides |= {"mlp.gate_proj": (2560, 768), "mlp.up_proj": (2560, 768), "mlp.down_proj": (768, 2560)}
    sides |= {"input_layernorm": (768,), "post_attention_layernorm": (768,)}
    shapes = {
        f"model.layers.{i}.{name}.weight": shape for i in range(layers) for name, shape in sides.items()
    }
    shapes |= {
        "model.embed_tokens.weight": (260, 768),
        "lm_head.weight": (260, 768),
        "model.norm.weight": (768,),
    }
    specs = [TensorSpec(name, "bfloat16", shape) for name, shape in shapes.items()]
    noise = np.random.default_rng(0).normal(0, 0.02, 2560 * 768).astype(np.float32)
    import ml_dtypes

    noise = noise.astype(ml_dtypes.bfloat16)
    with SafetensorsWriter(folder / "model.safetensors", specs) as writer:
        for spec in writer.order:
            writer.write(spec, [noise[: int(np.prod(spec.shape))]])
    return folder


def peak_bytes(model):
    """Return the most memory that a calibration in a process of its own held."""
    script = (
        "import torch; torch.set_num_threads(1); from trtkit.cli import app; "
        f"app({[str(each) for each in arguments(model, model.parent / 'out')]!r}, standalone_mode=False); "
        # Not ru_maxrss: a child begins with the peak of the process that started it.
        "print(*(int(line.split()[1]) * 1024 for line in open('/proc/self/status') if line.startswith('VmHWM:')))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return int(done.stdout.split()[-1])


def test_memory_does_not_grow_with_the_number_of_layers_and_stays_below_what_is_foreseen(tmp_path):
    folders = [wide_model(tmp_path / f"layers{count}", count) for count in (3, 12)]
    few, many = map(peak_bytes, folders)
    # Twelve layers are 198 MB. Libraries alone vary by some megabytes from run to run.
    assert many - few < LAYER_BYTES
    foreseen = layerwise_need(HfCheckpoint.open(folders[1]).config, 24, searches_int4=False)
    assert many < foreseen.total_bytes
    assert many < 1.3 * LAYER_BYTES + LIBRARIES_BYTES


def test_what_is_no_file_of_ranges_is_not_written_over(trtkit, model, tmp_path):  # noqa: F811
    weights, notes = model / "model.safetensors", tmp_path / "notes.txt"
    notes.write_text("mine")
    before = weights.read_bytes()
    for out, said in [
        (weights, "folder of the source"),
        (model / "new.safetensors", "folder of the source"),
        (notes, "would be replaced"),
    ]:
        code, _, told = trtkit(*arguments(model, out), "--dry-run")
        assert (code, said in told) == (2, True)
        assert trtkit(*arguments(model, out))[0] == 2
    assert (weights.read_bytes(), notes.read_text()) == (before, "mine")
    (tmp_path / "link").symlink_to(tmp_path / "ranges.safetensors")
    for _ in range(2):  # the second time over the first
        assert trtkit(*arguments(model, tmp_path / "link"))[0] == 0
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--group-size", 64), "--group-size out"),
        (("--unreached", "borrow"), "no experts"),
        (("--seed", -5), "seed"),
    ],
)
def test_settings_without_a_use_are_refused(trtkit, model, tmp_path, options, said):  # noqa: F811
    code, _, told = trtkit(*arguments(model, tmp_path / "x"), *options, "--dry-run")
    assert (code, said in told) == (2, True)


@pytest.mark.parametrize("purpose", ["ranges", "int4-awq"])
def test_disk_is_foreseen(trtkit, model, tmp_path, purpose):  # noqa: F811
    out = tmp_path / "ranges.safetensors"
    _, text, _ = trtkit(*arguments(model, out), "--for", purpose, "--output", "json")
    document = json.loads(text)
    states = 2 * document["tokens"] * 128 * 4
    tensors = sum(info.nbytes for info in read_header(out).values())
    assert states + 2 * tensors == pytest.approx(document["needs"]["disk_bytes"], rel=0.02)


def test_layers_that_see_nothing_but_zeros_are_told(trtkit, model, tmp_path):  # noqa: F811
    file = model / "model.safetensors"
    tensors = {name: np.array(info.read()) for name, info in read_header(file).items()}
    tensors["model.layers.1.mlp.gate_proj.weight"][:] = 0
    save(file, tensors)
    code, text, told = trtkit(*arguments(model, tmp_path / "x"), "--output", "json")
    assert (code, json.loads(text)["silent"]) == (0, ["model.layers.1.mlp.down_proj"])
    assert "nothing but zeros goes into 1 linear layer (model.layers.1.mlp.down_proj)" in told
