"""Every example of README and docs is run, with fewer training steps than it has."""

import re
import runpy
import shlex
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

import saccade
from saccade.cli import main
from saccade.config.load import load, to_override_list
from saccade.config.plugins import Kinds, load_plugins

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"(?:<!-- ([^\n]*?) -->\n)?```(\w+)\n(.*?)\n```", re.DOTALL)
SHORT_TRAINING = [
    "train.steps=2",
    "train.schedule.warmup_steps=1",
    "train.valid_every=2",
    "train.save_every=2",
    "train.valid_predictions=3",
    "predict.max_length=5",
]
SMALL_STACK = {"layers": 2, "dim": 8, "ff": 13, "heads": 2}


class Block(NamedTuple):
    mark: str
    language: str
    text: str


def find_blocks(page: Path, language: str) -> list[Block]:
    """Code blocks of a page that are examples, not source code inserted by docs/generate.py."""
    all_blocks = [Block(*match) for match in FENCE.findall(page.read_text("utf-8"))]
    skipped = ("code:", "head:", "not run", "served")
    return [block for block in all_blocks if block.language == language and not block.mark.startswith(skipped)]


def list_pages_with(language: str) -> list[Path]:
    return [page for page in PAGES if find_blocks(page, language)]


def is_quickstart(page: Path) -> bool:
    """Whether the models of a page are small already."""
    return page.stem.startswith("quickstart-")


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A new working directory with the files that the examples use."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SACCADE_RUNS", raising=False)
    words = ["two", "dogs", "are", "running", "through", "the", "snow", "."]
    lines = [" ".join(words[i % 8] for i in range(start, start + 3 + start % 5)) for start in range(29)]
    for name in ("train", "val", "test"):
        (tmp_path / f"{name}.en").write_text("".join(f"{line}\n" for line in lines))
        (tmp_path / f"{name}.de").write_text("".join(f"{line[::-1]}\n" for line in lines))
    (tmp_path / "mono.en").write_text("".join(f"{line}\n" for line in lines[:9]))
    (tmp_path / "test.hyp").write_text((tmp_path / "test.de").read_text())
    (tmp_path / "terms.tsv").write_text("dogs\tHunde\nsnow\ttiefen Schnee\n")
    (tmp_path / "pairs.tsv").write_text("".join(f"{line}\t{line[::-1]}\n" for line in lines))
    return tmp_path


def write_files(page: Path, folder: Path) -> None:
    """Write the blocks that are whole files, such as plugins: those after `<!-- file: NAME -->`."""
    for mark, _, text in FENCE.findall(page.read_text("utf-8")):
        if mark.startswith("file: "):
            (folder / mark.removeprefix("file: ")).write_text(f"{text}\n", encoding="utf-8")


@pytest.mark.parametrize(
    "page", [page for page in list_pages_with("python") if not is_quickstart(page)], ids=lambda page: page.stem
)
def test_python_examples_run(page, folder, monkeypatch):
    write_files(page, folder)
    full = saccade.train

    def train(recipe, *, overrides=(), **settings):
        given = [*to_override_list(overrides), *SHORT_TRAINING, "data.train.0.examples=300"]
        return full(recipe, overrides=given, **settings)

    monkeypatch.setattr(saccade, "train", train, raising=False)
    names: dict = {"__name__": "example"}
    for block in find_blocks(page, "python"):
        exec(compile(block.text, str(page), "exec"), names)
    assert len(names) > 2, "the examples define no names"


@pytest.mark.parametrize("page", list_pages_with("console"), ids=lambda page: page.stem)
def test_commands_run(page, folder):
    write_files(page, folder)
    for block in find_blocks(page, "console"):
        for name in block.mark.removeprefix("needs").split():
            ensure_run(name)
        for line in block.text.splitlines():
            command, _, _ = line.partition("  #")
            if command.startswith("$ saccade "):
                assert run_command(shlex.split(command)[2:], shrink=not is_quickstart(page)) == 0, command
            elif command.startswith("$ python "):
                runpy.run_path(command.split()[2])


def ensure_run(name: str) -> None:
    if not Path("runs", name).exists():
        assert not run_command(
            ["train", "multi30k", "--data", "train.en", "train.de", "--valid", "val.en", "val.de", "--run", name]
        )


def run_command(words: list[str], *, shrink: bool = True) -> int:
    """Run a command, with a model and a training small enough to take seconds, and return its exit code."""
    if words[0] == "train" and not shrink:
        words = [*words, *SHORT_TRAINING]
    elif words[0] == "train" and words[1].startswith("runs/"):
        words = [*words, *SHORT_TRAINING]  # the recipe of a run is small already
    elif words[0] in ("train", "sweep") and "--resume" not in words:
        tokenizer = [] if "--tiny" in words else ["tokenizer.size=270"]
        kinds = load_plugins(*(path for option, path in pairwise(words) if option == "--plugin"))
        words = [*words, *SHORT_TRAINING, *shrink_stacks(words, kinds), *reduce_examples(words), *tokenizer]
    if words[0] == "backtranslate":  # outputs of a model that is hardly trained would all be left out
        words = [*words, "min_length=5", "--max-ratio", "99"]
    with pytest.raises(SystemExit) as left:
        main(words)
    return int(left.value.code or 0)


def shrink_stacks(words: list[str], kinds: Kinds) -> list[str]:
    """Overrides that make the stacks of a recipe small; a reader or writer of another kind may have none."""
    parts_of_command = [word for word in words if word.startswith(("reader.", "writer.", "objectives", "task"))]
    recipe = load(words[1], kinds=kinds, overrides=parts_of_command, tiny="--tiny" in words)
    sides = {"reader": recipe.reader, "writer": recipe.writer}
    parts = {side: part.stack for side, part in sides.items() if getattr(part, "stack", None)}
    return [
        f"{part}.stack.{key}={value}"
        for part, stack in parts.items()
        for key, value in SMALL_STACK.items()
        if key in type(stack).model_fields
    ]


def reduce_examples(words: list[str]) -> list[str]:
    """Overrides that shorten embedded data; the files of the `folder` fixture are small already."""
    if not (words[words.index("--data") + 1].startswith("embedded:") if "--data" in words else "--tiny" in words):
        return []
    held_out = "--valid" in words or isinstance(load(words[1], tiny=True).data.valid, tuple)
    return ["data.train.0.examples=200", *(["data.valid.0.examples=20"] if held_out else [])]


def test_examples_are_found():
    assert len(list_pages_with("python")) >= 5
    assert len(list_pages_with("console")) >= 6


def test_own_kind_takes_about_40_lines():
    example = max(find_blocks(ROOT / "docs" / "own-kinds.md", "python"), key=lambda block: len(block.text))
    assert len(example.text.splitlines()) <= 46


def test_ten_lines_of_python_are_ten():
    [example] = find_blocks(ROOT / "README.md", "python")
    assert len(example.text.splitlines()) <= 10


def test_every_recipe_is_in_the_readme():
    from saccade.config.load import list_recipes

    readme = (ROOT / "README.md").read_text("utf-8")
    assert not [name for name in list_recipes() if f"`{name}`" not in readme]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    prose = FENCE.sub("", page.read_text("utf-8"))
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", prose)
    assert not [link for link in links if "://" not in link and not (page.parent / link).exists()]


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem != "README"], ids=lambda page: page.stem)
def test_first_paragraph_says_what_a_page_is_for(page):
    title, first = re.sub(r"<!--.*?-->\n\n", "", page.read_text("utf-8"), count=1).split("\n\n")[:2]
    assert title.startswith("# ") and len(first) >= 60 and first[0] not in "#|*!<["
