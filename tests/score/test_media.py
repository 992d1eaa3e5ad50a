"""Evaluation and comparison of runs that read pictures or sound, with unreadable files."""

import json

import numpy as np
import pytest
from PIL import Image

import saccade
from saccade.config.load import load
from saccade.config.metric import CAPTIONS, Predictions
from saccade.config.schema import Corpus
from saccade.errors import SaccadeError
from saccade.score.compare import compare
from saccade.score.evaluate import evaluate_corpora
from saccade.score.media import filter_readable, get_default_metrics, read_media_pairs
from saccade.score.metrics.captions import CAPTION_METRICS, caption_scores
from saccade.score.metrics.error_rates import error_rate
from saccade.score.statistics import compute_statistics, get_additive_metric
from saccade.score.table import format_note, to_cells, to_latex

FEW = ["train.steps=2", "train.schedule.warmup_steps=1", "train.valid_predictions=3", "train.batch_tokens=512"]
FEWER = [*FEW, "train.metric=loss", "data.train.0.examples=120", "data.valid.0.examples=6", "predict.beam=1"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs for labels, captions, sound, and text in pictures."""
    folder = tmp_path_factory.mktemp("runs")
    names = {"label": "vit", "caption": "show-attend-tell", "sound": "listen-transformer",
             "spelled": "show-attend-read"}  # fmt: skip
    return {
        what: (folder / what, saccade.train(name, tiny=True, run=folder / what, overrides=FEWER))
        for what, name in names.items()
    }


@pytest.fixture
def pictures(tmp_path):
    """Three pictures with two captions each, and a broken file."""
    for number in range(3):
        Image.new("RGB", (48, 48), (number, 0, 0)).save(tmp_path / f"{number}.png")
    (tmp_path / "3.png").write_text("no picture")
    rows = [{"file_name": f"{number}.png", "text": ["red circle", "a circle"], "label": "x"} for number in range(4)]
    (tmp_path / "metadata.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return Corpus(files=(str(tmp_path),))


def test_unreadable_files_are_skipped_and_reported(runs, pictures):
    found = evaluate_corpora(runs["caption"][1], [pictures])
    assert found.sentences == 3
    assert len(found.left_out) == 1
    assert "skipped 1 that cannot be read: " in found.summary()
    assert "3.png is not a readable picture" in found.summary()
    assert found.to_dict()["left_out"] == found.left_out


def test_only_unreadable_files_are_an_error(runs, pictures, tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.png").write_text("no picture")
    with pytest.raises(SaccadeError, match=r"no picture can be read: .*0.png is not a readable picture"):
        evaluate_corpora(runs["caption"][1], [pictures])


def test_metrics_that_do_not_apply_are_refused(runs):
    shapes = [Corpus(files=("embedded:shapes-heldout",), examples=4)]
    with pytest.raises(SaccadeError, match=r"labels have fixed metrics"):
        evaluate_corpora(runs["label"][1], shapes, metrics=["bleu"])
    scenes = [Corpus(files=("embedded:scenes-heldout",), examples=4)]
    with pytest.raises(SaccadeError, match=r"unknown metric 'foo'; expected one of .*wer, cer.*bleu-1"):
        evaluate_corpora(runs["caption"][1], scenes, metrics=["foo"])
    with pytest.raises(SaccadeError, match=r"cider uses all references of a file, wer only one; ask for one"):
        evaluate_corpora(runs["caption"][1], scenes, metrics=["wer", "cider"])


@pytest.mark.parametrize(
    ("what", "data", "titles"),
    [
        ("label", "shapes-heldout", ["accuracy %", "F1", "Matthews", "top-5 %"]),
        ("caption", "scenes-heldout", ["BLEU-4", "CIDEr", "accuracy %"]),
        ("sound", "tones-heldout", ["WER %", "CER %", "accuracy %"]),
        ("spelled", "words-heldout", ["accuracy %", "CER %", "difference [95%]"]),
    ],
)
def test_runs_are_compared_by_their_metrics(runs, what, data, titles):
    path, model = runs[what]
    wanted = "label" if what == "label" else "text"
    pairs = read_media_pairs(
        [Corpus(files=(f"embedded:{data}",), examples=6)], model.recipe.reader, target_column=wanted
    )
    found = compare([path, path], pairs, samples=20)
    assert to_cells(found)[0][1 : 1 + len(titles)] == titles
    assert found.rows[1].difference.value == 0
    assert (found.sentences, found.counted) == (6, "sounds" if what == "sound" else "pictures")


def test_top_5_of_labels_is_that_of_scikit_learn(runs):
    from sklearn.metrics import top_k_accuracy_score

    model, corpus = runs["label"][1], Corpus(files=("embedded:shapes-heldout",), examples=40)
    pairs = read_media_pairs([corpus], model.recipe.reader, target_column="label")
    names = list(model.labels.names)
    every = model.recipe.predict.model_copy(update={"n_best": len(names), "beam": len(names)})
    outputs = model.candidates([path for path, _ in pairs], decoding=every)
    log_probs = [[{one.text: one.log_prob for one in each}[name] for name in names] for each in outputs]
    expected = top_k_accuracy_score([label for _, label in pairs], np.array(log_probs), k=5, labels=names)
    assert 0 < expected < 1
    assert evaluate_corpora(model, [corpus]).scores["top-5"].value == pytest.approx(100 * expected)


def test_text_recognition_is_compared_by_characters_too(runs):
    path, model = runs["spelled"]
    pairs = read_media_pairs(
        [Corpus(files=("embedded:words-heldout",), examples=6)], model.recipe.reader, target_column="text"
    )
    found = compare([path], pairs, metric="cer", samples=20)
    evaluation = evaluate_corpora(model, [Corpus(files=("embedded:words-heldout",), examples=6)])
    assert found.rows[0].scores == {name: score.value for name, score in evaluation.scores.items()}
    with pytest.raises(SaccadeError, match=r"runs cannot be compared by 'bleu-4', only by accuracy or cer"):
        compare([path], pairs, metric="bleu-4", samples=20)


def test_all_captions_of_a_picture_are_one_example(runs, pictures):
    path, model = runs["caption"]
    pairs = [
        pair
        for pair in read_media_pairs([pictures], model.recipe.reader, target_column="text")
        if not pair[0].endswith("3.png")
    ]
    assert len(pairs) == 6
    assert compare([path], pairs, samples=20).sentences == 3


@pytest.mark.parametrize("what", ["label", "caption"])
def test_unreadable_files_are_skipped_for_all_runs(runs, pictures, what):
    path, targets = runs[what][0], ["red circle"] if what == "label" else ["red circle", "a circle"]
    pairs = [(f"{pictures.files[0]}/{number}.png", text) for number in range(4) for text in targets]
    found = compare([path, path], pairs, samples=20)
    assert found.sentences == 3
    assert "3.png is not a readable picture" in format_note(found).splitlines()[1]
    assert found.to_dict()["left_out"] == found.left_out
    assert to_latex(found).count("\n% skipped 1") == 1
    whole = compare([path, path], pairs[: -len(targets)], samples=20)
    assert whole.rows[0].scores == found.rows[0].scores
    assert "left_out" not in whole.to_dict()


def test_files_unreadable_by_one_run_are_skipped_for_all():
    class Reads:
        def __init__(self, *broken):
            self.broken, self.asked = broken, []

        def find_unreadable(self, names):
            self.asked += names
            return {name: f"{name} is broken" for name in names if name in self.broken}

    one, other = Reads("b"), Reads("a")
    pairs = [("a", "x"), ("b", "y"), ("c", "z"), ("c", "w")]
    assert filter_readable([one, other], pairs) == (pairs[2:], ("b is broken", "a is broken"))
    assert (one.asked, other.asked) == (["a", "b", "c"], ["a", "c"])


def test_runs_with_different_inputs_are_not_compared(runs):
    with pytest.raises(SaccadeError, match=r"do not read the same kind of input"):
        compare([runs["caption"][0], runs["sound"][0]], [("a", "b")])


def test_summed_statistics_give_the_corpus_score():
    ours, theirs = ["a b c d e", "x y"], [["a b c d f", "a b c d"], ["x y", "y x"]]
    whole = caption_scores(ours, theirs, ["bleu-4", "accuracy"])
    for name, score in whole.items():
        metric = get_additive_metric(name, CAPTIONS)
        sums = compute_statistics(metric, Predictions(ours, theirs, kind=CAPTIONS)).sum(0)
        assert metric.compute_from_sums(sums) == pytest.approx(score.value)
    heard = [texts[0] for texts in theirs]
    metric = get_additive_metric("cer")
    rows = compute_statistics(metric, Predictions(ours, heard))
    assert rows.dtype == np.int64
    assert metric.compute_from_sums(rows.sum(0)) == pytest.approx(error_rate(ours, heard, unit="cer").value)


@pytest.mark.parametrize(
    ("name", "measured"),
    [
        ("show-attend-tell", CAPTION_METRICS),
        ("show-attend-read", ("accuracy", "cer")),
        ("listen-attend-spell", ("wer", "cer", "accuracy")),
        ("ask-attend-answer", ("accuracy",)),
    ],
)
def test_default_metrics(name, measured):
    recipe = load(name)
    assert get_default_metrics(recipe, recipe.reader) == measured
