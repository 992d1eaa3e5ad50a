"""Back-translation: which pairs are kept, and that an interrupted corpus is continued to the same end."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from saccade.config.schema import Corpus, Decoding
from saccade.data.sources.pairs import read_pairs
from saccade.errors import SaccadeError
from saccade.predict import backtranslate as library
from saccade.predict.backtranslate import (
    BacktranslationOptions,
    DistillationOptions,
    add_noise,
    backtranslate,
    choose_reason,
)
from saccade.predict.outputs import Hypothesis

LINES = ["abcd efg", "gfe", "", "bad cab bag", "fed", "a" * 40, "gag", "beef", "feed a cab"]
# The model is random; outputs of exactly six tokens do not count as truncated.
SIX = {"min_length": 6, "max_length": 6}
BEAM = BacktranslationOptions(Decoding(beam=3, **SIX), max_ratio=99.0)
SAMPLING = BacktranslationOptions(Decoding(sample=True, seed=5, **SIX), max_ratio=99.0, noise=0.3, tag="<BT>")


@pytest.fixture
def mono(tmp_path: Path) -> str:
    (tmp_path / "mono.txt").write_text("".join(f"{line}\n" for line in LINES))
    return str(tmp_path / "mono.txt")


def write(predictor: Any, mono: str, output: Path, options: BacktranslationOptions = BEAM, **settings: Any) -> Any:
    return backtranslate(predictor, [mono], output, options=options, report=lambda line: None, **settings)


def test_the_corpus_has_outputs_as_sources_and_real_targets(make_predictor: Any, mono: str, tmp_path: Path) -> None:
    predictor, output = make_predictor(seed=3), tmp_path / "synthetic.tsv"
    counts = write(predictor, mono, output)
    pairs = list(read_pairs(Corpus(files=(str(output),))))
    usable = [line for line in LINES if line and len(line) < 24]
    items = [items[0] for items in predictor.candidates(usable, decoding=BEAM.decoding)]
    expected = [
        (item.text.strip(), line) for item, line in zip(items, usable) if not choose_reason(item, len(line), 99.0)
    ]
    assert pairs == expected and len(pairs) >= 2
    assert (counts.lines, counts.pairs) == (9, len(pairs))
    assert sum(counts.left_out.values()) == 9 - len(pairs)
    assert counts.left_out["too long for the model"] == 1 and counts.left_out["empty"] >= 1
    assert not (tmp_path / "synthetic.tsv.progress").exists()


@pytest.mark.parametrize("options", [BEAM, SAMPLING])
@pytest.mark.parametrize("torn", [b"", b"half a li"])
def test_an_interrupted_corpus_is_continued_to_the_same_end(
    options: BacktranslationOptions, torn: bytes, make_predictor: Any, mono: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(library, "LINES_PER_BLOCK", 2)
    predictor = make_predictor(seed=3)
    write(predictor, mono, tmp_path / "whole.tsv", options)
    output, calls, decode = tmp_path / "parts.tsv", [0], predictor.candidates

    def fail_later(*given: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] % 2:
            with output.open("ab") as file:
                file.write(torn)  # a process that is killed while it writes
            raise KeyboardInterrupt
        return decode(*given, **named)

    monkeypatch.setattr(predictor, "candidates", fail_later)
    messages: list[str] = []
    for _ in range(9):
        try:
            backtranslate(predictor, [mono], output, options=options, report=messages.append)
            break
        except KeyboardInterrupt:
            assert (tmp_path / "parts.tsv.progress").exists()
    assert messages[0] == "continuing after 2 lines"
    assert output.read_bytes() == (tmp_path / "whole.tsv").read_bytes()


def test_the_seed_decides_what_is_sampled(make_predictor: Any, mono: str, tmp_path: Path) -> None:
    predictor = make_predictor(seed=3)
    other = BacktranslationOptions(Decoding(sample=True, seed=6, **SIX), max_ratio=99.0, noise=0.3, tag="<BT>")
    for name, options in (("a", SAMPLING), ("b", SAMPLING), ("c", other)):
        write(predictor, mono, tmp_path / f"{name}.tsv", options)
    first, again, different = ((tmp_path / f"{name}.tsv").read_text() for name in "abc")
    assert first == again != different
    assert all(line.startswith("<BT> ") for line in first.splitlines()[1:])


def test_n_best_gives_several_sources_for_a_target(make_predictor: Any, mono: str, tmp_path: Path) -> None:
    options = BacktranslationOptions(Decoding(beam=4, n_best=2, **SIX), max_ratio=99.0)
    write(make_predictor(seed=3), mono, tmp_path / "x.tsv", options)
    targets = [line.split("\t")[1] for line in (tmp_path / "x.tsv").read_text().splitlines()[1:]]
    assert any(targets.count(target) == 2 for target in targets)


@pytest.mark.parametrize(
    ("ids", "text", "finish", "reason"),
    [
        (6, "some", "", ""),
        (6, " ", "", "empty"),
        (6, "some", "length", "truncated"),
        (13, "some", "", "length ratio"),
        (12, "some", "", ""),
        (1, "some", "", "length ratio"),
    ],
)
def test_outputs_are_left_out_for_a_reason(ids: int, text: str, finish: str, reason: str) -> None:
    assert choose_reason(Hypothesis([7] * ids, text, 0.0, 0.0, finish=finish), 4, 3.0) == reason


def test_noise_drops_replaces_and_moves_words() -> None:
    words = [f"w{i}" for i in range(1000)]
    assert sorted(add_noise(" ".join(words), 0.0, Random(1)).split()) == sorted(words)
    moved = add_noise(" ".join(words), 0.0, Random(1)).split()
    assert 0 < max(abs(i - words.index(word)) for i, word in enumerate(moved)) <= 3
    noised = add_noise(" ".join(words), 0.1, Random(1)).split()
    assert 850 < len(noised) < 950 and 60 < noised.count(library.FILLER) < 120
    assert add_noise("one", 0.9, Random(3)) != ""


def test_tabs_do_not_become_columns() -> None:
    assert library.clean(" a\tb\r\nc ") == "a b  c"


def test_another_setting_than_before_is_refused(make_predictor: Any, mono: str, tmp_path: Path) -> None:
    output, progress = tmp_path / "x.tsv", tmp_path / "x.tsv.progress"
    output.write_text(library.HEADER + "a\tb\n")
    settings = library.describe_settings([mono], BEAM, "")
    progress.write_text(
        json.dumps({"settings": {**settings, "beam": 7}, "lines": 1, "bytes": 4, "pairs": 1, "left_out": {}})
    )
    with pytest.raises(SaccadeError, match=r"x.tsv was begun with beam = 7, got 3; give the same settings to continue"):
        write(make_predictor(), mono, output)
    progress.write_text("{}")
    with pytest.raises(SaccadeError, match=r"x.tsv.progress cannot be read; delete it and .*x.tsv to start again"):
        write(make_predictor(), mono, output)
    progress.write_text(json.dumps({"settings": settings, "lines": 1, "bytes": 999, "pairs": 1, "left_out": {}}))
    with pytest.raises(SaccadeError, match=r"x.tsv has less than .*x.tsv.progress says; delete both to start again"):
        write(make_predictor(), mono, output)
    progress.unlink()
    with pytest.raises(SaccadeError, match=r"x.tsv exists already; delete it, or choose another --output"):
        write(make_predictor(), mono, output)


def test_mistakes_are_refused(make_predictor: Any, mono: str, tmp_path: Path) -> None:
    with pytest.raises(
        SaccadeError, match=r"a .tsv file of source and target, got the name '.*x.txt'; end it with .tsv"
    ):
        write(make_predictor(), mono, tmp_path / "x.txt")
    with pytest.raises(SaccadeError, match="which stdin cannot; give files"):
        write(make_predictor(), "-", tmp_path / "x.tsv")
    with pytest.raises(SaccadeError, match="not found"):
        write(make_predictor(), "nowhere.txt", tmp_path / "x.tsv")
    assert not (tmp_path / "x.tsv").exists()


def test_embedded_data_has_targets() -> None:
    lines = list(library.read_side(["embedded:reverse-5"], 1))
    assert len(lines) == 1000
    assert lines == [target for _, target in read_pairs(Corpus(files=("embedded:reverse-5",), examples=1000))]


# ---- distillation


TEACHING = DistillationOptions(Decoding(beam=3, **SIX), max_ratio=99.0)


def test_a_distilled_corpus_has_real_sources_and_the_outputs_of_the_teacher(
    make_predictor: Any, mono: str, tmp_path: Path
) -> None:
    predictor = make_predictor(seed=3)
    write(predictor, mono, tmp_path / "synthetic.tsv")
    write(predictor, mono, tmp_path / "distilled.tsv", TEACHING)
    files = (str(tmp_path / f"{name}.tsv") for name in ("distilled", "synthetic"))
    there, back = (list(read_pairs(Corpus(files=(file,)))) for file in files)
    assert there == [(source, target) for target, source in back] and len(there) >= 2


def test_sources_of_pairs_are_distilled(make_predictor: Any, tmp_path: Path) -> None:
    predictor, sources = make_predictor(seed=3), [line for line in LINES if line and len(line) < 24]
    (tmp_path / "pairs.tsv").write_text("source\ttarget\n" + "".join(f"{line}\tgag\n" for line in sources))
    given = Corpus(files=(str(tmp_path / "pairs.tsv"),), examples=len(sources) - 1)
    backtranslate(predictor, [given], tmp_path / "out.tsv", options=TEACHING, report=lambda line: None)
    (tmp_path / "lines.txt").write_text("\n".join(sources[:-1]))
    write(predictor, str(tmp_path / "lines.txt"), tmp_path / "expected.tsv", TEACHING)
    lines = (tmp_path / "out.tsv").read_text().splitlines()
    assert lines == (tmp_path / "expected.tsv").read_text().splitlines() and len(lines) > 2


def test_a_distillation_is_not_continued_as_a_back_translation(
    make_predictor: Any, mono: str, tmp_path: Path, monkeypatch: Any
) -> None:
    predictor, output, save = make_predictor(seed=3), tmp_path / "out.tsv", library.save_progress
    monkeypatch.setattr(library, "LINES_PER_BLOCK", 2)
    for begun, continued in ((TEACHING, BEAM), (BEAM, TEACHING)):
        monkeypatch.setattr(library, "save_progress", stop_after(2, save))
        with pytest.raises(KeyboardInterrupt):
            write(predictor, mono, output, begun)
        monkeypatch.setattr(library, "save_progress", save)
        with pytest.raises(SaccadeError, match="was begun with (kind|tag) = .*; give the same settings to continue"):
            write(predictor, mono, output, continued)
        output.with_name("out.tsv.progress").unlink()
        output.unlink()


def stop_after(calls: int, save: Any) -> Any:
    """Return a function that saves and is interrupted after so many calls."""
    left = [calls]

    def save_and_stop(*given: Any) -> None:
        save(*given)
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    return save_and_stop
