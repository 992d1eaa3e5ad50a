import json
import re
from pathlib import Path
from typing import Any

import pytest

from saccade.cli.score import Metrics
from saccade.config.metric import TEXT, list_default_names, list_names
from saccade.config.schema import Decoding
from saccade.errors import SaccadeError
from saccade.predict.outputs import Hypothesis
from saccade.score.evaluate import evaluate, evaluate_files
from saccade.score.metrics.bleu import corpus_scores

ROOT = Path(__file__).parent.parent.parent


class Upper:
    """A predictor that outputs capital letters, and records its decoding settings."""

    decoding: Decoding | None = None

    def candidates(self, texts: list[str], *, decoding: Decoding | None = None) -> list[list[Hypothesis]]:
        self.decoding = decoding
        return [[Hypothesis(list(range(len(text))), text.upper(), -1.0, -2.0)] for text in texts]


PAIRS = [("ab cd ef gh ij", "AB CD EF GH IJ"), ("kl mn op qr", "KL MN OP qr")]


def test_an_evaluation_has_scores_signatures_and_speed() -> None:
    found = evaluate(Upper(), PAIRS)  # type: ignore[arg-type]
    assert found.hypotheses == ["AB CD EF GH IJ", "KL MN OP QR"]
    assert found.scores["bleu"] == corpus_scores(found.hypotheses, [target for _, target in PAIRS])["bleu"]
    assert list(found.scores) == ["bleu", "chrf", "ter", "gleu", "accuracy"]
    assert found.scores["accuracy"].value == 50.0
    assert found.speed is not None
    assert found.speed.sentences_per_second * found.speed.seconds == pytest.approx(2)
    assert found.speed.tokens_per_second * found.speed.seconds == pytest.approx(14 + 11 + 2)


def test_metrics_lowercase_and_decoding_can_be_chosen() -> None:
    predictor: Any = Upper()
    found = evaluate(predictor, PAIRS, metrics=("bleu",), lowercase=True, decoding=Decoding(beam=7))
    assert found.scores.keys() == {"bleu"}
    assert found.scores["bleu"].value == pytest.approx(100)
    assert predictor.decoding.beam == 7


def test_an_evaluation_is_json() -> None:
    values = json.loads(json.dumps(evaluate(Upper(), PAIRS).to_dict()))  # type: ignore[arg-type]
    assert values["sentences"] == 2
    assert values["scores"]["bleu"].keys() == {"value", "signature"}
    assert values["speed"].keys() == {"seconds", "sentences_per_second", "tokens_per_second"}


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_files_are_scored_line_by_line(tmp_path: Path) -> None:
    ours, theirs = write(tmp_path / "hyp", "a b c d\n\nx\n"), write(tmp_path / "ref", "a b c d\ny\nx\n")
    found = evaluate_files(ours, theirs)
    assert found.sentences == 3
    assert found.scores["accuracy"].value == pytest.approx(200 / 3)
    assert found.scores["bleu"] == corpus_scores(["a b c d", "", "x"], ["a b c d", "y", "x"])["bleu"]
    assert "speed" not in found.to_dict()


def test_files_of_unequal_length_are_named(tmp_path: Path) -> None:
    ours, theirs = write(tmp_path / "hyp", "a\nb\n"), write(tmp_path / "ref", "a\n")
    with pytest.raises(SaccadeError, match="hyp has 2 lines and .*ref has 1; line n"):
        evaluate_files(ours, theirs)


def test_empty_files_and_no_pairs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SaccadeError, match="empty"):
        evaluate_files(write(tmp_path / "hyp", ""), write(tmp_path / "ref", ""))
    with pytest.raises(SaccadeError, match="no pairs were given"):
        evaluate(Upper(), [])  # type: ignore[arg-type]


def test_an_unknown_metric_is_refused_before_any_work() -> None:
    predictor: Any = None
    with pytest.raises(SaccadeError, match="unknown metric 'meteor'; expected one of bleu, chrf, ter, gleu, accuracy"):
        evaluate(predictor, PAIRS, metrics=("meteor",))


def test_every_metric_is_named_by_the_help_and_the_docs() -> None:
    text, page = Metrics.__metadata__[0].help, (ROOT / "docs" / "predicting.md").read_text("utf-8")
    defaults, names = ",".join(list_default_names(TEXT)), {*list_names(TEXT)}
    assert f"default: {defaults}." in text
    assert f"`{defaults}`" in page
    rows = re.findall(r"^\| (`[^|]+`) \| (default|yes)", page, re.MULTILINE)
    assert {name for names, _ in rows for name in re.findall(r"`(\S+?)`", names)} == names
    assert {*re.findall(r"[\w-]+", text)} >= names
