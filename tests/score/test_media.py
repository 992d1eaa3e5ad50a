"""Runs that read pictures or sound are measured and compared, whatever is among their files."""

import json

import numpy as np
import pytest
from PIL import Image

import saccade
from saccade.config.load import load
from saccade.config.schema import Corpus
from saccade.errors import SaccadeError
from saccade.score.captions import CAPTIONS, caption_scores
from saccade.score.compare import compare
from saccade.score.errors import error_rate
from saccade.score.evaluate import evaluate_corpora
from saccade.score.media import media_pairs, metrics_of, readable
from saccade.score.statistics import score_of, statistics
from saccade.score.table import cells, latex, note

FEW = ["train.steps=2", "train.schedule.warmup=1", "train.valid_predictions=3", "train.batch_tokens=512"]
FEWER = [*FEW, "train.metric=loss", "data.train.0.examples=120", "data.valid.0.examples=6", "predict.beam=1"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One of labels, one of captions, one of sound, one of words in pictures."""
    folder = tmp_path_factory.mktemp("runs")
    names = {"label": "vit", "caption": "show-attend-tell", "sound": "listen-transformer",
             "spelled": "show-attend-read"}  # fmt: skip
    return {
        what: (folder / what, saccade.train(name, tiny=True, run=folder / what, overrides=FEWER))
        for what, name in names.items()
    }


@pytest.fixture
def pictures(tmp_path):
    """Three pictures with two captions each, and one that is none."""
    for number in range(3):
        Image.new("RGB", (48, 48), (number, 0, 0)).save(tmp_path / f"{number}.png")
    (tmp_path / "3.png").write_text("no picture")
    rows = [{"file_name": f"{number}.png", "text": ["red circle", "a circle"], "label": "x"} for number in range(4)]
    (tmp_path / "metadata.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return Corpus(files=(str(tmp_path),))


def test_files_that_cannot_be_read_are_left_out_and_told(runs, pictures):
    found = evaluate_corpora(runs["caption"][1], [pictures])
    assert found.sentences == 3
    assert len(found.left_out) == 1
    assert "left out 1 that cannot be read: " in found.summary()
    assert "3.png is no picture" in found.summary()
    assert found.to_dict()["left_out"] == found.left_out


def test_where_none_can_be_read_that_is_an_error(runs, pictures, tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.png").write_text("no picture")
    with pytest.raises(SaccadeError, match=r"no picture can be read: .*0.png is no picture"):
        evaluate_corpora(runs["caption"][1], [pictures])


def test_metrics_that_say_nothing_are_refused(runs):
    shapes = [Corpus(files=("embedded:shapes-heldout",), examples=4)]
    with pytest.raises(SaccadeError, match=r"labels are measured in one way"):
        evaluate_corpora(runs["label"][1], shapes, metrics=["bleu"])
    scenes = [Corpus(files=("embedded:scenes-heldout",), examples=4)]
    with pytest.raises(SaccadeError, match=r"unknown metric 'foo'; expected one of .*wer, cer, bleu-1"):
        evaluate_corpora(runs["caption"][1], scenes, metrics=["foo"])
    with pytest.raises(SaccadeError, match=r"cider compares with all .* of a file, wer with one text; ask for one"):
        evaluate_corpora(runs["caption"][1], scenes, metrics=["wer", "cider"])


@pytest.mark.parametrize(
    ("what", "data", "titles"),
    [
        ("label", "shapes-heldout", ["accuracy %", "F1", "Matthews", "top-5 %"]),
        ("caption", "scenes-heldout", ["BLEU-4", "CIDEr", "exact match %"]),
        ("sound", "tones-heldout", ["WER %", "CER %", "exact match %"]),
        ("spelled", "words-heldout", ["exact match %", "CER %", "difference [95%]"]),
    ],
)
def test_runs_are_compared_by_what_is_measured_of_them(runs, what, data, titles):
    path, model = runs[what]
    wanted = "label" if what == "label" else "text"
    pairs = media_pairs([Corpus(files=(f"embedded:{data}",), examples=6)], model.recipe.reader, wanted=wanted)
    found = compare([path, path], pairs, samples=20)
    assert cells(found)[0][1 : 1 + len(titles)] == titles
    assert found.rows[1].difference.value == 0
    assert (found.sentences, found.counted) == (6, "sounds" if what == "sound" else "pictures")


def test_words_in_pictures_are_compared_by_their_letters_too(runs):
    path, model = runs["spelled"]
    pairs = media_pairs([Corpus(files=("embedded:words-heldout",), examples=6)], model.recipe.reader, wanted="text")
    found = compare([path], pairs, metric="cer", samples=20)
    told = evaluate_corpora(model, [Corpus(files=("embedded:words-heldout",), examples=6)])
    assert found.rows[0].scores == {name: score.value for name, score in told.scores.items()}
    with pytest.raises(SaccadeError, match=r"unknown metric 'bleu-4'; runs are compared by accuracy or cer"):
        compare([path], pairs, metric="bleu-4", samples=20)


def test_captions_of_a_picture_are_one_sentence_of_a_comparison(runs, pictures):
    path, model = runs["caption"]
    pairs = [
        pair for pair in media_pairs([pictures], model.recipe.reader, wanted="text") if not pair[0].endswith("3.png")
    ]
    assert len(pairs) == 6
    assert compare([path], pairs, samples=20).sentences == 3


@pytest.mark.parametrize("what", ["label", "caption"])
def test_files_that_cannot_be_read_are_left_out_for_all_runs(runs, pictures, what):
    path, told = runs[what][0], ["red circle"] if what == "label" else ["red circle", "a circle"]
    pairs = [(f"{pictures.files[0]}/{number}.png", text) for number in range(4) for text in told]
    found = compare([path, path], pairs, samples=20)
    assert found.sentences == 3
    assert "3.png is no picture that can be read" in note(found).splitlines()[1]
    assert found.to_dict()["left_out"] == found.left_out
    assert latex(found).count("\n% left out 1") == 1
    whole = compare([path, path], pairs[: -len(told)], samples=20)
    assert whole.rows[0].scores == found.rows[0].scores
    assert "left_out" not in whole.to_dict()


def test_what_one_run_cannot_read_no_run_is_measured_on():
    class Reads:
        def __init__(self, *broken):
            self.broken, self.asked = broken, []

        def unreadable(self, names):
            self.asked += names
            return {name: f"{name} is broken" for name in names if name in self.broken}

    one, other = Reads("b"), Reads("a")
    pairs = [("a", "x"), ("b", "y"), ("c", "z"), ("c", "w")]
    assert readable([one, other], pairs) == (pairs[2:], ("b is broken", "a is broken"))
    assert (one.asked, other.asked) == (["a", "b", "c"], ["a", "c"])


def test_what_reads_other_things_is_not_compared(runs):
    with pytest.raises(SaccadeError, match=r"do not read the same kind of input"):
        compare([runs["caption"][0], runs["sound"][0]], [("a", "b")])


def test_sums_of_single_sentences_give_the_score_of_all():
    ours, theirs = ["a b c d e", "x y"], [["a b c d f", "a b c d"], ["x y", "y x"]]
    whole = caption_scores(ours, theirs, ["bleu-4", "accuracy"])
    for name, score in whole.items():
        assert score_of(name)(statistics(name, ours, theirs).sum(0)) == pytest.approx(score.value)
    heard = [texts[0] for texts in theirs]
    rows = statistics("cer", ours, heard)
    assert rows.dtype == np.int64
    assert score_of("cer")(rows.sum(0)) == pytest.approx(error_rate(ours, heard, unit="cer").value)


@pytest.mark.parametrize(
    ("name", "measured"),
    [
        ("show-attend-tell", CAPTIONS),
        ("show-attend-read", ("accuracy", "cer")),
        ("listen-attend-spell", ("wer", "cer", "accuracy")),
        ("ask-attend-answer", ("accuracy",)),
    ],
)
def test_what_is_measured_where_nobody_says_it(name, measured):
    recipe = load(name)
    assert metrics_of(recipe, recipe.reader) == measured
