"""The lexicon of a run: learned at the start, used in validation, kept when the run is resumed."""

import pytest
import small

from saccade.data.tokenization.lexicon import LEXICON_FILE, load_lexicon
from saccade.predict.predictors.predictor import Predictor
from saccade.tasks.translate import Translate
from saccade.train import folder

NONE = {"kind": "none"}
STACK = {"kind": "recurrent", "dim": 14}
WORDS = ["tokenizer={ kind = 'words', size = 6, shared = false }", "writer.tie=output", "predict.replace_unknown=true"]


@pytest.fixture
def pairs(tmp_path):
    """Two words are known, and one of the others belongs to each animal."""
    rows = [
        ("a dog sleeps", "ein Hund schläft"),
        ("a cat sleeps", "ein Kater schläft"),
        ("a cow sleeps", "ein Rind schläft"),
    ]
    (tmp_path / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in 9 * rows))
    return {"train": [str(tmp_path / "pairs.tsv")], "valid": [str(tmp_path / "pairs.tsv")]}


def parts():
    writer = {"stack": {**STACK, "attention": "additive"}, "positions": NONE}
    return {"reader": {"stack": STACK, "positions": NONE}, "writer": writer}


def test_a_run_learns_its_lexicon_once(fit, pairs, monkeypatch):
    train = {"steps": 4, "valid_every": 2, "save_every": 2, "valid_predictions": 3, "report_every": 2}
    run = fit(data=pairs, parts=parts(), overrides=WORDS, **train)
    lexicon = load_lexicon(run)
    assert {source: lexicon[source].word for source in ("cat", "cow")} == {"cat": "Kater", "cow": "Rind"}
    monkeypatch.setattr(folder, "learn_lexicon", lambda *_: pytest.fail("it is there already"))
    fit(resume=True, overrides=["train.steps=6"])
    assert load_lexicon(run) == lexicon
    assert small.read_metrics(run)[-1]["step"] == 6


def test_validation_replaces_unknown_words(fit, pairs, monkeypatch):
    seen = []

    def predictor(*arguments, **settings):
        seen.append(settings["lexicon"])
        return Predictor(*arguments, **settings)

    monkeypatch.setattr(Translate, "get_predictor", lambda task, recipe: predictor)
    fit(data=pairs, parts=parts(), overrides=WORDS, steps=1, valid_every=1, save_every=1, valid_predictions=2)
    assert seen[0]["cow"].word == "Rind"


@pytest.mark.parametrize(
    "other", ["predict.replace_unknown=false", "tokenizer={ kind = 'bpe', size = 300, shared = false }"]
)
def test_a_run_that_has_no_use_for_it_has_none(fit, pairs, other):
    run = fit(data=pairs, parts=parts(), overrides=[*WORDS, other], steps=1, valid_every=1, save_every=1)
    assert not (run / LEXICON_FILE).exists()
