"""Log-mel spectrograms: by hand where possible, and compared with other libraries."""

import numpy as np
import pytest

from saccade.config.sound import Sound
from saccade.data.media.frames import (
    build_mel_filters,
    compute_log_mel,
    extract_features,
    hertz_to_mel,
    mel_to_hertz,
    normalize_features,
)
from saccade.errors import SaccadeError

SETTINGS = Sound(sample_rate=8000, mel_bands=13, window=0.032, hop=0.011)


def test_mels_are_even_below_1000_hertz_and_logarithmic_above():
    np.testing.assert_allclose(hertz_to_mel(np.array([0.0, 200.0, 1000.0, 6400.0])), [0, 3, 15, 42])
    np.testing.assert_allclose(mel_to_hertz(hertz_to_mel(np.array([50.0, 440.0, 999.0, 3000.0]))), [50, 440, 999, 3000])


def test_a_tone_is_loudest_in_its_own_band():
    times = np.arange(4000) / 8000
    corners = mel_to_hertz(np.linspace(0, hertz_to_mel(np.array(4000.0)), 15))
    for band in (2, 7, 11):
        frames = compute_log_mel(np.sin(2 * np.pi * corners[band + 1] * times).astype(np.float32), SETTINGS)
        assert (frames[5:-5].argmax(axis=1) == band).all()


def test_there_is_a_frame_every_hop():
    assert compute_log_mel(np.zeros(1000, np.float32), SETTINGS).shape == (1 + 1000 // 88, 13)
    assert compute_log_mel(np.zeros(1, np.float32), SETTINGS).shape == (1, 13)


def test_silence_is_the_logarithm_of_the_floor():
    np.testing.assert_allclose(compute_log_mel(np.zeros(500, np.float32), SETTINGS), np.log(1e-10), rtol=1e-6)


def test_frames_are_those_of_transformers():
    audio = pytest.importorskip("transformers.audio_utils")
    sound = np.random.default_rng(7).normal(0, 0.1, 5003).astype(np.float32)
    bank = audio.mel_filter_bank(129, 13, 0.0, 4000.0, 8000, norm="slaney", mel_scale="slaney")
    np.testing.assert_allclose(build_mel_filters(13, 256, 8000), bank, atol=1e-12)
    wanted = audio.spectrogram(
        sound, audio.window_function(256, "hann"), 256, 88, power=2.0, pad_mode="constant",
        mel_filters=bank, mel_floor=1e-10, log_mel="log",
    )  # fmt: skip
    np.testing.assert_allclose(compute_log_mel(sound, SETTINGS), wanted.T, atol=1e-4)


def test_long_recordings_are_transformed_in_parts(monkeypatch):
    sound = np.random.default_rng(7).normal(0, 0.1, 5003).astype(np.float32)
    whole = compute_log_mel(sound, SETTINGS)
    monkeypatch.setattr("saccade.data.media.frames.BLOCK_FRAMES", 11)
    np.testing.assert_allclose(compute_log_mel(sound, SETTINGS), whole)


def test_features_are_normalised_and_a_constant_one_is_zero():
    frames = np.stack([np.array([1.0, 3.0, 5.0]), np.full(3, 7.0)], axis=1)
    np.testing.assert_allclose(normalize_features(frames), [[-1.22473, 0], [0, 0], [1.22473, 0]], atol=1e-4)
    sound = np.random.default_rng(7).normal(0, 0.1, 4000).astype(np.float32)
    made = extract_features(sound, 16_000, SETTINGS)  # at another rate, too
    assert made.shape == (1 + 2000 // 88, 13)
    np.testing.assert_allclose(made.mean(axis=0), 0, atol=1e-5)
    raw = extract_features(sound, 16_000, SETTINGS.model_copy(update={"normalize": False}))
    np.testing.assert_allclose(normalize_features(raw), made)


def test_bands_too_narrow_for_the_window_are_refused():
    with pytest.raises(SaccadeError, match="reader.sound.mel_bands = 80 are narrower"):
        compute_log_mel(np.zeros(500, np.float32), Sound(sample_rate=8000, mel_bands=80, window=0.01))


def test_a_window_without_a_sample_is_refused():
    with pytest.raises(ValueError, match="at least one sample at 8000"):
        Sound(sample_rate=8000, hop=0.0001)


def test_shorter_recordings_end_in_silence_that_is_read():
    sound = np.random.default_rng(7).normal(0, 0.1, 3000).astype(np.float32)
    padded = SETTINGS.model_copy(update={"pad_seconds": 1.0, "max_seconds": 1.0, "normalize": False})
    made = extract_features(sound, 8000, padded)
    assert len(made) == 1 + 8000 // 88
    np.testing.assert_allclose(made[45:], np.log(1e-10), rtol=1e-6)
    np.testing.assert_allclose(
        made[:30], extract_features(sound, 8000, padded.model_copy(update={"pad_seconds": None}))[:30]
    )


def test_energies_are_clamped_eight_powers_of_ten_below_the_maximum():
    sound = np.zeros(4000, np.float32)
    sound[2000] = 1.0
    made = extract_features(sound, 8000, SETTINGS.model_copy(update={"normalize": "whisper"}))
    assert len(made) == 4000 // 88
    np.testing.assert_allclose(made.max() - made.min(), 8 / 4, rtol=1e-5)
