"""Demonstrations of other recipes end to end, with a few steps."""

import pytest

from saccade.config.load import load
from saccade.demo import systems
from saccade.demo.listing import get_demonstration, list_demonstrations
from saccade.tasks.language_model import TASK

FEW = ("train.steps=1", "train.schedule.warmup_steps=1", "train.valid_predictions=2", "train.metric=loss")
FEWER = (*FEW, "train.valid_every=1", "train.save_every=1", "data.train.0.examples=200", "data.valid.0.examples=6")
SLOW = [
    "ask-attend-answer", "bahdanau", "bert", "classify", "gpt2", "listen-attend-spell", "listen-attend-walk",
    "mask-predict", "nat", "show-attend-interact", "show-attend-interact-streams", "show-attend-read", "sasrec",
    "smiles", "t5", "tag", "vit", "vit-masked", "xlnet",
]  # fmt: skip
NEXT = {"listen-attend-walk": "view", "vit-masked": "predict"}  # recipes that the web page cannot serve


def run_demo(name: str, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SACCADE_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(
        systems, "load", lambda name, tiny, overrides: load(name, tiny=tiny, overrides=[*overrides, *FEWER])
    )
    folder = systems.run_demonstration(name, seed=2)
    assert folder == tmp_path / "runs" / f"{name}-demo-1"


def test_a_caption_is_predicted_and_viewed(tmp_path, monkeypatch, capsys):
    run_demo("show-attend-tell", tmp_path, monkeypatch)
    said = capsys.readouterr()
    assert "embedded:scenes" in said.err
    assert all(word in said.out for word in ("on embedded:scenes-heldout", "bleu-4", "00001.png", "saccade serve"))
    assert "target: accuracy >= 85: not reached" in said.out
    page = (tmp_path / "runs/show-attend-tell-demo-1/attention.html").read_text()
    assert "data:image/png" in page


@pytest.mark.parametrize(
    ("text", "given"),
    [("a cup stands on the table", ("a cup stands", "on the table")), ("NC(C)O", ("NC(", "C)O")), ("CCO", ("CC", "O"))],
)
def test_a_language_model_goes_on_from_words_or_where_there_are_none_from_letters(text, given):
    assert TASK.make_example(text) == given


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_every_kind_of_system_is_shown(name, tmp_path, monkeypatch, capsys):
    run_demo(name, tmp_path, monkeypatch)
    said = capsys.readouterr().out
    assert "2. Evaluate" in said and f"target: {get_demonstration(name).target}: " in said
    number = 4 if name == "vit-masked" else 5  # which has no outputs to predict
    assert f"{number}. Try next: saccade {NEXT.get(name, 'serve')} {tmp_path}/runs/{name}-demo-1" in said
    assert all(metric in said for metric in systems.RECIPE_METRICS.get(name, ()))
    if name == "listen-attend-walk":
        assert '"route":{"items":' in (tmp_path / f"runs/{name}-demo-1/attention.html").read_text()
    assert name != "listen-attend-walk" or '"instruction"' not in said.partition("View")[0]
    assert (tmp_path / "runs" / f"{name}-demo-1" / "attention.html").is_file()


def test_missing_attention_is_reported(tmp_path, monkeypatch):
    class Blind:
        def view(self, source, *, title):
            raise systems.SaccadeError("no layer attends")

    assert systems.save_attention_page(Blind(), "a", tmp_path) == "no attention to show: no layer attends"


def test_demonstrations_come_from_the_recipes():
    found = list_demonstrations()
    assert found[0].name == "dates"
    assert {"show-attend-tell": "scenes", "vit": "shapes", "listen-attend-spell": "tones"}.items() <= {
        one.name: one.data for one in found
    }.items()


@pytest.mark.parametrize(("text", "line"), [("a  b\nc", "a b c"), ("/x/y/a.png", "a.png"), ("a" * 61, "a" * 59 + "…")])
def test_cells_are_short(text, line):
    assert systems.shorten(text) == line
