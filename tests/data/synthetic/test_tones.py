"""Dialled numbers: the tones are those of the keys, and no held-out number is trained on."""

from itertools import islice

import numpy as np

from saccade.data.media.sound import read_sound
from saccade.data.synthetic.tones import KEYS, RATE, dial, dialled, numbers


def test_the_same_numbers_come_again_and_held_out_ones_are_others():
    train, heldout = (list(numbers(300, seed=1, heldout=part)) for part in (False, True))
    assert train == list(numbers(300, seed=1))
    assert not set(train) & set(heldout)
    assert {len(text) for text in train} == {3, 4, 5, 6, 7}
    assert set("".join(train)) == set(KEYS)


def test_a_number_always_sounds_the_same_and_not_like_another():
    assert np.array_equal(dial("0123"), dial("0123"))
    assert not np.array_equal(dial("012"), dial("012", seed=1))


def test_recordings_are_written_as_they_sound(tmp_path):
    [(recording, text)] = dialled(1, seed=1)
    recording.save(tmp_path / "a.wav")
    samples, rate = read_sound(tmp_path / "a.wav")
    assert rate == RATE and text == next(numbers(1, seed=1))
    np.testing.assert_allclose(samples, dial(text, seed=1), atol=1e-4)


def loudest(sound: np.ndarray, low: float, high: float) -> float:
    energy = np.abs(np.fft.rfft(sound)) ** 2
    pitches = np.fft.rfftfreq(len(sound), 1 / RATE)
    return float(pitches[np.where((pitches > low) & (pitches < high), energy, 0).argmax()])


def test_a_key_is_its_two_tones():
    for key, (low, high) in {"1": (697, 1209), "0": (941, 1336), "6": (770, 1477), "#": (941, 1477)}.items():
        sound = dial(key)
        assert abs(loudest(sound, 600, 1100) - low) < 15
        assert abs(loudest(sound, 1100, 1600) - high) < 15


def test_every_key_is_heard_by_the_textbook_detector():
    """Goertzel's: of the seven pitches, the loudest low one and the loudest high one, between pauses."""
    for text in islice(numbers(5, seed=3), 5):
        sound = dial(text)
        frame = 160
        loud = np.array([np.abs(sound[i : i + frame]).mean() for i in range(0, len(sound) - frame, frame)])
        assert (np.diff((loud > 0.12).astype(int)) == 1).sum() == len(text)
