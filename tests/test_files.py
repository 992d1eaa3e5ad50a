"""Files are whole or absent, whatever happens while they are written."""

import errno
import os
from pathlib import Path

import pytest

from saccade.errors import SaccadeError
from saccade.files import atomic_replace, atomic_write, is_full_disk

FULL = [OSError(errno.ENOSPC, "No space left on device"), OSError(errno.EDQUOT, "Disk quota exceeded")]


def half_written(path: Path, error: BaseException) -> None:
    with atomic_replace(path) as temporary:
        temporary.write_bytes(b"ne")
        raise error


@pytest.mark.parametrize("error", FULL)
def test_a_full_disk_leaves_the_old_file_whole(tmp_path, error):
    atomic_write(tmp_path / "file", b"old")
    with pytest.raises(SaccadeError, match=r"no space left on the disk while writing .*file; free some and go on"):
        half_written(tmp_path / "file", error)
    assert (tmp_path / "file").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_disk_that_is_full_only_when_flushed(tmp_path, monkeypatch):
    def full(descriptor: int) -> None:
        raise FULL[0]

    atomic_write(tmp_path / "file", b"old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SaccadeError, match="no space left"):
        atomic_write(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_all_is_on_the_disk_before_the_file_gets_its_name(tmp_path, monkeypatch):
    """Otherwise a power failure may leave an empty file under the right name."""
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append((tmp_path / "file").exists()))
    atomic_write(tmp_path / "file", b"new")
    assert flushed == [False]


def test_no_permission_to_write(tmp_path):
    with pytest.raises(SaccadeError, match=r"cannot write .*file: Permission denied; check the folder and your perm"):
        half_written(tmp_path / "file", PermissionError(errno.EACCES, "Permission denied"))


def test_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(SaccadeError, match=r"cannot write .*no.file: No such file or directory; check the folder"):
        atomic_write(tmp_path / "no" / "file", b"")


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_interruption_leaves_the_old_file_and_is_passed_on(tmp_path, error):
    atomic_write(tmp_path / "file", b"old")
    with pytest.raises(error):
        half_written(tmp_path / "file", error())
    assert (tmp_path / "file").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_who_reads_the_old_file_reads_it_to_the_end(tmp_path):
    """The new one takes its name at once; nothing is written into the old one."""
    atomic_write(tmp_path / "file", b"old")
    with open(tmp_path / "file", "rb") as reader:
        atomic_write(tmp_path / "file", b"new")
        assert reader.read() == b"old"
    assert (tmp_path / "file").read_bytes() == b"new"


def test_only_a_lack_of_space_is_a_full_disk():
    assert all(map(is_full_disk, FULL))
    assert not is_full_disk(OSError(errno.EACCES, "Permission denied"))
    assert not is_full_disk(ValueError("No space left on device"))
