"""Scene text recognition: show-attend-read on IIIT5K, 2,000 real words and many rendered ones.

    python benchmarks/iiit5k.py --data FOLDER [--minutes 3.5] [--seeds 1] [--run FOLDER] [--out FOLDER] [KEY=VALUE ...]
    python benchmarks/iiit5k.py --tiny

FOLDER holds `iiit5k/{train,test_a}_images.tar.gz` and `.jsonl.gz`; words to draw are those of the files `*.en.gz` in
`multi30k/` and of `classic-books/valid.jsonl.xz`, as far as they are there, and strings of letters and digits. Fonts
are matplotlib's own and whatever lies in `fonts/` (*.ttf, *.otf: those of PyPI packages such as trdg, font-roboto,
font-caladea, font-source-serif-pro): without these, letters of signs look like nothing that was learned. Letters have
the colours of real words. 150 real words are held out to choose the weights. Case does not count. About a minute of
drawing on 16 cores, then the minutes of training, on an H200.
"""

import gzip
import json
import lzma
import multiprocessing
import os
import random
import re
import tarfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import accumulate, cycle, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from packs import Pack, Study, run_study, write_metadata
from PIL import Image

from saccade.data.synthetic.rendering import Color, RenderStyle, find_fonts, list_bundled_fonts, render_word

STUDY = Study(
    name="iiit5k",
    recipe="show-attend-read",
    settings=(
        "reader.channels=[64, 128, 256]", "reader.depth=3", "reader.augment={crop=3, num_ops=2, magnitude=0.2}",
        "reader.dropout=0.1", "writer.stack.dim=384", "writer.stack.dropout=0.3", "train.batch_tokens=30720",
        "train.schedule.lr=0.001", "train.optimizer.weight_decay=0.02", "train.ema=0.999",
        "train.valid_predictions=150",
        "predict.beam=5", "predict.length_penalty=0.0",
    ),
    minutes=3.5,
    scores=("accuracy", "cer"),
    lowercase=True,
)  # fmt: skip
DRAWN = 200_000  # words
TIMES = 30  # real words in one pass over the others
HELD = 150
ALIKE = 12  # fonts of each family: families of many do not count for more
BESIDE = 0.15  # the share of pictures with something of another word in them, as real ones have
MARKS = (".", ",", "!", "?", ":", "'", "-", "'s", '"')


class Words(NamedTuple):
    """Words to render, with cumulative sampling weights."""

    texts: tuple[str, ...]
    sums: tuple[float, ...]


def build_pack(data: Path, folder: Path) -> Pack:
    """Build one folder of real and rendered words for training, and one of real words for validation."""
    real = real_words(data / "iiit5k", folder)
    random.Random("held out").shuffle(real)
    hands = sample_styles(data, [folder / "train" / name for name, _ in real])
    drawn = draw_all(folder / "train" / "drawn", read_words(data, [text for _, text in real]), hands, DRAWN)
    write_metadata(folder / "train", [*(real[HELD:] * TIMES), *((f"drawn/{name}", text) for name, text in drawn)])
    (folder / "valid").mkdir()
    for name, _ in real[:HELD]:
        (folder / "train" / name).rename(folder / "valid" / Path(name).name)
    write_metadata(folder / "valid", [(Path(name).name, text) for name, text in real[:HELD]])
    test = [data / "iiit5k" / f"test_a{end}" for end in ("_images.tar.gz", ".jsonl.gz")]
    return Pack([folder / "train"], test, [folder / "valid"])


def real_words(pack: Path, folder: Path) -> list[tuple[str, str]]:
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
    print(f"{len(set(fonts))} fonts")
    colours = tuple(get_two_colors(path) for path in real)
    return [RenderStyle(fonts, rough / 10, colours if rough % 4 else (), BESIDE) for rough in range(1, 8)]


def balance_families(fonts: Sequence[str]) -> tuple[str, ...]:
    """Balance font families, which are identified by the first letters of the file names."""
    families = dict[str, list[str]]()
    for font in fonts:
        families.setdefault(re.split(r"[^A-Za-z]", Path(font).stem)[0], []).append(font)
    return tuple(font for family in families.values() for font in islice(cycle(family), ALIKE))


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


def draw_all(folder: Path, words: Words, hands: Sequence[RenderStyle], count: int) -> list[tuple[str, str]]:
    """Render pictures on all cores; return their names and texts."""
    folder.mkdir(parents=True)
    cores = os.cpu_count() or 1
    parts = np.array_split(np.arange(count), max(1, min(8 * cores, count // 100)))
    draw = partial(draw_some, folder=folder, words=words, hands=hands)
    with ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("fork")) as pool:
        return [row for rows in pool.map(draw, [part.tolist() for part in parts]) for row in rows]


def draw_some(
    numbers: Sequence[int], *, folder: Path, words: Words, hands: Sequence[RenderStyle]
) -> list[tuple[str, str]]:
    rows = []
    for number in numbers:
        rng = random.Random(f"drawn {number}")
        text = sample_text(words, rng)
        shown = text
        if rng.random() < 0.12:
            shown = text + rng.choice(MARKS) if rng.random() < 0.8 else rng.choice(MARKS) + text
        name = f"{number:06d}.jpg"
        render_word(shown, rng.choice(hands), rng).save(folder / name, quality=rng.randint(50, 95))
        rows.append((name, re.sub(r"[^a-z0-9]", "", shown.lower())))
    return rows


if __name__ == "__main__":
    run_study(STUDY, build_pack, __doc__)
