"""Runs that read pictures: file names in, classes or captions out, and attention in the picture."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import saccade
from saccade.data.sources.media import list_files
from saccade.errors import SaccadeError

FEW = [
    "train.steps=2",
    "train.schedule.warmup_steps=1",
    "train.valid_predictions=3",
    "train.batch_tokens=512",
    "train.metric=loss",
]
FILES = [f"embedded:shapes-heldout/{number:05d}.png" for number in range(1, 8)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("media")


@pytest.fixture(scope="module")
def vit(folder):
    more = ["data.train.0.examples=120", "data.valid.0.examples=20"]
    return saccade.train("vit", tiny=True, run=folder / "vit", overrides=[*FEW, *more])


@pytest.fixture(scope="module")
def teller(folder):
    more = ["data.train.0.examples=60", "data.valid.0.examples=20", "predict.max_length=6", "predict.beam=2"]
    return saccade.train("show-attend-tell", tiny=True, run=folder / "teller", overrides=[*FEW, *more])


@pytest.fixture(scope="module")
def files():
    return [list_files(name, medium="picture")[0] for name in FILES]


def test_a_loaded_run_gives_the_same_outputs(vit, teller, folder, files):
    assert saccade.load(folder / "vit").predict(files) == vit.predict(files)
    assert saccade.load(folder / "teller").predict(files) == teller.predict(files)
    assert set(vit.predict(files)) <= set(vit.labels.names)


def test_labels_of_pictures_do_not_depend_on_the_batch(vit, files):
    together = [found[0].log_prob for found in vit.candidates(files)]
    alone = [vit.candidates([path])[0][0].log_prob for path in files]
    assert together == pytest.approx(alone, abs=1e-5)


def test_files_are_decoded_in_chunks(vit, files, monkeypatch):
    whole = vit.predict(files)
    monkeypatch.setattr("saccade.predict.predictors.media.MAX_FILES_IN_MEMORY", 2)
    assert vit.predict(files) == whole


def test_scores_are_those_of_the_outputs(vit, teller, files):
    best = vit.candidates(files[:1])[0][0]
    assert vit.score([(files[0], best.text)]) == pytest.approx([best.log_prob], abs=1e-5)
    said = teller.candidates(files[:1])[0][0]
    assert teller.score([(files[0], said.text)])[0] < 0


def test_a_folder_stands_for_its_files(vit, files, tmp_path):
    for number, path in enumerate(files[:3]):
        Image.open(path).save(tmp_path / f"{number}.png")
    names = list(vit.expand_inputs([f"{tmp_path}\n", files[0]]))
    assert names == [*(str(tmp_path / f"{number}.png") for number in range(3)), files[0]]


def test_a_replaced_file_is_read_again(teller, files, tmp_path):
    scores = []
    for source in files[:2]:
        (tmp_path / "x.png").write_bytes(Path(source).read_bytes())
        scores.append(teller.candidates([str(tmp_path / "x.png")])[0][0].log_prob)
    assert scores == pytest.approx([teller.candidates([path])[0][0].log_prob for path in files[:2]], abs=1e-5)
    assert scores[0] != scores[1]


def test_an_empty_line_names_no_folder(vit, files):
    assert list(vit.expand_inputs(["\n", files[0]])) == ["", files[0]]
    assert [found[0].text for found in vit.stream(["", files[0]])] == ["", *vit.predict(files[:1])]


def test_outputs_before_a_broken_file_are_not_lost(vit, files, tmp_path):
    (tmp_path / "x.png").write_text("no picture")
    results = vit.stream(iter([files[0], str(tmp_path / "x.png")]))
    assert next(results)[0].text == vit.predict(files[:1])[0]
    with pytest.raises(SaccadeError, match=r"x.png is not a readable picture"):
        next(results)


def test_the_class_token_attends_to_the_cells_of_the_picture(vit, files):
    view = vit.view(files[0])
    assert len(view.maps) == 3
    assert view.input == "00001.png"
    for entry in view.maps:
        assert entry.weights.shape == (4, 1, 36)
        assert (entry.rows, entry.columns) == ("target", "source")
        assert list(entry.labels["target"]) == [view.output]
        assert entry.weights.sum() < 4  # the rest is on the class token itself
    assert view.background.grid == (6, 6)
    assert np.array_equal(view.background.decode_pixels(), np.asarray(Image.open(files[0])))
    assert "reader.stack.blocks.2.self" in view.text(width=80)


def test_each_word_of_a_caption_attends_to_the_picture(teller, files, tmp_path):
    view = teller.view(files[0], "red circle")
    [cross] = view.maps
    assert cross.weights.shape == (1, 3, 36)
    np.testing.assert_allclose(cross.weights.sum(-1), 1, atol=1e-5)
    assert view.background.grid == (6, 6)
    page = view.save(tmp_path / "view.html").read_text()
    assert "data:image/png" in page
    assert view.save(tmp_path / "view.png").stat().st_size > 1000


def test_without_a_class_token_attention_is_averaged_over_cells(folder, files):
    more = ["reader.class_token=false", "writer.pooling=mean", "data.train.0.examples=40", "data.valid.0.examples=5"]
    run = saccade.train("vit", tiny=True, run=folder / "mean", overrides=[*FEW, *more])
    for entry in run.view(files[0]).maps:
        np.testing.assert_allclose(entry.weights.sum(-1), 1, atol=1e-5)


def test_a_single_name_is_a_file(vit, files):
    assert [vit.predict(str(files[0]))] == vit.predict([str(files[0])])
    with pytest.raises(SaccadeError, match=r"a.png not found"):
        vit.predict("a.png")


def test_a_file_may_be_given_as_bytes(vit, files):
    with open(files[0], "rb") as file:
        name = vit.register_file(file.read(), name="a.png")
    assert vit.candidates([name])[0][0].log_prob == vit.candidates([files[0]])[0][0].log_prob
    assert vit.view(name).input == "a.png"
    vit.release_file(name)
    vit.predict([files[0]])
    with pytest.raises(SaccadeError, match="not found"):
        vit.predict([name])
