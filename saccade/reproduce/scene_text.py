"""IIIT5K for `show-attend-read`: real words in photographs, and many rendered ones to learn from.

Words to render are those of the English files of multi30k and of a few books, and strings of letters and digits. Fonts
are matplotlib's own and whatever is in `fonts/` of the data folder (*.ttf, *.otf). Letters have the colours of real
words. 150 real words are held out to choose the weights.
"""

from __future__ import annotations

import gzip
import json
import lzma
import multiprocessing
import os
import random
import re
import tarfile
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import accumulate, cycle, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from saccade.data.synthetic.rendering import Color, RenderStyle, find_fonts, list_bundled_fonts, render_word

RENDERED = 200_000  # words
WORDS_PER_PART = 500  # that a process renders before it notices that the main process was killed
REPEATS = 30  # of each real word in one pass over the rendered ones
HELD_OUT = 150  # real words
FONTS_PER_FAMILY = 12  # so that large families do not count for more
NEIGHBOUR_SHARE = 0.15  # of pictures with something of another word in them, as real ones have
PARALLEL_RENDERINGS = 1000  # fewer are rendered by one process
MARKS = (".", ",", "!", "?", ":", "'", "-", "'s", '"')


class Words(NamedTuple):
    """Words to render, with cumulative sampling weights."""

    texts: tuple[str, ...]
    sums: tuple[float, ...]


def prepare_scene_text(data: Path, folder: Path, *, most: int | None = None) -> None:
    """Write a folder of real and `most` rendered words for training, and one of real words for validation."""
    real = unpack_real_words(data / "iiit5k", folder)
    random.Random("held out").shuffle(real)
    styles = sample_styles(data, [folder / "train" / name for name, _ in real])
    words = read_words(data, [text for _, text in real])
    rendered = render_all(folder / "train" / "drawn", words, styles, min(RENDERED, most or RENDERED))
    drawn = [(f"drawn/{name}", word) for name, word in rendered]
    write_metadata(folder / "train", [*(real[HELD_OUT:] * REPEATS), *drawn])
    (folder / "valid").mkdir()
    for name, _ in real[:HELD_OUT]:
        (folder / "train" / name).rename(folder / "valid" / Path(name).name)
    write_metadata(folder / "valid", [(Path(name).name, text) for name, text in real[:HELD_OUT]])


def write_metadata(folder: Path, rows: Iterable[tuple[str, str]]) -> None:
    """Write the target text of each file of a folder to its metadata file."""
    lines = (json.dumps({"file_name": name, "text": text}) for name, text in rows)
    (folder / "metadata.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def unpack_real_words(pack: Path, folder: Path) -> list[tuple[str, str]]:
    """Unpack the real pictures; return their files and lower-cased words."""
    (folder / "train" / "real").mkdir(parents=True)
    with tarfile.open(pack / "train_images.tar.gz") as archive:
        for member in archive:
            if member.isfile():
                member.name = Path(member.name).name
                archive.extract(member, folder / "train" / "real", filter="data")
    with gzip.open(pack / "train.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [(f"real/{row['image']}", row["text"].lower()) for row in rows]


def read_words(data: Path, real: Sequence[str]) -> Words:
    """Read words of books, captions and real pictures; rare and short words get a higher sampling weight."""
    counts = Counter[str]()
    for path in sorted(data.glob("multi30k/*.en.gz")):
        counts.update(re.findall(r"[a-z]+", gzip.decompress(path.read_bytes()).decode().lower()))
    for path in data.glob("classic-books/valid.jsonl.xz"):
        for line in lzma.decompress(path.read_bytes()).decode().splitlines():
            counts.update(re.findall(r"[a-z]+", json.loads(line)["text"].lower()))
    shares = {word: count**0.5 / len(word) for word, count in counts.items() if count > 1 and len(word) > 1}
    more = 0.1 * sum(shares.values()) / len(real) or 1.0
    for word in real:
        shares[word] = shares.get(word, 0.0) + more
    return Words(tuple(shares), tuple(accumulate(shares.values())))


def sample_text(words: Words, rng: random.Random) -> str:
    """Sample a text to render: a word in some casing, a number, or random letters."""
    kind = rng.random()
    if kind < 0.12:
        return "".join(rng.choices("0123456789", k=rng.choice((1, 2, 2, 3, 3, 4, 4, 5, 6))))
    if kind < 0.18:
        return "".join(rng.choices("0123456789", k=rng.randint(1, 3))) + rng.choice(words.texts)[:2].upper()
    [word] = rng.choices(words.texts, cum_weights=words.sums)
    if kind < 0.24:
        word = "".join(rng.sample(word, len(word)))
    elif kind < 0.36:  # names look like words, but are none
        other = rng.choice(words.texts)
        word = word[: 1 + len(word) // 2] + other[len(other) // 2 :][:4]
    return rng.choice((str.upper, str.upper, str.capitalize, str.lower))(word)


def sample_styles(data: Path, real: Sequence[Path]) -> list[RenderStyle]:
    """Sample rendering styles from plain to distorted, most of them with colours of real pictures."""
    fonts = balance_families(
        (*list_bundled_fonts(), *(find_fonts(data / "fonts") if (data / "fonts").is_dir() else ()))
    )
    colours = tuple(get_two_colors(path) for path in real)
    return [RenderStyle(fonts, rough / 10, colours if rough % 4 else (), NEIGHBOUR_SHARE) for rough in range(1, 8)]


def balance_families(fonts: Sequence[str]) -> tuple[str, ...]:
    """Balance font families, which are identified by the first letters of the file names."""
    families = dict[str, list[str]]()
    for font in fonts:
        families.setdefault(re.split(r"[^A-Za-z]", Path(font).stem)[0], []).append(font)
    return tuple(font for family in families.values() for font in islice(cycle(family), FONTS_PER_FAMILY))


def get_two_colors(path: Path) -> tuple[Color, Color]:
    """Return the mean colours of background (the one at the edges) and foreground of a picture."""
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB").resize((64, 24)), dtype=np.float64)
    grey = pixels.mean(-1)
    bright = grey > (grey.min() + grey.max()) / 2
    means = [pixels[part].mean(0) if part.any() else pixels.mean((0, 1)) for part in (bright, ~bright)]
    edge = np.concatenate([bright[0], bright[-1], bright[:, 0], bright[:, -1]]).mean() > 0.5
    ink, ground = (tuple(int(value) for value in mean) for mean in (means if not edge else means[::-1]))
    return (ink[0], ink[1], ink[2]), (ground[0], ground[1], ground[2])


def render_all(folder: Path, words: Words, styles: Sequence[RenderStyle], count: int) -> list[tuple[str, str]]:
    """Render pictures on all cores; return their names and texts."""
    folder.mkdir(parents=True)
    cores = os.cpu_count() or 1
    render = partial(render_some, folder=folder, words=words, styles=styles)
    if count < PARALLEL_RENDERINGS:
        return render(range(count))
    parts = np.array_split(np.arange(count), max(8 * cores, count // WORDS_PER_PART))
    os.environ["PYTHONSAFEPATH"] = "1"  # the processes import nothing from the working folder
    with ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("spawn")) as pool:
        return [row for rows in pool.map(render, [part.tolist() for part in parts]) for row in rows]


def render_some(
    numbers: Sequence[int], *, folder: Path, words: Words, styles: Sequence[RenderStyle]
) -> list[tuple[str, str]]:
    rows = []
    for number in numbers:
        rng = random.Random(f"drawn {number}")
        text = sample_text(words, rng)
        shown = text
        if rng.random() < 0.12:
            shown = text + rng.choice(MARKS) if rng.random() < 0.8 else rng.choice(MARKS) + text
        name = f"{number:06d}.jpg"
        render_word(shown, rng.choice(styles), rng).save(folder / name, quality=rng.randint(50, 95))
        rows.append((name, re.sub(r"[^a-z0-9]", "", shown.lower())))
    return rows
