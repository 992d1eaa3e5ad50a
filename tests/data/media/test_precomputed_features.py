"""Precomputed features: many recordings in a file, or one, and errors in such files."""

import numpy as np
import pytest

from saccade import allocation
from saccade.data.media.frames import is_feature_file, load_features, read_feature_archive
from saccade.errors import SaccadeError

FRAMES = np.arange(21, dtype=np.float32).reshape(7, 3)


def write(path, **changes):
    arrays = {"features": FRAMES, "offsets": np.array([0, 2, 7]), "text": np.array(["yes", "no no"]), **changes}
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def test_recordings_of_a_file_are_found_by_their_names(tmp_path):
    rows = list(read_feature_archive(write(tmp_path / "a.npz")))
    assert [(number, text) for number, _, text in rows] == [(1, "yes"), (2, "no no")]
    assert all(is_feature_file(name) for _, name, _ in rows) and not is_feature_file("a.wav")
    np.testing.assert_array_equal(load_features(rows[0][1], num_features=3), FRAMES[:2])
    np.testing.assert_array_equal(load_features(rows[1][1], num_features=3), FRAMES[2:])


def test_one_recording_in_a_file_of_its_own(tmp_path):
    np.save(tmp_path / "a.npy", FRAMES.astype(np.float64))
    frames = load_features(str(tmp_path / "a.npy"), num_features=3)
    assert frames.dtype == np.float32
    np.testing.assert_array_equal(frames, FRAMES)


def test_another_number_of_features_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", FRAMES)
    with pytest.raises(
        SaccadeError, match="has 3 features a frame, the model reads 80; set reader.sound.mel_bands = 3"
    ):
        load_features(str(tmp_path / "a.npy"), num_features=80)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((0, 3)), "has no frames"),
        (np.zeros(5), "has no frames"),
        (np.full((2, 3), np.nan), "are not finite"),
        (np.array([{}], dtype=object), "not a readable file of arrays"),
    ],
)
def test_arrays_that_are_not_features_are_refused(tmp_path, array, message):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(SaccadeError, match=message):
        load_features(str(tmp_path / "a.npy"), num_features=3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text": None}, "lacks the array 'text'"),
        ({"offsets": np.array([0, 7])}, "offsets must rise"),
        ({"offsets": np.array([0, 2, 9])}, "offsets must rise"),
        ({"offsets": np.array([0, 8, 7])}, "offsets must rise"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(tmp_path, changes, message):
    with pytest.raises(SaccadeError, match=message):
        list(read_feature_archive(write(tmp_path / "a.npz", **changes)))


def test_missing_and_damaged_files_are_reported(tmp_path):
    with pytest.raises(SaccadeError, match="b.npz not found"):
        list(read_feature_archive(tmp_path / "b.npz"))
    (tmp_path / "c.npz").write_text("no arrays at all")
    with pytest.raises(SaccadeError, match="c.npz is not a readable file of arrays"):
        list(read_feature_archive(tmp_path / "c.npz"))


@pytest.mark.parametrize("kind", ["npz", "npy"])
def test_arrays_that_do_not_fit_into_memory_are_not_read(tmp_path, monkeypatch, kind):
    """An archive of zeros is a thousand times smaller, and a file may have holes."""
    monkeypatch.setattr(allocation, "get_free_bytes", lambda: 10**6)
    path = tmp_path / f"a.{kind}"
    if kind == "npz":
        np.savez_compressed(path, features=np.zeros((10**5, 3)), offsets=np.array([0, 10**5]), text=np.array(["a"]))
        assert path.stat().st_size < 10**5
        with pytest.raises(SaccadeError, match=r"a.npz needs 2.4 MB of memory, but 1.0 MB are free; split it"):
            list(read_feature_archive(path))
    else:
        np.save(path, FRAMES)
        with path.open("rb+") as file:
            file.truncate(10**9)
        with pytest.raises(SaccadeError, match=r"a.npy needs 1.0 GB of memory, but 1.0 MB are free"):
            load_features(str(path), num_features=3)
