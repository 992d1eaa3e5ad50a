"""Pictures of words are deterministic and legible, and held-out words differ."""

import random
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from saccade.data.synthetic.rendering import (
    LETTERS,
    MIN_CONTRAST,
    RenderStyle,
    add_strip,
    compute_brightness,
    crop_letters,
    draw_letters,
    find_fonts,
    generate_word_pictures,
    list_bundled_fonts,
    render_word,
    sample_color_pair,
    warp_letters,
)
from saccade.errors import SaccadeError


def test_the_same_pictures_each_time():
    first, again = (
        [(np.asarray(picture), word) for picture, word in generate_word_pictures(5, seed=1)] for _ in range(2)
    )
    assert all(np.array_equal(a, b) and x == y for (a, x), (b, y) in zip(first, again, strict=True))


def test_words_that_are_held_out_are_never_trained_on():
    trained, held = (
        {word for _, word in generate_word_pictures(150, seed=1, heldout=heldout)} for heldout in (False, True)
    )
    assert not trained & held
    assert {len(word) for word in trained} == {3, 4, 5}
    assert set("".join(trained)) == set(LETTERS)


def test_longer_words_are_wider_and_every_letter_is_there():
    rng, [font, *_] = random.Random(1), list_bundled_fonts()
    for word in ("no", "nonono"):
        letters = np.asarray(draw_letters(word, font, rng)) > 100
        columns = letters.any(0)
        strokes = (columns[1:] & ~columns[:-1]).sum()
        assert strokes == len(word)


def test_nothing_of_a_word_is_cut_off_and_the_margin_is_small():
    rng = random.Random(2)
    for _ in range(40):
        whole = warp_letters(draw_letters("dog", list_bundled_fonts()[0], rng), 1.0, rng)
        framing = crop_letters(whole, rng)
        assert np.asarray(framing, dtype=int).sum() == np.asarray(whole, dtype=int).sum()
        left, top, right, bottom = framing.getbbox()
        assert max(left, top, framing.width - right, framing.height - bottom) <= 1 + (bottom - top) // 5


def test_letters_differ_from_the_background():
    rng = random.Random(3)
    for _ in range(50):
        ink, ground = sample_color_pair(rng)
        assert abs(compute_brightness(ink) - compute_brightness(ground)) >= MIN_CONTRAST


def test_colours_that_are_given_are_taken():
    red, blue = (200, 10, 10), (10, 10, 200)
    picture = np.asarray(
        render_word("mmm", RenderStyle(list_bundled_fonts(), 0.0, [(red, blue)]), random.Random(1)), dtype=int
    )
    for colour in (red, blue):
        assert (np.abs(picture - np.array(colour)).sum(-1) < 40).mean() > 0.1


def test_a_strip_of_other_letters_stands_at_one_edge_and_covers_nothing():
    rng, sides = random.Random(5), set()
    letters = crop_letters(draw_letters("dog", list_bundled_fonts()[0], rng), rng)
    own, other = np.asarray(letters), draw_letters("god", list_bundled_fonts()[0], rng)
    for _ in range(30):
        made = np.asarray(add_strip(letters, other, rng))
        places = {
            "right, below": made[: own.shape[0], : own.shape[1]],
            "left, above": made[made.shape[0] - own.shape[0] :, made.shape[1] - own.shape[1] :],
        }
        found = [name for name, part in places.items() if (part == own).all()]
        more = "wide" if made.shape[1] > own.shape[1] else "high"
        assert found and made.astype(int).sum() > own.astype(int).sum()
        sides.add((found[0], more))
    assert len(sides) == 4


def test_strips_are_as_frequent_as_the_style_asks():
    plain, beside = (
        [
            np.asarray(render_word("dog", RenderStyle(list_bundled_fonts(), 0.0, strip_rate=share), random.Random(i)))
            for i in range(60)
        ]
        for share in (0.0, 0.5)
    )
    assert 15 <= sum(a.shape != b.shape for a, b in zip(plain, beside, strict=True)) <= 45


def test_fonts_are_found_in_a_folder(tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "a.ttf").write_bytes(Path(list_bundled_fonts()[0]).read_bytes())
    (tmp_path / "b.ttf").write_text("no font")
    assert find_fonts(tmp_path) == (str(tmp_path / "more" / "a.ttf"),)
    assert isinstance(render_word("word", RenderStyle(find_fonts(tmp_path)), random.Random(1)), Image.Image)


def test_a_folder_without_fonts_is_reported(tmp_path):
    with pytest.raises(SaccadeError, match=r"has no font with letters in it; expected files \*.ttf or \*.otf"):
        find_fonts(tmp_path)
