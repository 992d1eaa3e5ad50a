"""Pictures of shapes are deterministic and match their texts, and held-out ones differ."""

import numpy as np

from saccade.data.synthetic.shapes import COLORS, KINDS, generate_scenes, generate_shapes


def test_the_same_pictures_each_time():
    for made in (generate_shapes, generate_scenes):
        first, again = ([(np.asarray(picture), text) for picture, text in made(5, seed=1)] for _ in range(2))
        assert all(np.array_equal(a, b) and x == y for (a, x), (b, y) in zip(first, again, strict=True))


def test_a_shape_has_the_colour_that_is_named():
    for picture, text in generate_shapes(40, seed=2):
        colour, kind = text.split()
        assert kind in KINDS
        far = np.abs(np.asarray(picture, dtype=int) - np.array(COLORS[colour])).sum(-1)
        assert 20 < (far < 10).sum() < 48 * 48 / 4


def test_sentences_that_are_held_out_are_never_trained_on():
    trained = {text for _, text in generate_scenes(400, seed=1)}
    held = {text for _, text in generate_scenes(100, seed=1, heldout=True)}
    assert not trained & held
    assert {len(text.split(" , ")) for text in trained} == {2, 3, 4}
