"""The data of a result: files of a folder of the user's, checked by hash and never copied."""

from __future__ import annotations

import gzip
import hashlib
import shutil
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from saccade.config.schema import Corpus
from saccade.errors import SaccadeError
from saccade.files import create_folder
from saccade.reproduce.prepare import PREPARATIONS, TRIAL_PREPARATIONS
from saccade.reproduce.spec import EMBEDDED, PREPARED, Spec

CHUNK_BYTES = 1 << 20


def hash_content(path: Path) -> str:
    """SHA-256 of a file; of a .gz file that of its content, which does not depend on who compressed it."""
    digest = hashlib.sha256()
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        return "a damaged .gz file"
    except OSError as error:
        return f"a file that cannot be read ({error.strerror or error})"
    return digest.hexdigest()


def check_files(spec: Spec, data_folder: Path | None) -> None:
    """Raise a SaccadeError for the first file that is missing or is not the one that the result was measured on."""
    needed = spec.list_needed_files()
    if needed and data_folder is None:
        raise SaccadeError(
            f"{spec.name} needs data: give --data-folder DIR with {', '.join(needed)}; {_format_source(spec)}"
        )
    for name in needed:
        path, expected = Path(data_folder or "") / name, spec.files[name]
        if not path.is_file():
            raise SaccadeError(
                f"{spec.name}: '{path}' is missing, expected a file with SHA-256 {expected}; {_format_source(spec)}"
            )
        if (found := hash_content(path)) != expected:
            how = "of its decompressed content " if path.suffix == ".gz" else ""
            raise SaccadeError(
                f"{spec.name}: '{path}' is another file: expected SHA-256 {how}{expected}, got {found}; "
                f"{_format_source(spec)}"
            )


def _format_source(spec: Spec) -> str:
    return f"{spec.dataset} comes from {spec.source}"


def prepare_files(spec: Spec, data_folder: Path | None, folder: Path, *, trial: bool = False) -> None:
    """Write the files prepared/... of a result to this folder, unless they are there; a trial generates fewer."""
    made = folder / PREPARED
    if not spec.prepare or made.is_dir():
        return
    shutil.rmtree(folder / "preparing", ignore_errors=True)  # of a process that was killed
    with create_folder(folder / "preparing") as temporary:  # a folder that is complete or absent
        (TRIAL_PREPARATIONS if trial else PREPARATIONS)[spec.prepare](Path(data_folder or ""), temporary)
        temporary.rename(made)


def resolve_corpora(
    corpora: Sequence[Corpus], data_folder: Path | None, folder: Path, stages: Mapping[str, Path]
) -> list[Corpus]:
    """Replace the names of files by their paths."""

    def resolve(name: str) -> str:
        if name.startswith(EMBEDDED):
            return name
        if name.startswith(PREPARED):
            return str(folder / name)
        if name.startswith("{"):
            return str(stages[name.strip("{}")])
        return str(Path(data_folder or "") / name)

    return [corpus.model_copy(update={"files": tuple(map(resolve, corpus.files))}) for corpus in corpora]
