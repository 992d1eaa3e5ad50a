"""Dialled numbers: the tones are those of the keys, and no held-out number is trained on."""

from itertools import islice

import numpy as np

from saccade.data.media.sound import read_sound
from saccade.data.synthetic.tones import KEYS, RATE, generate_numbers, generate_recordings, synthesize_dialling


def test_the_same_numbers_come_again_and_held_out_ones_are_others():
    train, heldout = (list(generate_numbers(300, seed=1, heldout=part)) for part in (False, True))
    assert train == list(generate_numbers(300, seed=1))
    assert not set(train) & set(heldout)
    assert {len(text) for text in train} == {3, 4, 5, 6, 7}
    assert set("".join(train)) == set(KEYS)


def test_a_number_always_sounds_the_same_and_not_like_another():
    assert np.array_equal(synthesize_dialling("0123"), synthesize_dialling("0123"))
    assert not np.array_equal(synthesize_dialling("012"), synthesize_dialling("012", seed=1))


def test_recordings_are_written_as_they_sound(tmp_path):
    [(recording, text)] = generate_recordings(1, seed=1)
    recording.save(tmp_path / "a.wav")
    samples, rate = read_sound(tmp_path / "a.wav")
    assert rate == RATE and text == next(generate_numbers(1, seed=1))
    np.testing.assert_allclose(samples, synthesize_dialling(text, seed=1), atol=1e-4)


def loudest(sound: np.ndarray, low: float, high: float) -> float:
    energy = np.abs(np.fft.rfft(sound)) ** 2
    pitches = np.fft.rfftfreq(len(sound), 1 / RATE)
    return float(pitches[np.where((pitches > low) & (pitches < high), energy, 0).argmax()])


def test_a_key_is_its_two_tones():
    for key, (low, high) in {"1": (697, 1209), "0": (941, 1336), "6": (770, 1477), "#": (941, 1477)}.items():
        sound = synthesize_dialling(key)
        assert abs(loudest(sound, 600, 1100) - low) < 15
        assert abs(loudest(sound, 1100, 1600) - high) < 15


def test_every_key_is_heard_by_the_textbook_detector():
    """The Goertzel algorithm: the loudest low and the loudest high frequency between pauses."""
    for text in islice(generate_numbers(5, seed=3), 5):
        sound = synthesize_dialling(text)
        frame = 160
        loud = np.array([np.abs(sound[i : i + frame]).mean() for i in range(0, len(sound) - frame, frame)])
        assert (np.diff((loud > 0.12).astype(int)) == 1).sum() == len(text)
