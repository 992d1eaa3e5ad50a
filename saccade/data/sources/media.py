"""Pictures or sound with what is said of them, found in folders: paths and texts, never the files themselves.

A corpus is one of
* a folder with `metadata.jsonl`, `metadata.csv` or `metadata.parquet`: a column `file_name` and one with the text or
  label, as Hugging Face's imagefolder and audiofolder have it;
* for labels, a folder with a folder for each class;
* two names: such a folder, and a file with columns elsewhere;
* a .tar, .tar.gz or .tgz in the place of a folder, which is unpacked into the cache once;
* for texts, a .npz with frames of sound that somebody else made;
* the name of a Hugging Face data set, or the folder of one (hub_media.py);
* `embedded:NAME`, made by saccade itself.
A cell with a list of texts is a row for each of them. Where pictures are asked about, there is a column `question` too,
and the text is in `answer` or `answers`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from saccade.config.schema import Corpus
from saccade.data.media.frames import MANY, ONE, read_given
from saccade.data.media.pictures import SUFFIXES as PICTURES
from saccade.data.media.sound import SUFFIXES as SOUNDS
from saccade.data.sources import hub_media, table
from saccade.data.sources.archives import TARS, unpacked
from saccade.data.sources.lines import missing
from saccade.data.sources.pairs import PREFIX, file_key
from saccade.data.synthetic import media as embedded_media
from saccade.errors import SaccadeError

Row = tuple[Any, ...]  # number, path, a question about it where one is asked, text

SUFFIXES = {"picture": PICTURES, "sound": (*SOUNDS, ONE)}
ALONE = "alone"  # what is wanted of files of which nothing is said
FILES = ("file_name", "image", "audio", "file", "path")  # what a column of files is called
QUESTION, ANSWERS = "question", ("answer", "answers")
TEXTS = {
    "label": ("label", "class"),
    "text": ("text", "caption", "captions", "transcript", "transcription", "sentence"),
}


def read_media(corpus: Corpus, *, medium: str, wanted: str, asks: bool = False) -> Iterator[Row]:
    """The rows of a corpus, at most `corpus.examples` of them; `wanted` of each file is its "label", its "text", or
    nothing, which is "alone".

    `asks`: that is the answer to a question, which stands in a column of its own.
    """
    if medium == "sound" and wanted == "text" and corpus.files[0].lower().endswith(MANY):
        return islice(read_given(corpus.files[0]), corpus.examples)
    root = _root(folder_of(corpus), corpus.split)
    if wanted == ALONE:
        return islice(_alone(root, medium, corpus.files[0]), corpus.examples)
    notes = Path(corpus.files[1]) if len(corpus.files) == 2 else metadata_in(root)
    if notes is not None:
        rows = _noted(root, notes, corpus.columns, wanted, asks=asks)
    elif wanted == "label" and not asks:
        rows = _by_class(root, SUFFIXES[medium], corpus.files[0])
    else:
        raise SaccadeError(
            f"{corpus.files[0]} has no metadata.jsonl or metadata.csv, whose columns file_name"
            f"{', question and answer' if asks else ' and text'} say what to write for each {medium}; add one, or "
            "give a second file with columns"
        )
    return islice(rows, corpus.examples)


def folder_of(corpus: Corpus) -> Path:
    """Where the files of a corpus are, unpacked or made if need be."""
    name = corpus.files[0]
    if name.startswith(PREFIX):
        return embedded_media.made_folder(name.removeprefix(PREFIX), corpus.examples)
    if len(corpus.files) == 1 and hub_media.is_set(name):
        return hub_media.unpacked(corpus)
    path = Path(name)
    if path.is_dir():
        return path
    if path.name.lower().endswith(TARS):
        return unpacked(path)
    if not path.exists():
        raise missing(path)
    raise SaccadeError(f"{name} is no folder of files; expected a folder, or one of {', '.join(TARS)}")


def named_files(name: str, *, medium: str) -> list[str]:
    """What a name stands for: a file, all files of a folder, or `embedded:NAME` or `embedded:NAME/FILE`."""
    if medium == "sound" and name.lower().endswith(MANY):
        return [path for _, path, _ in read_given(name)]
    if name.startswith(PREFIX):
        made, _, file = name.removeprefix(PREFIX).partition("/")
        name = str(embedded_media.made_folder(made, None) / file)
    if not name.strip() or not os.path.isdir(name):  # also where a name is too long to be one
        return [name]
    found = [str(path) for path in files_in(Path(name), SUFFIXES[medium])]
    if not found:
        raise SaccadeError(f"{name} has no {medium} in it; expected files such as *{SUFFIXES[medium][0]}")
    return found


def media_key(corpus: Corpus, *, medium: str) -> str:
    """A hash of everything that decides which files and texts there are: bytes, and names inside of the folder."""
    digest = hashlib.blake2b(repr((corpus.columns, corpus.examples, corpus.split)).encode(), digest_size=16)
    name = corpus.files[0]
    if name.startswith(PREFIX):
        digest.update(embedded_media.version(name.removeprefix(PREFIX), corpus.examples).encode())
    elif Path(name).is_file():
        digest.update(file_key(Path(name)).encode())
    else:
        folder = folder_of(corpus)
        for path in sorted(files_in(folder, SUFFIXES[medium])):
            content = file_key(path) if path.is_file() else "not there"  # a link that leads nowhere
            digest.update(f"{path.relative_to(folder)} {content}".encode())
        if notes := metadata_in(_root(folder, corpus.split)):
            digest.update(file_key(notes).encode())
    for other in corpus.files[1:]:
        digest.update(file_key(Path(other)).encode())
    return digest.hexdigest()


def files_in(folder: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    """All files with such names in a folder and the folders in it, also by links, but not hidden ones.

    A link that leads nowhere is a file that cannot be read; pipes and the like are no files.
    """
    for root, folders, names in os.walk(folder, followlinks=True):
        here = Path(os.path.realpath(root))
        folders[:] = sorted(name for name in folders if not name.startswith(".") and not _leads_up(here, name))
        for name in sorted(names):
            path = Path(root, name)
            if not name.startswith(".") and name.lower().endswith(suffixes) and (path.is_file() or not path.exists()):
                yield path


def _leads_up(folder: Path, name: str) -> bool:
    """Whether a link leads to the folder that it is in, or to one above, so that there is no end to it."""
    inside = folder / name
    return inside.is_symlink() and folder.is_relative_to(os.path.realpath(inside))


def metadata_in(folder: Path) -> Path | None:
    return next((path for kind in table.KINDS if (path := folder / f"metadata{kind}").is_file()), None)


def _root(folder: Path, split: str) -> Path:
    """The folder with the metadata or the classes: through the folder of a split, or through one that is alone."""
    while metadata_in(folder) is None:
        inside = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
        if (folder / split).is_dir():
            folder = folder / split
        elif len(inside) == 1 and inside[0].is_dir() and any(entry.is_dir() for entry in inside[0].iterdir()):
            folder = inside[0]
        else:
            break
    return folder


def _alone(root: Path, medium: str, name: str) -> Iterator[Row]:
    """All files of a folder, whatever is said of them; `name` is what the user calls it."""
    number = 0
    for number, path in enumerate(files_in(root, SUFFIXES[medium]), start=1):
        yield number, str(path)
    if not number:
        raise SaccadeError(f"{name} has no {medium} in it; expected files such as *{SUFFIXES[medium][0]}")


def _by_class(root: Path, suffixes: tuple[str, ...], name: str) -> Iterator[Row]:
    number = 0
    for path in files_in(root, suffixes):
        names = path.relative_to(root).parts
        if len(names) > 1:
            number += 1
            yield number, str(path), names[0]
    if not number:
        raise SaccadeError(
            f"{name} has neither a metadata file nor a folder for each class with files in it "
            f"({', '.join(suffixes[:4])} ...); one of them is needed"
        )


def _noted(
    root: Path, notes: Path, columns: tuple[str, ...] | None, wanted: str, *, asks: bool = False
) -> Iterator[Row]:
    """The rows of a file with columns; a file that is not there keeps its place, and is told when it is read."""
    by_name, whole = dict[str, list[Path]](), os.path.abspath(root)
    for number, record in table.records(notes, is_header=lambda first: True):
        flat = table.flatten(record)
        where = f"{notes}:{number}"
        file, *asked, text = _columns(columns, flat, where, wanted, asks=asks)
        name = _as_text(flat[file], where, file)
        path = root / name
        if not path.is_file():
            by_name = by_name or _by_name(root)
            alike = by_name.get(path.name, [])
            path = alike[0] if len(alike) == 1 else path  # of two, nobody knows which is meant
        elif not Path(os.path.abspath(path)).is_relative_to(whole):  # links in the folder are its own
            raise SaccadeError(f"{where}: {name!r} is not in the folder {root}; put it there")
        for said in flat[text] if isinstance(flat[text], list) else [flat[text]]:
            yield number, str(path), *(_as_text(flat[one], where, one) for one in asked), _as_text(said, where, text)


def _as_text(value: Any, where: str, column: str) -> str:
    """A cell as it is written; nothing and lists are not a text."""
    if not isinstance(value, str | int | float):
        raise SaccadeError(f"{where}: expected text in column {column!r}, got {type(value).__name__}")
    return str(value)


def _by_name(root: Path) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for path in files_in(root, ("",)):
        found.setdefault(path.name, []).append(path)
    return found


def _columns(
    named: tuple[str, ...] | None, record: Mapping[str, Any], where: str, wanted: str, *, asks: bool
) -> tuple[str, ...]:
    """The columns of files, of questions where they are asked, and of texts: those that were named, or are meant."""
    there, hint = list(record), ""
    if named is None:
        file = next((name for name in FILES if name in there), FILES[0])
        others = [name for name in there if name not in (file, QUESTION)]
        known = (*ANSWERS, *TEXTS[wanted]) if asks else TEXTS[wanted]
        text = next((name for name in known if name in there), others[0] if len(others) == 1 else known[0])
        named = (file, QUESTION, text) if asks else (file, text)
        example = ", ".join(f'"{name.upper()}"' for name in named)
        hint = f"; where they are called otherwise, name them: data.train.0.columns='[{example}]'"
    elif len(named) != 2 + asks:
        what = "the questions and the answers" if asks else f"the {wanted}s"
        raise SaccadeError(f"{where}: columns names the files{',' if asks else ' and'} {what}, got {', '.join(named)}")
    for name in named:
        if name not in there:
            raise SaccadeError(f"{table.unknown_column(where, name, there)}{hint}")
    return named
