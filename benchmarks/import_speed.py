"""How long it takes from a folder of GPT-2's smallest size to the first token, on a CPU, in a fresh process.

    python benchmarks/import_speed.py [--layers 12] [--width 768] [--vocabulary 50257] [--repeat 3]
                                      [--folder FOLDER] [--out benchmarks/results]

The folder is made of random numbers and, like the published one, has about 500 MB. Each process begins with nothing
imported: ours imports the folder as a run, loads it and writes one token (`saccade import` and `saccade predict` in
one); transformers, where it is installed, loads the folder and writes one token. The best of some repetitions counts.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from results import save

MAX_SECONDS = 5.0  # seconds that ours may take
OURS = """
import sys, time
from saccade.exchange.importing import import_folder
from saccade.predict.predictors.predictor import Predictor
model = Predictor.load(import_folder(sys.argv[1], sys.argv[2]).path, device="cpu")
next(model.write("The quick brown fox"))
print(time.process_time())
"""
AGAIN = """
import sys, time
from saccade.predict.predictors.predictor import Predictor
next(Predictor.load(sys.argv[2], device="cpu").write("The quick brown fox"))
print(time.process_time())
"""
THEIRS = """
import sys, time
from transformers import AutoTokenizer, GPT2LMHeadModel
tokenizer, model = AutoTokenizer.from_pretrained(sys.argv[1]), GPT2LMHeadModel.from_pretrained(sys.argv[1])
model.generate(**tokenizer("The quick brown fox", return_tensors="pt"), max_new_tokens=1, do_sample=False,
               pad_token_id=0)
print(time.process_time())
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("layers", 12), ("width", 768), ("vocabulary", 50257), ("repeat", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--folder", type=Path, help="where the folder is made, or was")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    own = parser.parse_args()
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = own.folder or Path(temporary) / "folder"
        if not folder.exists():
            make_folder(folder, layers=own.layers, width=own.width, vocabulary=own.vocabulary)
        rows = measure_both(folder, Path(temporary) / "run", repeat=own.repeat)
    save("import_speed", rows, minutes=(time.perf_counter() - begin) / 60, folder=own.out)
    for row in rows:
        print(f"{row['what']}: {row['value']} {row['unit']}")


def make_folder(folder: Path, *, layers: int, width: int, vocabulary: int) -> None:
    """config.json, model.safetensors and tokenizer.json, without transformers."""
    import torch
    from safetensors.torch import save_file

    shapes = {"wte.weight": (vocabulary, width), "wpe.weight": (1024, width), "ln_f.weight": (width,)}
    shapes["ln_f.bias"] = (width,)
    for block in (f"h.{number}" for number in range(layers)):
        for name, size in (("ln_1", (width,)), ("ln_2", (width,))):
            shapes |= {f"{block}.{name}.weight": size, f"{block}.{name}.bias": size}
        for name, size in (
            ("attn.c_attn", (width, 3 * width)), ("attn.c_proj", (width, width)),
            ("mlp.c_fc", (width, 4 * width)), ("mlp.c_proj", (4 * width, width)),
        ):  # fmt: skip
            shapes |= {f"{block}.{name}.weight": size, f"{block}.{name}.bias": size[1:]}
    torch.manual_seed(1)
    folder.mkdir(parents=True)
    save_file(
        {f"transformer.{name}": 0.02 * torch.randn(size) for name, size in shapes.items()}, folder / "model.safetensors"
    )
    config = {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": width, "n_layer": layers,
        "n_head": max(1, width // 64), "n_positions": 1024, "vocab_size": vocabulary, "bos_token_id": vocabulary - 1,
        "eos_token_id": vocabulary - 1, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer(vocabulary).save(str(folder / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))


def tokenizer(size: int) -> Any:
    """Build a byte-level BPE tokenizer with as many tokens as GPT-2."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces, merges = list(letters), list[tuple[str, str]]()
    known = set(pieces)
    for first in letters:
        for second in pieces[: len(pieces)]:
            if len(pieces) + 1 >= size:
                break
            if first + second not in known:
                known.add(first + second)
                pieces.append(first + second)
                merges.append((first, second))
    core = tokenizers.Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    core.add_special_tokens(["<|endoftext|>"])
    return core


def measure_both(folder: Path, run: Path, *, repeat: int) -> list[dict[str, Any]]:
    """Measure both in turn, so that a slow moment of the machine affects both."""
    found: dict[str, list[tuple[float, float]]] = {"import and first token": [], "first token": [], "transformers": []}
    for _ in range(repeat):
        shutil.rmtree(run, ignore_errors=True)
        for name, program in zip(found, (OURS, AGAIN, THEIRS), strict=True):
            if times := time_program(program, folder, run):
                found[name].append(times)
    rows = []
    for name, times in found.items():
        for which, clock in ((0, "wall clock"), (1, "processor time")):
            if times:
                value = round(min(item[which] for item in times), 2)
                unit = f"s, at most {MAX_SECONDS:g}" if not which and name == "import and first token" else "s"
                rows.append({"what": f"{name}, {clock}", "value": value, "unit": unit})
    if found["transformers"]:
        ours, theirs = (min(item[1] for item in found[name]) for name in ("first token", "transformers"))
        rows.append({"what": "first token against transformers", "value": round(theirs / ours, 2), "unit": "x"})
    return rows


def time_program(program: str, folder: Path, run: Path) -> tuple[float, float] | None:
    """Return wall and CPU seconds of a program; None if it cannot run."""
    begin = time.perf_counter()
    quiet = {**os.environ, "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", program, str(folder), str(run)],
        capture_output=True,
        text=True,
        env=quiet,
    )
    if done.returncode and "transformers" not in program:
        raise SystemExit(done.stderr)
    return None if done.returncode else (time.perf_counter() - begin, float(done.stdout.split()[-1]))


if __name__ == "__main__":
    main()
