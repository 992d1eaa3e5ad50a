"""Pictures or sound with what is said of them, found in folders: paths and texts, never the files themselves.

A corpus is one of
* a folder with `metadata.jsonl`, `metadata.csv` or `metadata.parquet`: a column `file_name` and one with the text or
  label, as Hugging Face's imagefolder and audiofolder have it;
* for labels, a folder with a folder for each class;
* two names: such a folder, and a file with columns elsewhere;
* a .tar, .tar.gz or .tgz in the place of a folder, which is unpacked into the cache once;
* for texts, a .npz with frames of sound that somebody else made;
* `embedded:NAME`, made by saccade itself.
A cell with a list of texts is a row for each of them.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from saccade.config.schema import Corpus
from saccade.data import embedded_media, table
from saccade.data.given_frames import MANY, ONE, read_given
from saccade.data.lines import missing
from saccade.data.pictures import SUFFIXES as PICTURES
from saccade.data.sound import SUFFIXES as SOUNDS
from saccade.data.sources import PREFIX, file_key
from saccade.data.store import write_folder
from saccade.errors import SaccadeError
from saccade.files import default_cache

Row = tuple[int, str, str]  # number, path, text

SUFFIXES = {"picture": PICTURES, "sound": (*SOUNDS, ONE)}
TARS = (".tar", ".tar.gz", ".tgz", ".tar.xz")
FILES = ("file_name", "image", "audio", "file", "path")  # what a column of files is called
TEXTS = {"label": ("label", "class"), "text": ("text", "caption", "captions", "transcript", "sentence")}


def read_media(corpus: Corpus, *, medium: str, wanted: str) -> Iterator[Row]:
    """The rows of a corpus, at most `corpus.examples` of them; `wanted` of each file is its "label" or its "text"."""
    if medium == "sound" and wanted == "text" and corpus.files[0].lower().endswith(MANY):
        return islice(read_given(corpus.files[0]), corpus.examples)
    root = _root(folder_of(corpus), corpus.split)
    notes = Path(corpus.files[1]) if len(corpus.files) == 2 else metadata_in(root)
    if notes is not None:
        rows = _noted(root, notes, corpus.columns, wanted)
    elif wanted == "label":
        rows = _by_class(root, SUFFIXES[medium])
    else:
        raise SaccadeError(
            f"{corpus.files[0]} has no metadata.jsonl or metadata.csv, whose columns file_name and text say what to "
            f"write for each {medium}; add one, or give a second file with columns"
        )
    return islice(rows, corpus.examples)


def folder_of(corpus: Corpus) -> Path:
    """Where the files of a corpus are, unpacked or made if need be."""
    name = corpus.files[0]
    if name.startswith(PREFIX):
        return embedded_media.made_folder(name.removeprefix(PREFIX), corpus.examples)
    path = Path(name)
    if path.is_dir():
        return path
    if path.name.lower().endswith(TARS):
        return _unpacked(path)
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
    if not Path(name).is_dir():
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
            digest.update(f"{path.relative_to(folder)} {file_key(path)}".encode())
        if notes := metadata_in(_root(folder, corpus.split)):
            digest.update(file_key(notes).encode())
    for other in corpus.files[1:]:
        digest.update(file_key(Path(other)).encode())
    return digest.hexdigest()


def files_in(folder: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    """All files with such names in a folder and the folders in it, but not hidden ones."""
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and name.lower().endswith(suffixes):
                yield Path(root, name)


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


def _by_class(root: Path, suffixes: tuple[str, ...]) -> Iterator[Row]:
    number = 0
    for path in files_in(root, suffixes):
        names = path.relative_to(root).parts
        if len(names) > 1:
            number += 1
            yield number, str(path), names[0]
    if not number:
        raise SaccadeError(
            f"{root} has neither a metadata file nor a folder for each class with files in it "
            f"({', '.join(suffixes[:4])} ...); one of them is needed"
        )


def _noted(root: Path, notes: Path, columns: tuple[str, ...] | None, wanted: str) -> Iterator[Row]:
    """The rows of a file with columns; a file that is not there keeps its place, and is told when it is read."""
    by_name: dict[str, Path] = {}
    for number, record in table.records(notes, is_header=lambda first: True):
        flat = table.flatten(record)
        file, text = _columns(columns, flat, f"{notes}:{number}", wanted)
        name = str(flat[file])
        path = root / name
        if not path.is_file():
            by_name = by_name or {found.name: found for found in files_in(root, ("",))}
            path = by_name.get(Path(name).name, path)
        elif not path.resolve().is_relative_to(root.resolve()):
            raise SaccadeError(f"{notes}:{number}: {name!r} is not in the folder {root}; put it there")
        for said in flat[text] if isinstance(flat[text], list) else [flat[text]]:
            yield number, str(path), str(said)


def _columns(asked: tuple[str, ...] | None, record: Mapping[str, Any], where: str, wanted: str) -> tuple[str, str]:
    """The column of files and the one of texts, those that were asked for or those that are meant without asking."""
    there = list(record)
    if asked is not None:
        if len(asked) != 2:
            raise SaccadeError(f"{where}: columns names the files and the {wanted}s, got {', '.join(asked)}")
        file, text = asked
    else:
        file = next((name for name in FILES if name in there), FILES[0])
        others = [name for name in there if name != file]
        text = next(
            (name for name in TEXTS[wanted] if name in there), others[0] if len(others) == 1 else TEXTS[wanted][0]
        )
    for name in (file, text):
        if name not in there:
            raise table.unknown_column(where, name, there)
    return file, text


def _unpacked(path: Path) -> Path:
    """The folder of an archive in the cache; what would leave it, and what is no plain file, is refused or left out."""
    folder = default_cache() / f"archive-{file_key(path)}"
    if not folder.is_dir():
        write_folder(folder, lambda temporary: _unpack(path, temporary))
    return folder


def _unpack(path: Path, folder: Path) -> None:
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if member.isfile():
                    archive.extract(member, folder, filter="data")
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise SaccadeError(f"{path} is not a whole archive ({error}); make or download it again") from None
