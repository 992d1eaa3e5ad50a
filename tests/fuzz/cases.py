"""Fuzzed cases: a command line, its standard input, and the files of the world that are changed before it runs."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

from mutate import NUMBERS, WORDS, mutate_bytes, mutate_file, mutate_toml, mutate_word

TRAIN = ["train.steps=1", "train.device=cpu"]
SMALL = ["reader.stack.dim=8", "reader.stack.layers=1"]
SEEDS: dict[str, list[list[str]]] = {  # commands that work in the world, by verb
    "demo": [["demo", "--list"], ["demo", "dates", "--seed", "3"], ["demo", "vit", "--run", "d"]],
    "train": [
        ["train", "dates", "--tiny", "--run", "new", *TRAIN, "data.train.0.examples=20", "data.valid=0.2"],
        ["train", "dates", "--data", "data/pairs.src", "data/pairs.tgt", "--valid", "0.2", *TRAIN, *SMALL],
        ["train", "dates", "--data", "data/pairs.jsonl", "--valid", "data/pairs.tsv", "--run", "a/b", *TRAIN, *SMALL],
        ["train", "classify", "--tiny", "--data", "data/labels.csv", "--valid", "data/labels.jsonl", *TRAIN],
        ["train", "tag", "--tiny", "--data", "data/tags.conll", "--valid", "data/tags.conll", *TRAIN],
        ["train", "gpt2", "--tiny", "--data", "data/story.txt", "--valid", "data/story.txt", *TRAIN],
        ["train", "vit", "--tiny", "--data", "data/pictures", "--valid", "data/pictures", *TRAIN],
        ["train", "vit", "--tiny", "--data", "data/pictures.tar.gz", "--valid", "data/pictures.tar", *TRAIN],
        ["train", "show-attend-tell", "--tiny", "--data", "data/pictures", "data/captions.jsonl", "data.valid=0.5",
        *TRAIN],
        ["train", "ask-attend-answer", "--tiny", "--data", "data/pictures", "data/questions.jsonl",
         "--valid", "data/pictures", "data/questions.jsonl", *TRAIN],
        ["train", "listen-attend-spell", "--tiny", "--data", "data/sounds", "--valid", "data/sounds", *TRAIN],
        ["train", "listen-attend-spell", "--tiny", "--data", "data/frames.npz", "data.valid=0.5", *TRAIN],
        ["train", "classify", "init=bert", "--data", "data/labels.csv", "--valid", "0.3", *TRAIN],
        ["train", "--resume", "dates", "train.steps=3"],
        ["train", "--resume", "runs/vit", "train.steps=3", "--plugin", "data/plugin.py", "--verbose"],
    ],
    "sweep": [
        ["sweep", "dates", "--tiny", "--grid", "train.clip=1,2", "--seeds", "1", *TRAIN, "data.valid=0.2",
         "data.train.0.examples=20", "train.valid_predictions=4"],
        ["sweep", "dates", "--data", "data/pairs.tsv", "--valid", "0.2", "--grid", "train.schedule.lr=1e-4,1e-3",
         "--search", "optuna", "--trials", "1", "--seeds", "1", "--name", "a", "--json", *TRAIN, *SMALL],
    ],
    "watch": [["watch", "dates", "--html", "page.html"], ["watch", "vit", "--port", "0"]],
    "predict": [
        ["predict", "dates", "3 May 1999", "beam=3", "--n-best", "2", "--json"],
        ["predict", "dates", "--input", "data/pairs.src", "--output", "out.txt", "--beam", "2", "--verbose"],
        ["predict", "dates", "--terms", "data/terms.tsv", "21 June 2008", "--beam", "4", "--precision", "int8"],
        ["predict", "dates,dates", "--with", "dates", "3 May", "max_length=9", "length_penalty=0.6"],
        ["predict", "gpt2", "Once upon", "sample=true", "top_k=3", "temperature=0.7", "stop=\\n", "seed=3"],
        ["predict", "gpt2", "--template", "data/template.txt", "--examples", "data/tasks.jsonl", "1+1"],
        ["predict", "gpt2", "--template", "Q: {question} A: {answer}", "--input", "data/tasks.jsonl"],
        ["predict", "classify", "a fine film", "--n-best", "2"],
        ["predict", "tag", "the cat", "--json"],
        ["predict", "bert", "a [MASK] dog", "--embed", "mean", "--output", "x.npy"],
        ["predict", "vit", "data/pictures/red circle/a.png", "data/pictures"],
        ["predict", "captions", "data/pictures/blue square", "--n-best", "2"],
        ["predict", "speech", "data/sounds/a.wav", "data/sounds/c.flac", "data/frames.npy"],
        ["predict", "questions", "--field", "image=data/pictures/red circle/b.jpg", "--field", "question=what is it ?"],
        ["predict", "t5", "-"],
        ["predict", "dates", "--corpus", "data/pairs.jsonl", "--column", "source", "--output", "parts"],
        ["predict", "classify", "--corpus", "data/labels.csv", "--column", "text", "--output", "parts", "--on-error",
         "skip"],
    ],
    "backtranslate": [
        ["backtranslate", "dates", "--input", "data/pairs.src", "--output", "bt.tsv", "--tag", "<BT>", "beam=2"],
        ["backtranslate", "dates", "-i", "embedded:dates", "-o", "b.tsv", "--noise", "0.1", "--max-ratio", "2",
        "--json"],
    ],
    "distill": [
        ["distill", "dates", "--input", "data/pairs.src", "--output", "d.tsv", "beam=2", "--max-ratio", "2"],
        ["distill", "dates,dates", "-i", "embedded:dates", "-o", "d.tsv", "--beam", "2", "--json"],
    ],
    "evaluate": [
        ["evaluate", "dates", "--data", "data/pairs.src", "data/pairs.tgt", "--metrics", "bleu,accuracy,cer", "--json"],
        ["evaluate", "--hyp", "data/pairs.src", "--ref", "data/pairs.tgt", "--lowercase", "--metrics", "bleu,chrf,wer"],
        ["evaluate", "classify", "--data", "data/labels.jsonl", "--metrics", "accuracy,f1", "-o", "o.txt"],
        ["evaluate", "gpt2", "--data", "data/story.txt"],
        ["evaluate", "gpt2", "--template", "data/template.txt", "--data", "data/tasks.jsonl", "--options", "1,2"],
        ["evaluate", "vit", "--data", "data/pictures"],
        ["evaluate", "speech", "--data", "data/sounds", "beam=2"],
        ["evaluate", "questions", "--data", "data/pictures", "data/questions.jsonl"],
    ],
    "compare": [
        ["compare", "dates", "runs/dates", "--data", "data/pairs.tsv", "--metric", "accuracy", "--markdown"],
        ["compare", "classify", "classify", "--data", "data/labels.csv", "--latex", "--json"],
    ],
    "ladder": [
        ["ladder", "--rungs", "transformer", "--length", "5", "--seeds", "1", "--out", "lad", "train.steps=1",
        "--json"],
        ["ladder", "--rungs", "no-attention", "--data", "data/pairs.tsv", "--valid", "0.2", "--test", "data/pairs.tsv"],
    ],
    "view": [
        ["view", "dates", "3 May", "--target", "1999", "--layer", "1", "--head", "2", "--part", "cross", "--json"],
        ["view", "gpt2", "Once", "--html", "v.html", "--words"],
        ["view", "vit", "data/pictures/red circle/a.png", "--svg", "v.svg", "--theme", "dark"],
        ["view", "captions", "data/pictures/red circle/b.jpg"],
        ["view", "questions", "--field", "image=data/pictures/red circle/a.png", "--field", "question=what ?"],
        ["view", "dates", "3 May", "--compare", "dates", "--words"],
    ],
    "serve": [["serve", "dates", "--port", "0", "--token", "t", "--timeout", "3", "--queue", "4", "--batch", "2"],
              ["serve", "vit", "gpt2", "--port", "0", "--max-body", "10", "--max-pixels", "1"]],
    "plan": [
        ["plan", "transformer", "train.steps=1000", "--gpu", "A100", "--gpus", "8", "--price", "2.5", "--json"],
        ["plan", "gpt2", "--tokens", "1e9", "--length", "128", "--mfu", "0.4", "--vocabulary", "1000"],
        ["plan", "runs/vit"], ["plan", "vit", "--paper"], ["plan", "dates"], ["plan", "listen-attend-spell"],
    ],
    "explain": [["explain", "train.lr"], ["explain", "learning rate", "--json"], ["explain", "objectives.0.alpha"]],
    "reproduce": [["reproduce", "--list"], ["reproduce", "--list", "--json"]],
    "runs": [["runs"], ["runs", "--json"]],
    "import": [
        ["import", "foreign/gpt2", "--run", "i"], ["import", "foreign/bert", "--run", "i"],
        ["import", "foreign/vit", "--run", "i"], ["import", "foreign/model.gguf", "--run", "i"],
    ],
    "export": [["export", "gpt2", "out"], ["export", "bert", "out"], ["export", "vit", "folder"], ["export", "dates",
    "out"]],
    "recipes": [["recipes"], ["recipes", "list"], ["recipes", "show", "vit"], ["recipes", "copy", "vit", "v.toml"]],
    "lectures": [
        ["lectures", "trace"], ["lectures", "trace", "dates", "3 May", "--layer", "1", "--head", "1"],
        ["lectures", "run", "14"], ["lectures", "run", "58", "--json"], ["lectures", "audit", "14", "--list"],
        ["lectures", "report", "--out", "rep", "--lecture", "S9"],
    ],
}  # fmt: skip
REFUSED_SEEDS = [["export", "dates", "out"], ["import", "foreign/model.gguf", "--run", "i"],
                 ["lectures", "report", "--out", "rep", "--lecture", "S9"]]  # fmt: skip
# How often a verb is drawn: those that read most kinds of input most often; a case of the last ones can take a second.
WEIGHTS = {
    "predict": 24, "import": 18, "watch": 12, "train": 10, "evaluate": 10, "runs": 10, "plan": 8, "view": 8,
    "export": 8,
    "recipes": 5, "explain": 4, "backtranslate": 4, "serve": 3, "compare": 2, "distill": 2, "reproduce": 1,
    "lectures": 1, "ladder": 1, "demo": 1, "sweep": 1,
}  # fmt: skip


@dataclass
class Case:
    """One command and the world that it meets."""

    argv: list[str]
    files: dict[str, bytes | None] = field(default_factory=dict)  # None removes a file
    stdin: bytes = b""
    found: str = ""  # what was wrong when the case was found
    readonly: list[str] = field(default_factory=list)  # files and folders that cannot be written to

    def to_json(self) -> str:
        values: dict[str, Any] = {"found": self.found, "argv": self.argv}
        if self.stdin:
            values["stdin"] = encode(self.stdin)
        if self.files:
            values["files"] = {path: None if data is None else encode(data) for path, data in self.files.items()}
        return json.dumps(values, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Case:
        values = json.loads(text)
        files = {path: None if data is None else decode(data) for path, data in values.get("files", {}).items()}
        return cls(values["argv"], files, decode(values.get("stdin", "")), values.get("found", ""))


def encode(data: bytes) -> str | list[str]:
    """Text as it is, other bytes as base64 in a list of one."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return [base64.b64encode(data).decode()]


def decode(value: str | list[str]) -> bytes:
    return value.encode() if isinstance(value, str) else base64.b64decode(value[0])


@lru_cache
def list_options() -> list[str]:
    """All options of all commands, as typer knows them."""
    import typer

    from saccade.cli import app

    def walk(command: Any) -> list[str]:
        own = [name for parameter in command.params for name in parameter.opts if name.startswith("-")]
        inner = getattr(command, "commands", {}).values()
        return own + [name for one in inner for name in walk(one)]

    return sorted(set(walk(typer.main.get_command(app))))


@lru_cache
def list_keys() -> list[str]:
    """Keys of the shipped recipes, as overrides name them."""
    import tomllib

    import saccade

    def walk(value: Any, prefix: str) -> list[str]:
        if isinstance(value, dict):
            return [key for name, inner in value.items() for key in walk(inner, f"{prefix}{name}.")]
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return walk(value[0], f"{prefix}0.")
        return [prefix[:-1]]

    folder = Path(saccade.__file__).parent / "recipes"
    recipes = [tomllib.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.toml"))]
    found = {key for recipe in recipes for key in walk(recipe, "")}
    return sorted({key.removeprefix("tiny.").removeprefix("paper.") for key in found})


class Generator:
    """Draws cases of some verbs, or of all; `files` are the names of the files of the world."""

    def __init__(self, world: Path, files: list[str], verbs: Collection[str] = ()) -> None:
        self.world, self.files = world, files
        self.weights = {verb: weight for verb, weight in WEIGHTS.items() if not verbs or verb in verbs}
        self.recipes = [path for path in files if path.endswith("recipe.toml")]

    def draw(self, random: Random) -> Case:
        verb = random.choices([*self.weights], [*self.weights.values()])[0]
        case = Case([*random.choice(SEEDS[verb])])
        kind = random.random()
        if kind < 0.40 or verb in ("demo", "recipes"):
            self.mutate_command(random, case)
        elif kind < 0.55 and verb in ("train", "plan"):
            self.mutate_recipe(random, case)
        else:
            self.mutate_input(random, case)
            if random.random() < 0.15:
                self.mutate_command(random, case)
        if "-" in case.argv:
            case.stdin = mutate_bytes(random, b"3 May 1999\n")
        return case

    def mutate_command(self, random: Random, case: Case) -> None:
        for _ in range(random.choice((1, 1, 2, 3))):
            words = case.argv
            at = random.randrange(1, len(words)) if len(words) > 1 else 1
            choice = random.randrange(9)
            if choice == 0:
                del words[at : at + 1]
            elif choice == 1:
                words.insert(at, random.choice(list_options()))
            elif choice == 2:
                words[at:at] = [random.choice(list_options()), random.choice((*WORDS, *NUMBERS, *self.files))]
            elif choice in (3, 4):
                words.append(f"{random.choice(list_keys())}={random.choice((*WORDS, *NUMBERS))}")
            elif choice == 5 and at < len(words):
                words[at] = random.choice(self.files)
            elif choice == 6 and len(words) > 2:
                other = random.randrange(1, len(words))
                words[at], words[other] = words[other], words[at]
            elif at < len(words):
                words[at] = mutate_word(random, words[at])
        case.argv = [word.replace("\0", "") for word in case.argv]

    def mutate_recipe(self, random: Random, case: Case) -> None:
        """Replace the recipe of a command by a changed one."""
        content = (self.world / random.choice(self.recipes)).read_bytes()
        for _ in range(random.choice((1, 1, 2))):
            content = mutate_toml(random, content)
        case.files["mutated.toml"] = content
        case.argv = [case.argv[0], "mutated.toml", *([] if case.argv[0] == "plan" else ["train.steps=1"])]

    def mutate_input(self, random: Random, case: Case) -> None:
        """Change a file that the command reads: of its runs, its data, or what it imports."""
        near = [path for path in self.files if any(self.is_read(word, path) for word in case.argv[1:])]
        for _ in range(random.choice((1, 1, 1, 2))):
            name = random.choice(near or self.files)
            if random.random() < 0.06:
                case.files[name] = None
            elif random.random() < 0.04:
                case.files[name] = (self.world / random.choice(self.files)).read_bytes()
            else:
                case.files[name] = mutate_file(random, name, (self.world / name).read_bytes())

    @staticmethod
    def is_read(word: str, path: str) -> bool:
        word = word.rpartition("=")[2]
        starts = [start for name in word.split(",") for start in (name, f"runs/{name}") if name]
        return any(path == start or path.startswith(f"{start}/") for start in starts)
