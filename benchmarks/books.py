"""GPT-2 124M on public-domain books for some minutes, and Hugging Face's GPT2 beside it: bits per byte of other books.

    python benchmarks/books.py --data FOLDER [--minutes 8] [--rates 3e-4,6e-4,1e-3] [--tune 0.5] [--out FOLDER]
    python benchmarks/books.py --tiny

FOLDER holds `classic-books/{train,valid}.jsonl.xz`. Both models have the same tokenizer, rows, batches, optimizer,
schedule and minutes; how many steps fit into them is measured first. The learning rate of each is the best of --rates
after --tune minutes, by the same bits per byte. Hugging Face's model is compiled, in bfloat16, with a fused optimizer.
--tokenizer takes a tokenizer.json instead of learning one; --only names one of the two.
"""

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from minutes import FEW, MARGIN, steps_within
from results import save
from torch import Tensor

import saccade
from saccade.config.load import load, override
from saccade.config.schema import Recipe
from saccade.data.batch import Batch
from saccade.data.batches import BatchStream, valid_batches
from saccade.data.prepare import Prepared, prepare
from saccade.data.tokenizers import START
from saccade.model.writers import shift_right
from saccade.train.api import with_data

FORM = [
    "train.batch_tokens=65536", "train.accumulate=1", "train.precision=bf16", "train.residual=bf16",
    "writer.stack.dropout=0.1", "writer.dropout=0.1", "train.save_every=100000", "train.report_every=50",
    "train.compile=true",
]  # fmt: skip
SMALL = ["train.batch_tokens=1024", "train.precision=fp32", "train.residual=fp32", "train.compile=false"]
DROPOUT = 0.1
WARMUP = 0.05  # of the steps

Logits = Callable[[Tensor], Tensor]


class Setting(NamedTuple):
    recipe: Recipe
    data: Prepared
    device: torch.device
    folder: Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--rates", default="3e-4,6e-4,1e-3")
    parser.add_argument("--tune", type=float, default=0.5)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--only", choices=list(CONTENDERS))
    parser.add_argument("--tiny", action="store_true", help="toy sizes, to test the script")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    asked = parser.parse_args()
    if (asked.data is None) != asked.tiny:
        parser.error("give --data FOLDER, or --tiny")
    begin, rows = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as folder:
        setting = made(asked, Path(folder))
        for name in [asked.only] if asked.only else CONTENDERS:
            rows += measured(name, setting, asked)
            save("books", with_ratio(rows), minutes=(time.perf_counter() - begin) / 60, folder=asked.out)
    for row in rows:
        print(f"{row['what']:70} {row['value']:.4f} {row['unit']}")


def made(asked: argparse.Namespace, folder: Path) -> Setting:
    """The recipe, and its data as both contenders read them."""
    own = [f"tokenizer={{kind='file', files=['{asked.tokenizer}']}}"] if asked.tokenizer else []
    recipe = load("gpt2", tiny=asked.tiny, overrides=[*FORM, *own, *(SMALL if asked.tiny else [])])
    if asked.data:
        books = asked.data / "classic-books"
        recipe = with_data(recipe, data=books / "train.jsonl.xz", valid=books / "valid.jsonl.xz")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return Setting(recipe, prepare(recipe), device, folder)


def measured(name: str, setting: Setting, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """The best learning rate after a short training, then the long one."""
    train, few = CONTENDERS[name], 6 if asked.tiny else FEW
    tune, minutes = (0.02, 0.05) if asked.tiny else (asked.tune, asked.minutes)
    rates = [float(rate) for rate in asked.rates.split(",")]
    short = {rate: train(setting, rate, tune, few)[0] for rate in rates} if len(rates) > 1 else {rates[0]: 0.0}
    best = min(short, key=lambda rate: short[rate])
    value, steps, seconds = train(setting, best, minutes, few)
    what = f"classic-books, GPT-2 124M form, {minutes:g} minutes of training, {name}"
    return [
        {"what": f"{what}: bits per byte on valid", "value": round(value, 4), "unit": "bits"},
        {"what": f"{what}: steps", "value": steps, "unit": "steps", "detail": True},
        {"what": f"{what}: seconds of steps", "value": round(seconds, 1), "unit": "s", "detail": True},
        {"what": f"{what}: learning rate, of {json.dumps({str(k): round(v, 4) for k, v in short.items()})}",
         "value": best, "unit": "", "detail": True},
    ]  # fmt: skip


def with_ratio(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first row with the peer's value, where both are there."""
    told = [row for row in rows if not row.get("detail")]
    if len(told) == 2:
        ours, theirs = told
        ours |= {"peer": "Hugging Face GPT2, compile", "peer_value": theirs["value"],
                 "ratio": round(ours["value"] / theirs["value"], 4)}  # fmt: skip
    return rows


def train_ours(setting: Setting, rate: float, minutes: float, few: int) -> tuple[float, int, float]:
    """Bits per byte, steps, seconds."""
    run = setting.folder / f"saccade-{rate}-{minutes}"
    steps = steps_within(minutes, setting.recipe, setting.folder / f"{run.name}-few", few=few)
    lasting = [
        f"train.steps={steps}", f"train.valid_every={steps}",
        f"train.schedule={{kind='cosine', lr={rate}, warmup={int(WARMUP * steps)}, floor={rate / 10}}}",
    ]  # fmt: skip
    begin = time.perf_counter()
    model = saccade.train(override(setting.recipe, lasting), run=run).model.to(setting.device).eval()
    seconds = time.perf_counter() - begin

    def logits(inputs: Tensor) -> Tensor:
        return model.writer.head(model.writer(inputs, None, None))  # type: ignore[no-any-return]

    return bits_per_byte(logits, setting), steps, seconds


def train_theirs(setting: Setting, rate: float, minutes: float, few: int) -> tuple[float, int, float]:
    """The same with their model, and a plain loop."""
    from transformers import GPT2Config, GPT2LMHeadModel

    stack, cuda = setting.recipe.writer.stack, setting.device.type == "cuda"  # type: ignore[union-attr]
    config = GPT2Config(
        vocab_size=setting.data.tokenizers.target.size, n_positions=setting.recipe.data.max_length, n_embd=stack.dim,
        n_layer=stack.layers, n_head=stack.heads, n_inner=stack.ff, resid_pdrop=DROPOUT, embd_pdrop=DROPOUT,
        attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    torch.manual_seed(1)
    model = GPT2LMHeadModel(config).to(setting.device)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=rate, betas=(0.9, 0.95), fused=cuda,
    )  # fmt: skip

    def loss_of(ids: Tensor) -> Tensor:
        with torch.autocast(setting.device.type, torch.bfloat16, enabled=cuda):
            logits = model(input_ids=shift_right(ids, START)).logits
        return F.cross_entropy(logits.float().flatten(0, 1), ids.flatten())

    compiled = torch.compile(loss_of) if cuda else loss_of
    batches = full_batches(setting)
    steps = few
    for measuring in (True, False):  # the first steps tell how many there will be
        begin = time.perf_counter()
        for step in range(steps):
            if measuring and step == few // 3:
                ready(setting.device)
                begin = time.perf_counter()
            set_rate(optimizer, rate * (1.0 if measuring else cosine(step, steps)))
            optimizer.zero_grad(set_to_none=True)
            compiled(next(batches).fields["target"].ids.to(setting.device)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        ready(setting.device)
        seconds = time.perf_counter() - begin
        if measuring:
            steps = max(int(60 * MARGIN * minutes * (few - few // 3) / seconds), 1)
            model.apply(model._init_weights)
            optimizer.state.clear()
    model.eval()
    return bits_per_byte(lambda inputs: model(input_ids=inputs).logits, setting), steps, seconds


def full_batches(setting: Setting) -> Iterator[Batch]:
    """The batches of our own training of which every row is full: a compiled model wants one shape."""
    recipe = setting.recipe
    stream = BatchStream(setting.data.train, batch_tokens=recipe.train.batch_tokens, seed=1)  # type: ignore[arg-type]
    rows = recipe.train.batch_tokens // recipe.data.max_length
    wanted = (rows, recipe.data.max_length)
    return (
        batch for batch in stream if tuple(batch["target"].ids.shape) == wanted and bool(batch["target"].mask.all())
    )


def cosine(step: int, steps: int) -> float:
    """The same warm-up and way down to a tenth as ours."""
    warmup = max(int(WARMUP * steps), 1)
    if step < warmup:
        return (step + 1) / warmup
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warmup) / max(steps - warmup, 1)))


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def ready(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


@torch.inference_mode()
def bits_per_byte(logits_of: Logits, setting: Setting) -> float:
    """Of all tokens of the validation books, in rows as for training, given what stands before them in the row."""
    valid = setting.data.valid
    assert valid is not None, "the recipe has validation data"
    total, cuda = 0.0, setting.device.type == "cuda"
    for batch in valid_batches(valid, batch_tokens=setting.recipe.data.max_length * (16 if cuda else 4)):
        ids, mask = (part.to(setting.device) for part in (batch["target"].ids, batch["target"].mask))
        with torch.autocast(setting.device.type, torch.bfloat16, enabled=cuda):
            logits = logits_of(shift_right(ids, START)).float()
        losses = F.cross_entropy(logits.flatten(0, 1), ids.flatten(), reduction="none").view_as(ids)
        total += float(losses[mask].double().sum())
    return total / math.log(2) / valid.bytes


CONTENDERS = {"saccade": train_ours, "huggingface": train_theirs}

if __name__ == "__main__":
    main()
