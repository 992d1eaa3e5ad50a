"""Recordings of every format become mono samples; other files are refused in one line."""

import math
import struct
import sys
import wave
from pathlib import Path

import numpy as np
import pytest

from saccade.data.media.sound import read_sound, resample
from saccade.errors import SaccadeError


def write(path: Path, samples: np.ndarray, *, rate: int = 8000, width: int = 2) -> Path:
    """Samples (N, channels) from -1 to 1 as a WAV file of this many bytes a sample."""
    whole = np.round(samples * (2 ** (8 * width - 1) - 1)).astype(np.int64)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(samples.shape[1])
        file.setsampwidth(width)
        file.setframerate(rate)
        shifted = whole + 128 if width == 1 else whole
        file.writeframes(b"".join(int(x).to_bytes(8, "little", signed=True)[:width] for x in shifted.ravel()))
    return path


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_samples_of_any_width_are_numbers_from_minus_one_to_one(tmp_path, width):
    wanted = np.array([0.0, 0.5, -0.5, 0.99, -0.99])
    samples, rate = read_sound(write(tmp_path / "a.wav", wanted[:, None], width=width))
    assert rate == 8000 and samples.dtype == np.float32
    np.testing.assert_allclose(samples, wanted, atol=2.0 ** (2 - 8 * width) if width < 3 else 1e-6)


def test_two_channels_become_their_mean(tmp_path):
    stereo = np.stack([np.full(7, 0.5), np.full(7, -0.25)], axis=1)
    samples, _ = read_sound(write(tmp_path / "a.wav", stereo))
    np.testing.assert_allclose(samples, np.full(7, 0.125), atol=1e-4)


def test_a_recording_can_come_from_an_archive(tmp_path):
    path = write(tmp_path / "a.wav", np.full((5, 1), 0.25))
    samples, _ = read_sound(path.read_bytes(), name="a.tar: a.wav")
    assert len(samples) == 5


def tone(pitch: float, rate: int, seconds: float = 0.5) -> np.ndarray:
    return np.sin(2 * np.pi * pitch * np.arange(int(seconds * rate)) / rate).astype(np.float32)


@pytest.mark.parametrize(("rate", "wanted"), [(44_100, 16_000), (8_000, 16_000), (16_000, 8_000), (11_025, 8_000)])
def test_a_tone_stays_the_same_tone_at_another_rate(rate, wanted):
    made = resample(tone(440, rate), rate, wanted)
    exact = tone(440, wanted)
    assert abs(len(made) - len(exact)) <= 1
    middle = slice(400, len(exact) - 400)
    np.testing.assert_allclose(made[middle], exact[middle], atol=1e-5)


@pytest.mark.parametrize("pitch", [4050, 4400, 6000])
def test_what_a_lower_rate_cannot_hold_is_taken_out(pitch):
    made = resample(tone(pitch, 16_000), 16_000, 8_000)  # 6000 hertz would come back as 2000
    assert np.abs(made[400:-400]).max() < 1e-5


def test_what_a_lower_rate_has_not_is_not_made_up():
    """The mirror image of a tone above the old rate's half is 100 dB lower, so that empty mel bands stay empty."""
    made = resample(tone(1000, 8_000), 8_000, 16_000)[400:-400].astype(np.float64)
    power = np.abs(np.fft.rfft(made * np.hanning(len(made)))) ** 2
    assert power[len(power) // 2 :].max() < 1e-10 * power.max()


@pytest.mark.parametrize("count", [1, 2, 3, 100, 4409])
@pytest.mark.parametrize(("rate", "wanted"), [(44_100, 16_000), (16_000, 44_100), (768_000, 1000), (1, 1000)])
def test_a_recording_lasts_as_long_at_another_rate(count, rate, wanted):
    made = resample(np.ones(count, np.float32), rate, wanted)
    assert made.dtype == np.float32
    assert len(made) == math.ceil(count * wanted / rate)
    assert np.isfinite(made).all()


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(SaccadeError, match="cannot read the sound .*no.wav: No such file"):
        read_sound(tmp_path / "no.wav")


def test_an_invalid_path_is_reported():
    with pytest.raises(SaccadeError, match="cannot read the sound a.*b: embedded null byte"):
        read_sound("a\0b")


def test_an_empty_recording_is_refused(tmp_path):
    with pytest.raises(SaccadeError, match="a.wav is empty: it has no samples"):
        read_sound(write(tmp_path / "a.wav", np.zeros((0, 1))))


def test_a_recording_that_is_cut_off_is_refused(tmp_path):
    path = write(tmp_path / "a.wav", np.zeros((100, 1)))
    path.write_bytes(path.read_bytes()[:-60])
    with pytest.raises(SaccadeError, match=r"^the sound \S*a.wav is cut off: 100 samples announced, 70 found"):
        read_sound(path)


def test_a_recording_that_is_too_long_is_refused_before_it_is_read(tmp_path):
    path = write(tmp_path / "a.wav", np.zeros((100, 1)))
    data = bytearray(path.read_bytes())
    data[40:44] = struct.pack("<I", 2**31 - 2)  # what the file says of its size, not what it has
    path.write_bytes(data)
    with pytest.raises(SaccadeError, match="lasts 134,217.7 seconds, at most 10 are read"):
        read_sound(path, max_seconds=10)


@pytest.mark.parametrize("rate", [0, 768_001, 2**32 - 1])
def test_a_rate_that_nobody_records_with_is_refused(tmp_path, rate):
    """One sample at a usual rate would be computed from millions."""
    path = write(tmp_path / "a.wav", np.zeros((10, 1)))
    data = bytearray(path.read_bytes())
    data[24:28] = struct.pack("<I", rate)
    path.write_bytes(data)
    with pytest.raises(SaccadeError, match=f"declares {rate:,} samples a second, expected 1 to 768,000"):
        read_sound(path)


@pytest.mark.parametrize("content", [b"", b"this is a text, not a sound\n" * 9])
def test_another_file_needs_soundfile(tmp_path, monkeypatch, content):
    (tmp_path / "a.wav").write_bytes(content)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(SaccadeError, match=r"a.wav is not an integer WAV; .*pip install .*\[sound\]"):
        read_sound(tmp_path / "a.wav")


def test_soundfile_reads_the_other_kinds(tmp_path):
    soundfile = pytest.importorskip("soundfile")
    wanted = tone(440, 8000)
    for name, kind in (("a.flac", "PCM_16"), ("b.wav", "FLOAT")):
        soundfile.write(tmp_path / name, wanted, 8000, subtype=kind)
        samples, rate = read_sound(tmp_path / name)
        assert rate == 8000
        np.testing.assert_allclose(samples, wanted, atol=1e-4)


@pytest.mark.parametrize("content", [b"", b"this is a text, not a sound\n" * 9])
def test_what_is_wrong_is_reported_without_names_of_objects_in_memory(content):
    pytest.importorskip("soundfile")
    with pytest.raises(SaccadeError, match=r"^cannot read the sound sent.wav: Format not recognised; is it a sound\?$"):
        read_sound(content, name="sent.wav")


def test_soundfile_refuses_what_is_no_sound(tmp_path):
    soundfile = pytest.importorskip("soundfile")
    (tmp_path / "a.wav").write_bytes(b"this is a text, not a sound\n" * 9)
    with pytest.raises(SaccadeError, match="cannot read the sound .*a.wav: .*is it a sound"):
        read_sound(tmp_path / "a.wav")
    soundfile.write(tmp_path / "b.wav", np.array([0.0, np.nan]), 8000, subtype="FLOAT")
    with pytest.raises(SaccadeError, match="are not finite"):
        read_sound(tmp_path / "b.wav")


@pytest.mark.parametrize(
    ("place", "number", "size"), [(16, 2**31, 4), (34, 72, 2), (34, 50_700, 2)], ids=["length", "width", "wide"]
)
def test_a_wrong_header_is_reported_in_one_line(tmp_path, place, number, size):
    """Wrong lengths of chunks and bits per sample."""
    data = bytearray(write(tmp_path / "a.wav", np.zeros((50, 1))).read_bytes())
    data[place : place + size] = number.to_bytes(size, "little")
    with pytest.raises(SaccadeError, match=r"sound a") as error:
        read_sound(bytes(data), name="a")
    assert "\n" not in str(error.value)


def test_more_samples_than_any_device_records_are_refused(tmp_path):
    path = write(tmp_path / "a.wav", np.zeros((1900, 3)), rate=192_000)
    with pytest.raises(SaccadeError, match=r"has 3 channels of 192,000 samples a second, at most 384,000 in all"):
        read_sound(path, max_seconds=0.01)
    assert len(read_sound(path, max_seconds=1).samples) == 1900
