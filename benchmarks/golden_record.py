"""Trains one recipe with the saccade of one source tree and records everything that can be compared bit for bit.

    PYTHONPATH=TREE python -P benchmarks/golden_record.py RECIPE FILE KEY=VALUE...

`golden.py` starts this file once for each recipe and tree, in an empty working directory, which is SACCADE_RUNS too.
Only the command line, run in this process, and the files of a run are used, so that the same script works for trees
whose modules are arranged differently. FILE becomes {"facts": {name: value}, "notes": {name: text}, "seconds": number}:
facts are compared, notes say why a fact is missing.
"""

import contextlib
import hashlib
import importlib.util
import io
import json
import os
import re
import runpy
import shutil
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STATED_DEFAULTS = {
    "scale_attn_weights": True, "tie_word_embeddings": True, "mlp_bias": False, "attention_bias": False,
    "hidden_act": "silu",
}  # fmt: skip
MISSING = object()
RUN, EXPORT, INT8 = Path("run"), Path("export"), Path("run/model.int8.safetensors")
LINES, OUTPUTS, VECTORS = Path("lines.txt"), Path("outputs.txt"), Path("vectors.npy")
TIMING = {"seconds", "tokens_per_second", "data_wait", "minutes", "speed"}  # differ from run to run
UNSTABLE = TIMING | {"seal", "files", "made_for", "schema_version"}  # of state.json: hashes of files, format version
REFUSED = "refused"
MEDIUM = re.compile(r"\d{5}\.(?:png|wav)")  # files of embedded pictures and sound

# Inputs by embedded data set, taken from its validation part. 00001.png and so on are files of that part.
INPUTS = {
    "dates": ["2301-07-27", "сб, 6.07.1252 г.", "1479. deceember 5.", "Do., 11. Apr. 2368"],
    "numbers": ["6 7 0 9", "6 2", "4 6 3 0 1"],
    "copy": ["uqpg", "miakmfidzf", "njonikar"],
    "sentences": ["Some doctors near the house", "The sailor near", "The cat near the garden helps the children"],
    "stories": ["On a cold day a tall child was born near the river.", "In spring a teacher lived near the garden."],
    "sessions": ["book4 hat5 book5 hat6 hat7", "lamp5 cup2", "pen4 hat2 pen5 hat3"],
    "molecules": ["NC", "COC1C", "NSCc1cnc"],
    "opinions": ["The book was funny.", "The hotel is really bad.", "The hotel is not sad, but the room is sad."],
    "roles": ["the tired singer helps the quiet singer near the market", "the dog knows the singer"],
    "sums": ["14 12 17 11 7 18 2", "14 10 5 1", "19 7 15 11"],
    "shapes": ["00001.png", "00002.png", "00003.png"],
    "scenes": ["00001.png", "00002.png", "00003.png"],
    "words": ["00001.png", "00002.png", "00003.png"],
    "tones": ["00001.wav", "00002.wav"],
    "questions": [
        '{"image": "00001.png", "question": "what colour is the circle ?"}',
        '{"image": "00003.png", "question": "what shape is right of the red cross ?"}',
    ],
    "worlds": [
        '{"instruction": "face the grass hall", "map": "embedded:worlds-heldout/0", "start": [4, 4, 270]}',
        '{"instruction": "go left, then move two steps", "map": "embedded:worlds-heldout/3", "start": [1, 0, 180]}',
    ],
    "greeting": ["1", "2", "3"],  # numbers of episodes
}  # fmt: skip
# Recipes that fill gaps: what stands in the place of the second word of each input.
GAPS = {"t5": "<extra_id_0>", "t5-base": "<extra_id_0>"} | dict.fromkeys(
    ("albert", "bert", "bert-large", "roberta", "xlnet"), "[MASK]"
)
# Ways to predict: name: arguments of `saccade predict`.
PREDICTIONS = {
    "own settings": [],
    "greedy": ["--beam", "1", "n_best=1"],
    "beam": ["--n-best", "4"],
    "sampled": ["sample=true", "seed=3"],
    "int8": ["--precision", "int8"],
}


class Record:
    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}
        self.notes: dict[str, str] = {}

    def command(self, fact: str, *words: str) -> str | None:
        """The output of a command; where it fails, the fact is that it was refused, and the note says why."""
        output, errors = io.StringIO(), io.StringIO()
        sys.argv = ["saccade", *words]
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            try:
                runpy.run_module("saccade", run_name="__main__", alter_sys=True)
                code: Any = 0
            except SystemExit as stop:
                code = stop.code
        if code:
            self.facts[fact] = REFUSED
            self.notes[fact] = (errors.getvalue().strip().splitlines() or [f"exit code {code}"])[-1]
            return None
        return output.getvalue()


def record(recipe: str, overrides: list[str]) -> Record:
    made = Record()
    shown = made.command("recipe", "recipes", "show", recipe) or ""
    data = re.findall(r'"embedded:([a-z]+)', shown)[-1]
    if made.command("training", "train", recipe, "--tiny", "--run", str(RUN), *overrides) is None:
        raise SystemExit(made.notes["training"])
    made.facts |= training_facts()
    inputs = given(data, GAPS.get(recipe))
    predictions(made, inputs)
    scores(made)
    if (seen := made.command("attention", "view", str(RUN), inputs[0], "--json")) is not None:
        made.facts |= attention_facts(json.loads(seen))
    if made.command("export", "export", str(RUN), str(EXPORT)) is not None:
        made.facts |= folder_facts(EXPORT, "export")
    return made


def training_facts() -> dict[str, Any]:
    """Losses of all steps, scores and samples of validations, weights, tokenizers, checkpoints."""
    facts: dict[str, Any] = {}
    for file in [RUN / "metrics.jsonl", *RUN.glob("samples.jsonl")]:  # language models have no samples
        for line in file.read_text("utf-8").splitlines():
            values = json.loads(line)
            place = f"{values.pop('event')}/step {values.pop('step')}"
            facts |= {f"{place} {key}": value for key, value in flat(values) if not timed(key)}
    facts |= folder_facts(RUN, "run")
    for file in sorted((RUN / "checkpoints").rglob("*.safetensors")):
        where = file.relative_to(RUN / "checkpoints").with_suffix("")
        facts |= {f"checkpoint/{where} {name}": value for name, value in tensors(file)}
    for file in sorted((RUN / "checkpoints").glob("*/state.json")):
        state = {key: value for key, value in flat(json.loads(file.read_text("utf-8"))) if not timed(key)}
        facts |= {f"state/{file.parent.name} {key}": value for key, value in state.items()}
    return facts


def predictions(made: Record, inputs: list[str]) -> None:
    """What is predicted in several ways, as JSON with all scores; and embeddings.

    Each input is predicted alone: the command line makes batches of the lines that have arrived when it looks, so that
    batches, and with them the last bits, would depend on the clock.
    """
    for way, words in PREDICTIONS.items():
        for number, line in enumerate(inputs, 1):
            LINES.write_text(f"{line}\n", encoding="utf-8")
            INT8.unlink(missing_ok=True)  # made anew each time: 0.8 did not read tied weights back from it
            output = made.command(way, "predict", str(RUN), "--json", "--input", str(LINES), *words)
            if output is None:
                break
            made.facts[f"{way}/input {number}"] = json.loads(output)
    LINES.write_text("".join(f"{line}\n" for line in inputs), encoding="utf-8")
    embed = ["predict", str(RUN), "--embed", "mean", "--input", str(LINES), "--output", str(VECTORS)]
    if made.command("embedding", *embed) is not None:
        made.facts["embedding/all"] = digest(VECTORS.read_bytes())


def scores(made: Record) -> None:
    """The scores on the validation data and the outputs, or values of tokens, that they come from: in whole batches."""
    found = made.command("evaluate", "evaluate", str(RUN), "--json", "--output", str(OUTPUTS))
    if found is not None:
        made.facts |= {f"evaluate/{key}": value for key, value in flat(json.loads(found)) if not timed(key)}
        for number, line in enumerate(OUTPUTS.read_text("utf-8").splitlines() if OUTPUTS.is_file() else [], 1):
            made.facts[f"evaluate/output {number}"] = line


def given(data: str, gap: str | None) -> list[str]:
    """The inputs for an embedded data set; files that they name are copied here from the cache."""
    inputs = INPUTS[data]
    for name in MEDIUM.findall(" ".join(inputs)):
        found = sorted(Path(os.environ["SACCADE_CACHE"]).glob(f"**/*{data}-heldout*/{name}"))
        shutil.copyfile(found[0], name)
    if gap:
        split = [line.split(" ") for line in inputs]
        inputs = [" ".join([words[0], gap, *words[2:]]) for words in split]
    return inputs


def attention_facts(seen: dict[str, Any]) -> dict[str, Any]:
    facts = {"attention/output": seen["output"], "attention/labels": seen["labels"]}
    for one in seen["maps"]:
        facts[f"attention/{one['address']}"] = digest(json.dumps([one["shape"], one["weights"]]).encode())
    return facts


def folder_facts(folder: Path, title: str) -> dict[str, Any]:
    """All tensors and all JSON files that lie directly in a folder: weights, tokenizers, configurations."""
    facts = {}
    for file in sorted(folder.glob("*.safetensors")):
        facts |= {f"{title} weights/{file.stem} {name}": value for name, value in tensors(file)}
    for file in sorted(folder.glob("*.json")):
        content = json.loads(file.read_text("utf-8"))
        if file.name == "config.json":  # of an export: keys that only state the default of transformers do not count
            content = {key: value for key, value in content.items() if STATED_DEFAULTS.get(key, MISSING) != value}
        facts[f"{title} files/{file.name}"] = digest(json.dumps(content, sort_keys=True).encode())
    return facts


def tensors(file: Path) -> Iterator[tuple[str, str]]:
    """Name and hash of each tensor: dtype, shape and bytes. Metadata and order do not count."""
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__", None)
    for name, one in header.items():
        begin, end = (8 + length + offset for offset in one["data_offsets"])
        yield name, digest(f"{one['dtype']} {one['shape']} ".encode() + content[begin:end])


def flat(values: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested dictionaries, with dotted names."""
    if isinstance(values, dict) and values:
        for key, value in values.items():
            yield from flat(value, f"{name}.{key}" if name else str(key))
    else:
        yield name, values


def timed(name: str) -> bool:
    return bool(UNSTABLE & set(name.split(".")))


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def main() -> None:
    recipe, file, *overrides = sys.argv[1:]
    begun, found = time.monotonic(), importlib.util.find_spec("saccade")
    if found is None or not Path(str(found.origin)).is_relative_to(os.environ["PYTHONPATH"]):
        raise SystemExit("saccade is not imported from PYTHONPATH")
    made = record(recipe, overrides)
    # Files of the cache are named without their folder, which is another one for each tree.
    facts = json.loads(re.sub(rf'[^"\s]*/(?={MEDIUM.pattern})', "", json.dumps(made.facts)))
    whole = {"facts": facts, "notes": made.notes, "seconds": round(time.monotonic() - begun, 1)}
    Path(file).write_text(json.dumps(whole), encoding="utf-8")


if __name__ == "__main__":
    main()
