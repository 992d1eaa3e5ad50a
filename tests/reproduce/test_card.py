"""The verdict on a reproduction, and the card that shows it."""

import json
from dataclasses import replace

import pytest

from saccade.config.load import load, override
from saccade.config.schema import Corpus
from saccade.reproduce.card import build_card, format_card, judge, write_card
from saccade.reproduce.seeds import SeedResult, Seeds, is_lower_better, read_validation
from saccade.reproduce.spec import Recorded, list_specs

SPEC = list_specs()["fsdd"].model_copy(
    update={
        "floor": 1.0,
        "recorded": Recorded(values={1: 80.0, 2: 84.0}, parameters=1000, minutes=3.0, hardware="a CPU", date="today"),
    }
)  # tolerance: 2 x 2.83
ITEM = SeedResult(
    seed=1, data="test", scores={"accuracy": 82.0, "cer": 3.0}, signatures={"accuracy": "exact", "cer": "edits"},
    settings={}, minutes=2.0, steps=10, parameters=1000, hardware="a GPU", commit="abc", date="2026-01-02",
)  # fmt: skip
APART = 2 * 8**0.5


def score(*values, **changes):
    items = [
        replace(ITEM, seed=i, scores={"accuracy": value, "cer": 1.0}, **changes) for i, value in enumerate(values, 1)
    ]
    return Seeds(SPEC, items)


@pytest.mark.parametrize(
    ("values", "state"),
    [
        ([82.0], "pass"), ([82 + APART], "pass"), ([82 - APART], "pass"), ([82 + APART + 0.01], "fail"),
        ([82 - APART - 0.01], "fail"), ([70.0, 94.0], "pass"), ([70.0, 80.0], "fail"),
    ],
)  # fmt: skip
def test_the_mean_of_the_seeds_is_compared_with_two_spreads(values, state):
    assert judge(score(*values)).state == state


@pytest.mark.parametrize(
    ("values", "state"),
    [([80.0, 84.0], "pass"), ([81.0, 83.0], "pass"), ([84.0, 80.0], "fail"), ([80.0, 85.1], "fail")],
)
def test_each_seed_can_be_compared_with_its_own_value(values, state):
    """Both means are right where two seeds are exchanged. A seed that is not recorded is not compared."""
    seeds = score(*values, 10.0)
    seeds.spec = SPEC.model_copy(update={"compared": "seeds"})
    assert judge(seeds).state == state
    seeds.finished = seeds.finished[2:]
    assert judge(seeds).reasons == ("no seed of these is recorded",)


@pytest.mark.parametrize(("parameters", "state"), [(1000, "pass"), (1004, "pass"), (1006, "fail"), (990, "fail")])
def test_another_model_fails(parameters, state):
    assert judge(score(82.0, parameters=parameters)).state == state


def test_one_diverged_seed_fails_though_the_others_agree():
    seeds = score(82.0, 82.0)
    seeds.finished[0] = replace(seeds.finished[0], scores={}, diverged="the loss is infinite")
    assert judge(seeds).state == "fail" and judge(seeds).reasons == ("seed 1 diverged: the loss is infinite",)


def test_nothing_and_held_out_data_are_no_pass():
    assert judge(Seeds(SPEC)).state == "fail"
    assert judge(score(82.0, data="held-out")).state == "not compared"


def test_a_card_is_a_file_of_results_with_everything_in_it(tmp_path):
    seeds = score(81.0, 83.0)
    seeds.skipped.append(3)
    card = build_card(seeds, "saccade reproduce fsdd")
    assert (card["mean"], card["spread"], card["minutes"]) == (82.0, pytest.approx(2**0.5), 4.0)
    assert {"name", "command", "commit", "date", "hardware", "versions", "minutes", "notes", "rows"} <= card.keys()
    assert [row["value"] for row in card["rows"] if row["what"] == "fsdd: accuracy"] == [81.0, 83.0]
    assert card["rows"][-1] == {
        "what": "fsdd: accuracy, mean of 2 seeds", "value": 82.0, "unit": "% of digits", "spread": 1.4142
    }  # fmt: skip
    path = write_card(card, SPEC, tmp_path / "new")
    page = path.read_text("utf-8")
    assert page == format_card(card, SPEC) and json.loads(path.with_suffix(".json").read_text("utf-8")) == card
    for part in (
        "# fsdd: pass", "| accuracy, % of digits | 82.00 ± 1.4 | 82.00 ± 2.8 |", "| seeds | 2 | 2 |", "a GPU | a CPU |",
        "| parameters | 1,000 | 1,000 |", "Not started for lack of time: seed 3.",
        "| 2 | 83.00 | 1.000 | 2.00 | 10 | 1,000 |",
        "Seed 1: scored once, on 2026-01-02.", "SHA-256 `", "`train.ema=0.995`", "Chosen on: once by the test",
    ):  # fmt: skip
        assert part in page, part


def test_the_validation_of_the_weights_in_use_is_read(tmp_path):
    lines = [
        {"event": "valid", "step": 1, "bleu": 3.0, "best": True},
        {"event": "valid", "step": 2, "bleu": 7.0, "best": True},
        {"event": "valid", "step": 3, "bleu": 5.0, "best": False},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert read_validation(tmp_path, "bleu") == 7.0


def test_losses_and_error_rates_are_better_when_lower():
    names = ("loss", "perplexity", "wer", "cer", "bleu", "accuracy")
    assert [is_lower_better(name) for name in names] == [True, True, True, True, False, False]


def test_a_run_remembers_weights_of_corpora():
    """Rows of `embedded:worlds` are mixed with those of SAIL as they were recorded."""
    spec = list_specs()["sail-sentences-grid-jelly"]
    assert spec.train[1] == Corpus(files=("embedded:worlds",), examples=18000, weight=0.1)
    recipe = override(load(spec.recipe), spec.settings)
    assert recipe.data.valid == 0.0 and recipe.train.steps == 800
