"""Words in photographs: show-attend-read on IIIT5K, 2,000 real words and many that are drawn here.

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

from saccade.data.synthetic.rendering import Colour, Hand, fonts_in, own_fonts, rendered

STUDY = Study(
    name="iiit5k",
    recipe="show-attend-read",
    settings=(
        "reader.channels=[64, 128, 256]", "reader.depth=3", "reader.changes={crop=3, operations=2, strength=0.2}",
        "reader.dropout=0.1", "writer.stack.dim=384", "writer.stack.dropout=0.3", "train.batch_tokens=30720",
        "train.schedule.lr=0.001", "train.optimizer.decay=0.02", "train.ema=0.999", "train.valid_predictions=150",
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
    """Words to draw, and the sums of how often each one is taken."""

    texts: tuple[str, ...]
    sums: tuple[float, ...]


def pack_of(data: Path, folder: Path) -> Pack:
    """Real words and drawn ones in one folder; some real ones in another."""
    real = real_words(data / "iiit5k", folder)
    random.Random("held out").shuffle(real)
    hands = hands_of(data, [folder / "train" / name for name, _ in real])
    drawn = draw_all(folder / "train" / "drawn", words_of(data, [text for _, text in real]), hands, DRAWN)
    write_metadata(folder / "train", [*(real[HELD:] * TIMES), *((f"drawn/{name}", text) for name, text in drawn)])
    (folder / "valid").mkdir()
    for name, _ in real[:HELD]:
        (folder / "train" / name).rename(folder / "valid" / Path(name).name)
    write_metadata(folder / "valid", [(Path(name).name, text) for name, text in real[:HELD]])
    test = [data / "iiit5k" / f"test_a{end}" for end in ("_images.tar.gz", ".jsonl.gz")]
    return Pack([folder / "train"], test, [folder / "valid"])


def real_words(pack: Path, folder: Path) -> list[tuple[str, str]]:
    """Unpacks the real words: their files, and the words in lower case."""
    (folder / "train" / "real").mkdir(parents=True)
    with tarfile.open(pack / "train_images.tar.gz") as archive:
        for member in archive:
            if member.isfile():
                member.name = Path(member.name).name
                archive.extract(member, folder / "train" / "real", filter="data")
    with gzip.open(pack / "train.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [(f"real/{row['image']}", row["text"].lower()) for row in rows]


def words_of(data: Path, real: Sequence[str]) -> Words:
    """Words of books and captions, rare and short ones more often than they occur, and those of the real pictures."""
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


def text_of(words: Words, rng: random.Random) -> str:
    """What is drawn: words in small or large letters, numbers, and strings of letters that are no words."""
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


def hands_of(data: Path, real: Sequence[Path]) -> list[Hand]:
    """From plain to rough, most of them with the colours of real words."""
    fonts = evenly((*own_fonts(), *(fonts_in(data / "fonts") if (data / "fonts").is_dir() else ())))
    print(f"{len(set(fonts))} fonts")
    colours = tuple(two_colours_of(path) for path in real)
    return [Hand(fonts, rough / 10, colours if rough % 4 else (), BESIDE) for rough in range(1, 8)]


def evenly(fonts: Sequence[str]) -> tuple[str, ...]:
    """As many of each family, which is told by the first letters of the names of files."""
    families = dict[str, list[str]]()
    for font in fonts:
        families.setdefault(re.split(r"[^A-Za-z]", Path(font).stem)[0], []).append(font)
    return tuple(font for family in families.values() for font in islice(cycle(family), ALIKE))


def two_colours_of(path: Path) -> tuple[Colour, Colour]:
    """The mean colours of the brighter and of the darker part of a picture; the ground is the one at the edges."""
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB").resize((64, 24)), dtype=np.float64)
    grey = pixels.mean(-1)
    bright = grey > (grey.min() + grey.max()) / 2
    means = [pixels[part].mean(0) if part.any() else pixels.mean((0, 1)) for part in (bright, ~bright)]
    edge = np.concatenate([bright[0], bright[-1], bright[:, 0], bright[:, -1]]).mean() > 0.5
    ink, ground = (tuple(int(value) for value in mean) for mean in (means if not edge else means[::-1]))
    return (ink[0], ink[1], ink[2]), (ground[0], ground[1], ground[2])


def draw_all(folder: Path, words: Words, hands: Sequence[Hand], count: int) -> list[tuple[str, str]]:
    """So many pictures, by all cores: names, and the letters and digits that are to be read."""
    folder.mkdir(parents=True)
    cores = os.cpu_count() or 1
    parts = np.array_split(np.arange(count), max(1, min(8 * cores, count // 100)))
    draw = partial(draw_some, folder=folder, words=words, hands=hands)
    with ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("fork")) as pool:
        return [row for rows in pool.map(draw, [part.tolist() for part in parts]) for row in rows]


def draw_some(numbers: Sequence[int], *, folder: Path, words: Words, hands: Sequence[Hand]) -> list[tuple[str, str]]:
    rows = []
    for number in numbers:
        rng = random.Random(f"drawn {number}")
        text = text_of(words, rng)
        shown = text
        if rng.random() < 0.12:
            shown = text + rng.choice(MARKS) if rng.random() < 0.8 else rng.choice(MARKS) + text
        name = f"{number:06d}.jpg"
        rendered(shown, rng.choice(hands), rng).save(folder / name, quality=rng.randint(50, 95))
        rows.append((name, re.sub(r"[^a-z0-9]", "", shown.lower())))
    return rows


if __name__ == "__main__":
    run_study(STUDY, pack_of, __doc__)
