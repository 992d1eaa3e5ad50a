"""The quickstarts as a reader follows them: every command as it is written, and the results that the pages promise."""

import csv
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parent.parent.parent
FENCE = re.compile(r"(?:<!-- ([^\n]*?) -->\n)?```(\w+)\n(.*?)\n```", re.DOTALL)
SACCADE = Path(sys.executable).parent / "saccade"


class Promise(NamedTuple):
    """What a page says: a score and what it must satisfy, and what the server answers."""

    metric: str
    holds: Callable[[float], bool]
    answers: Callable[[list[dict[str, Any]]], bool]


def read_text_of(name: str) -> str:
    with open("test/metadata.csv", encoding="utf-8", newline="") as file:
        return next(row["text"] for row in csv.DictReader(file) if row["file_name"] == name)


PROMISES = {
    "pairs": Promise("bleu", lambda score: score > 99, lambda found: found[0]["output"] == "fünf alte Bäume hier"),
    "labels": Promise(
        "accuracy", lambda score: score > 99, lambda found: [one["label"] for one in found] == ["positive", "negative"]
    ),
    "text": Promise("perplexity", lambda score: 1.2 < score < 1.28, lambda found: "degrees" in found[0]["completion"]),
    "pictures": Promise("accuracy", lambda score: score > 90, lambda found: found[0]["label"] == "square"),
    "recordings": Promise("wer", lambda score: score < 2, lambda found: found[0]["output"] == read_text_of("0.wav")),
    "hugging-face": Promise("accuracy", lambda score: score > 95, lambda found: found[0]["label"] == "positive"),
}


def test_every_quickstart_makes_a_promise() -> None:
    assert {f"quickstart-{name}" for name in PROMISES} == {path.stem for path in ROOT.glob("docs/quickstart-*.md")}


@pytest.mark.parametrize("name", PROMISES)
def test_page_has_all_steps(name: str) -> None:
    page = (ROOT / "docs" / f"quickstart-{name}.md").read_text("utf-8")
    for part in (
        "<!-- file: ",
        "$ saccade train",
        "$ saccade evaluate",
        "$ saccade predict",
        "$ saccade serve",
        "$ curl",
    ):
        assert part in page
    assert page.index("## When it is bad") < page.index("\nNext: ")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="the pages use curl")
@pytest.mark.parametrize("name", PROMISES)
def test_quickstart_keeps_its_promises(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SACCADE_RUNS", raising=False)
    scores, answers = follow(FENCE.findall((ROOT / "docs" / f"quickstart-{name}.md").read_text("utf-8")))
    assert PROMISES[name].holds(scores[PROMISES[name].metric]), scores
    assert PROMISES[name].answers(answers), answers


def follow(blocks: list[tuple[str, str, str]]) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Write the files and run the commands of a page; return the scores of `evaluate` and the answers of the server."""
    scores: dict[str, float] = {}
    answers: list[dict[str, Any]] = []
    for mark, language, text in blocks:
        if mark.startswith("file: "):
            Path(mark.removeprefix("file: ")).write_text(f"{text}\n", encoding="utf-8")
        elif language == "console" and mark == "served":
            serve, curl = text.splitlines()
            answers = ask_server(serve, curl)
        elif language == "console" and mark != "not run":
            for words in map(read_command, text.splitlines()):
                printed = run([*words, *(["--json"] if words[1] == "evaluate" else [])])
                if words[1] == "evaluate":
                    scores |= {
                        name: score["value"] if isinstance(score, dict) else score
                        for name, score in json.loads(printed)["scores"].items()
                    }
    return scores, answers


def read_command(line: str) -> list[str]:
    words = shlex.split(line.removeprefix("$ "), comments=True)
    return [{"saccade": str(SACCADE), "python": sys.executable}.get(words[0], words[0]), *words[1:]]


def run(words: list[str]) -> str:
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


def ask_server(serve: str, curl: str) -> list[dict[str, Any]]:
    with start_server(read_command(serve)) as address:
        return json.loads(run([word.replace("localhost:8000", address) for word in read_command(curl)]))["results"]


@contextmanager
def start_server(words: list[str]) -> Iterator[str]:
    """Serve on a free port, and yield its address."""
    with subprocess.Popen([*words, "--port", "0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"at http://(\S+)", process.stdout.readline())
            assert found
            yield found[1]
        finally:
            process.terminate()
