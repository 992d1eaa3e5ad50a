import os
import platform
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch

from saccade.errors import SaccadeError
from saccade.kernels import failures
from saccade.kernels.cpu import fma, native, search_steps, stack_step, step_attention, vnni
from saccade.kernels.cpu.native import compile_library, load_library
from saccade.kernels.failures import STRICT

SOURCES = [vnni.SOURCE, fma.SOURCE, step_attention.SOURCE, stack_step.SOURCE, search_steps.SOURCE]


@pytest.fixture
def afresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The folder of kernels, empty; they are looked for again, and again after the test."""
    if load_library(vnni.SOURCE) is None:
        pytest.skip("needs AVX-512 VNNI and a compiler")
    monkeypatch.setenv("SACCADE_CACHE", str(tmp_path))
    load_library.cache_clear()
    yield tmp_path / "kernels"
    load_library.cache_clear()


@pytest.mark.parametrize("what", ["no such compiler", "processor", "system", "machine"])
def test_there_is_none_where_something_is_missing(what: str, afresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if what == "no such compiler":
        monkeypatch.setenv("CC", "no-such-compiler -m64")
    elif what == "processor":
        monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    else:
        monkeypatch.setattr(platform, what, lambda: "another")
    assert load_library(vnni.SOURCE) is None
    assert native.explain_missing()
    assert not list(afresh.glob("*"))


@pytest.mark.parametrize("what", ["compiler", "folder"])
def test_a_failure_is_counted_and_warned_about_and_strictly_an_error(
    what: str, afresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "compiler":
        monkeypatch.setenv("CC", "false")
    else:
        afresh.write_text("not a folder")
    with pytest.raises((subprocess.CalledProcessError, SaccadeError, OSError)):
        load_library(vnni.SOURCE)
    monkeypatch.setenv(STRICT, "0")
    monkeypatch.setattr(failures, "FAILURES", Counter())
    with pytest.warns(RuntimeWarning, match="vnni.c could not be compiled, using torch"):
        assert load_library(vnni.SOURCE) is None
    assert load_library(vnni.SOURCE) is None  # and nobody is warned again
    assert [name for name, _ in failures.FAILURES.elements()] == ["C kernel vnni"]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_the_compiler_has_nothing_to_say(source: Path, afresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "FLAGS", (*native.FLAGS, "-Wall", "-Wextra", "-Werror"))
    assert compile_library(source, afresh).parent == afresh


def test_it_is_compiled_once_for_each_source(tmp_path: Path, afresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compile_library(vnni.SOURCE, afresh)
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("compiled again"))
        assert compile_library(vnni.SOURCE, afresh) == first
    shutil.copytree(vnni.SOURCE.parent, tmp_path / "layers", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    other = tmp_path / "layers" / "vnni.c"
    other.write_text(vnni.SOURCE.read_text() + "\n")
    assert compile_library(other, afresh) != first
    assert sorted(path.suffix for path in afresh.iterdir()) == [".sha256", ".sha256", ".so", ".so"]  # nothing else


@pytest.mark.parametrize("damage", ["cut", "another", "no digest", "empty"])
def test_a_damaged_library_is_compiled_again(damage: str, afresh: Path) -> None:
    path = compile_library(vnni.SOURCE, afresh)
    whole = path.read_bytes()
    if damage == "no digest":
        path.with_suffix(".sha256").unlink()
    else:
        path.write_bytes({"cut": whole[: len(whole) // 2], "another": b"\x7fELF planted", "empty": b""}[damage])
    assert compile_library(vnni.SOURCE, afresh) == path
    assert native.is_intact(path) and native.load_library(vnni.SOURCE) is not None


@pytest.mark.parametrize("fault", ["mode", "owner"])
def test_a_folder_of_others_is_not_used(fault: str, afresh: Path, monkeypatch: Any) -> None:
    """What somebody else has put there would be run."""
    compile_library(vnni.SOURCE, afresh)
    if fault == "mode":
        afresh.chmod(0o777)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(SaccadeError, match="must be yours alone, got owner .*; remove it, or set"):
        compile_library(vnni.SOURCE, afresh)


def test_it_is_compiled_again_for_another_header(tmp_path: Path, afresh: Path) -> None:
    source, header = tmp_path / "one.c", tmp_path / "one.h"
    source.write_text('#include "one.h"\n')
    header.write_text("int one;\n")
    first = compile_library(source, afresh)
    header.write_text("long one;\n")
    assert compile_library(source, afresh) != first


def test_threads_do_not_disturb_each_other(afresh: Path) -> None:
    found: list[object] = []
    threads = [Thread(target=lambda: found.append(load_library(step_attention.SOURCE))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert None not in found


def test_no_kernel_has_arrays_on_the_stack_whose_size_a_user_chooses():
    if native.explain_missing():
        pytest.skip("needs a compiler")
    sources = sorted(Path(native.__file__).parent.glob("*.c"))
    for source in sources:
        command = [*native.get_compiler_command(), *native.FLAGS, "-Wvla", "-Werror", "-fsyntax-only", str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
    assert len(sources) >= 5
