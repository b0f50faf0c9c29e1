"""The search for alpha: what it finds, and that it goes on where it was."""

from __future__ import annotations

import json
import math

import pytest

from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.engine.store import Store
from trtkit.errors import InputError, StageError
from trtkit.flow.alpha import ALPHAS, KINDS, Alpha, Tried, search, spelled
from trtkit.quantize.smoothing import SmoothingError


def bowl(best):
    """Return a loss with one minimum, for each kind of layer at an alpha of its own."""
    return lambda alphas: sum((alphas[kind] - best[kind]) ** 2 for kind in KINDS)


@pytest.mark.parametrize("best", [(0.5, 0.5, 0.5, 0.5), (0.5, 0.6, 0.4, 0.9), (0.3, 1.0, 0.0, 0.7)])
def test_each_kind_of_layer_gets_the_alpha_that_loses_least(best):
    wanted = dict(zip(KINDS, best, strict=True))
    assert search(bowl(wanted)) == wanted


def test_alphas_without_a_loss_are_passed_over():
    found = search(lambda alphas: math.inf if max(alphas.values()) > 0.6 else -alphas["mlp.proj"])
    assert found["mlp.proj"] == 0.6


def test_a_search_that_was_killed_asks_for_nothing_twice(tmp_path):
    file, asked = tmp_path / "alpha.json", []
    wanted = dict(zip(KINDS, (0.5, 0.6, 0.4, 0.9), strict=True))

    def judge(alphas):
        if len(asked) == 5:
            raise KeyboardInterrupt
        asked.append(spelled(alphas))
        return bowl(wanted)(alphas)

    with pytest.raises(KeyboardInterrupt):
        search(Tried(file, judge, lambda *_: None).loss)
    first = list(asked)
    assert list(json.loads(file.read_text())) == first
    asked.clear()
    again = Tried(
        file, lambda alphas: (asked.append(spelled(alphas)), bowl(wanted)(alphas))[1], lambda *_: None
    )
    assert search(again.loss) == wanted
    assert not set(first) & set(asked)
    assert again.resumed_at == len(first) == 5
    assert len(again.table) == len(first) + len(asked)


@pytest.mark.parametrize("left", ["", '{"0.5": 0.', "[1]", '{"0.5": "x"}'])
def test_a_damaged_table_is_made_anew(tmp_path, left):
    (tmp_path / "alpha.json").write_text(left)
    tried = Tried(tmp_path / "alpha.json", lambda _: 0.25, lambda *_: None)
    assert (tried.resumed_at, tried.loss(dict.fromkeys(KINDS, 0.5))) == (0, 0.25)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (SmoothingError("weights are infinite"), pytest.raises(StageError, match="no alpha gives weights")),
        (InputError("holds NaN"), pytest.raises(InputError, match="holds NaN")),
    ],
)
def test_what_no_alpha_can_help_ends_the_search(model, tmp_path, error, told):
    def write(alphas, out):
        raise error

    with told:
        alpha = Alpha(HfCheckpoint.open(model), {}, write, Store(tmp_path / "store"), lambda *_: None)
        alpha.stage.run(tmp_path)


def test_one_alpha_for_all_is_spelled_as_one_number():
    assert spelled(dict.fromkeys(KINDS, ALPHAS[0])) == "0.3"
    assert spelled({**dict.fromkeys(KINDS, 0.5), "mlp.proj": 1.0}) == "0.5 0.5 0.5 1"
