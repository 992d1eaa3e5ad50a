"""Reconstruction of masked patches."""

import pytest

import saccade
from saccade.config.schema import Corpus
from saccade.data.sources.media import resolve_folder
from saccade.errors import SaccadeError
from saccade.score.compare import check_comparable
from saccade.score.evaluate import evaluate_corpora

QUICK = [
    "data.train.0.examples=30", "data.valid.0.examples=8", "train.batch_tokens=512", "train.steps=1",
    "reader.stack={layers=1, dim=16, heads=2, ff=16}",
]  # fmt: skip
HELDOUT = Corpus(files=("embedded:shapes-heldout",), examples=12)


@pytest.fixture(scope="module")
def predictor(tmp_path_factory):
    return saccade.train("vit-masked", tiny=True, run=tmp_path_factory.mktemp("runs") / "x", overrides=QUICK)


def test_the_same_patches_are_masked_each_time(predictor):
    first, second = (evaluate_corpora(predictor, [HELDOUT]) for _ in range(2))
    assert first.loss == second.loss > 0
    assert (first.pictures, len(first.hypotheses)) == (12, 12)
    assert first.rows()[0][:2] == ("loss", f"{first.loss:.4f}")
    assert "40% of them hidden" in first.rows()[0][2]
    assert first.summary().startswith("12 pictures in ")
    assert first.to_dict()["scores"] == {"loss": first.loss}


def test_all_pictures_of_a_folder_and_a_number_of_embedded_ones_count(predictor):
    folder = Corpus(files=(str(resolve_folder(HELDOUT)),))
    assert evaluate_corpora(predictor, [folder], synthetic_count=5).pictures == 12
    assert evaluate_corpora(predictor, [HELDOUT.model_copy(update={"examples": None})], synthetic_count=5).pictures == 5


@pytest.mark.cuda
def test_the_same_patches_are_masked_on_every_device(tmp_path):
    saccade.train("vit-masked", tiny=True, run=tmp_path / "z", overrides=QUICK)
    here, there = (
        evaluate_corpora(saccade.load(tmp_path / "z", device=device), [HELDOUT]).loss for device in ("cpu", "cuda")
    )
    assert here == pytest.approx(there, rel=1e-3)


def test_a_masked_autoencoder_only_embeds(predictor):
    files = list(predictor.expand_inputs(["embedded:shapes-heldout/00001.png"]))
    assert predictor.embed(files).shape == (1, 16)
    with pytest.raises(SaccadeError, match="has no output for a picture; ask for embeddings of pictures"):
        predictor.predict(files)
    assert predictor.view(files[0]).background.grid == (6, 6)


def test_runs_without_references_are_not_compared(predictor, tmp_path):
    saccade.train("vit-masked", tiny=True, run=tmp_path / "y", overrides=QUICK)
    with pytest.raises(SaccadeError, match="use `saccade evaluate` for each"):
        check_comparable([tmp_path / "y"])
