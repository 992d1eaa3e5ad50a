"""Spectrogram images."""

import numpy as np

from saccade.view.spectrogram import render_spectrogram


def test_high_pitches_are_above_and_loud_is_light():
    frames = np.zeros((10, 4))
    frames[2, 0] = 1.0  # low frequency, third frame
    frames[7, 3] = 0.5  # high frequency, eighth frame
    picture = render_spectrogram(frames, columns=10)
    assert picture.shape == (112, 440) and picture.dtype == np.uint8
    assert (picture[-28:, 88:132] == 255).all()
    assert (picture[:28, 308:352] == 127).all()
    assert np.count_nonzero(picture) == 2 * 28 * 44


def test_silence_fills_the_last_cell():
    picture = render_spectrogram(np.ones((5, 3)) * np.arange(3), columns=8)
    assert picture.shape[1] == 448
    assert (picture[:, 5 * 56 :] == 0).all() and picture[0, 0] == 255


def test_nothing_but_silence_is_black():
    assert not render_spectrogram(np.zeros((5, 3)), columns=5).any()
