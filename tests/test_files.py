"""Files are whole or absent, whatever happens while they are written."""

import errno
import os
from pathlib import Path

import pytest

from saccade.errors import SaccadeError
from saccade.files import atomic_replace, atomic_write, create_folder, get_cache_folder, is_full_disk

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


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder of temporary files, for a user who has set no cache."""
    monkeypatch.delenv("SACCADE_CACHE", raising=False)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    return tmp_path


def test_the_cache_is_in_the_home_folder(temporary, monkeypatch):
    monkeypatch.setenv("HOME", str(temporary / "new"))
    assert get_cache_folder() == temporary / "new" / ".cache" / "saccade"


def test_without_a_home_the_cache_is_a_private_folder(temporary, monkeypatch):
    def raise_error() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", raise_error)
    assert get_cache_folder().parent == temporary


@pytest.mark.parametrize("home", ["/proc/self", "/dev/null"])  # read-only; not a folder
def test_without_a_home_to_write_to_the_cache_is_a_private_folder(temporary, monkeypatch, home):
    monkeypatch.setenv("HOME", home)
    folder = get_cache_folder()
    assert folder.parent == temporary
    assert folder.stat().st_mode & 0o777 == 0o700
    assert get_cache_folder() == folder


def test_a_cache_that_others_may_write_to_is_refused(temporary, monkeypatch):
    monkeypatch.setenv("HOME", "/dev/null")
    folder = get_cache_folder()
    folder.chmod(0o777)
    with pytest.raises(SaccadeError, match=r"must be yours alone, got owner .* mode 777; remove it, or set SACCADE_C"):
        get_cache_folder()
    folder.rmdir()
    folder.symlink_to("/")
    with pytest.raises(SaccadeError, match="must be yours alone"):
        get_cache_folder()


@pytest.mark.parametrize("error", [SaccadeError, KeyboardInterrupt])
@pytest.mark.parametrize("existed", [False, True])
def test_a_folder_that_is_not_filled_is_removed_unless_it_was_there(tmp_path, existed, error):
    folder = tmp_path / "folder"
    if existed:
        folder.mkdir(mode=0o700)
    with pytest.raises(error), create_folder(folder):
        (folder / "new").mkdir()
        (folder / "new" / "file").write_text("a")
        (folder / "other").write_text("b")
        raise error
    assert folder.is_dir() == existed
    assert not existed or not any(folder.iterdir())


def test_what_was_in_a_folder_before_stays_when_it_cannot_be_filled(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    with pytest.raises(SaccadeError), create_folder(tmp_path):
        (tmp_path / "new").symlink_to(tmp_path / "mine")
        raise SaccadeError("it failed")
    assert {item.name for item in tmp_path.iterdir()} == {"mine", "link"}
