"""Train GPT-2 124M on public-domain books for some minutes, compared with Hugging Face's GPT2: held-out bits per byte.

    python benchmarks/books.py --data FOLDER [--minutes 8] [--rates 3e-4,6e-4,1e-3] [--tune 0.5] [--out FOLDER]
    python benchmarks/books.py --tiny

FOLDER holds `classic-books/{train,valid}.jsonl.xz`. Both models have the same tokenizer, rows, batches, dropout,
optimizer, schedule and minutes; how many steps fit into them is measured first. The learning rate of each is the best
of --rates after --tune minutes, by the same bits per byte. Both are validated eight times in the long training, and the
best weights count; ours are a moving average. Hugging Face's model is compiled, in bfloat16, with a fused optimizer.
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
from minutes import MARGIN, PROBE_STEPS, measure_speed
from results import save
from torch import Tensor

import saccade
from saccade.config.load import load, override
from saccade.config.schema import Recipe
from saccade.data.batching.batch import Batch
from saccade.data.batching.batches import BatchStream, iter_validation_batches
from saccade.data.prepare import PreparedData, prepare
from saccade.data.tokenization.tokenizers import START
from saccade.model.run import pick_device
from saccade.model.writers.tokens import shift_right
from saccade.train.api import replace_data

DROPOUT = 0.2  # of both contenders, which see the books ten times and more
FORM = [
    "train.batch_tokens=65536", "train.accumulate=1", "train.precision=bf16", "train.residual_precision=bf16",
    f"writer.stack.dropout={DROPOUT}", f"writer.dropout={DROPOUT}", "train.ema=0.999", "train.save_every=100000",
    "train.report_every=50", "train.compile=true",
]  # fmt: skip
SMALL = ["train.batch_tokens=1024", "train.precision=fp32", "train.residual_precision=fp32", "train.compile=false"]
WARMUP = 0.05  # of the steps
VALIDATIONS = 8  # in the long training; the best weights count

Logits = Callable[[Tensor], Tensor]


class TrainingResult(NamedTuple):
    """Bits per byte of the best weights, and their steps and seconds."""

    bits: float
    steps: int
    seconds: float


class Setting(NamedTuple):
    recipe: Recipe
    data: PreparedData
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
    args = parser.parse_args()
    if (args.data is None) != args.tiny:
        parser.error("give --data FOLDER, or --tiny")
    begin, rows = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as folder:
        setting = prepare_setting(args, Path(folder))
        for name in [args.only] if args.only else CONTENDERS:
            rows += measure_contender(name, setting, args)
            save("books", add_ratio(rows), minutes=(time.perf_counter() - begin) / 60, folder=args.out)
    for row in rows:
        print(f"{row['what']:70} {row['value']:.4f} {row['unit']}")


def prepare_setting(args: argparse.Namespace, folder: Path) -> Setting:
    """Build the recipe and the data for both contenders."""
    own = [f"tokenizer={{kind='file', files=['{args.tokenizer}']}}"] if args.tokenizer else []
    recipe = load("gpt2", tiny=args.tiny, overrides=[*FORM, *own, *(SMALL if args.tiny else [])])
    if args.data:
        books = args.data / "classic-books"
        recipe = replace_data(recipe, data=books / "train.jsonl.xz", valid=books / "valid.jsonl.xz")
    device = pick_device("auto")
    return Setting(recipe, prepare(recipe), device, folder)


def measure_contender(name: str, setting: Setting, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure the speed, choose the learning rate by short trainings, then run the long training."""
    contender = CONTENDERS[name](setting)
    a_minute = 60 * MARGIN * contender.speed(6 if args.tiny else PROBE_STEPS)
    tune, minutes = (0.02, 0.05) if args.tiny else (args.tune, args.minutes)
    rates = [float(rate) for rate in args.rates.split(",")]
    short = {
        rate: contender.train(rate, steps=int(tune * a_minute), validations=1).bits for rate in rates if len(rates) > 1
    } or {rates[0]: 0.0}
    best = min(short, key=lambda rate: short[rate])
    found = contender.train(best, steps=int(minutes * a_minute), validations=VALIDATIONS)
    what = f"classic-books, GPT-2 124M form, {minutes:g} minutes of training, {name}"
    tried = json.dumps({str(rate): round(bits, 4) for rate, bits in short.items()})
    return [
        {"what": f"{what}: bits per byte on valid", "value": round(found.bits, 4), "unit": "bits"},
        {"what": f"{what}: steps", "value": found.steps, "unit": "steps", "detail": True},
        {"what": f"{what}: seconds, with all looks", "value": round(found.seconds, 1), "unit": "s", "detail": True},
        {"what": f"{what}: learning rate, of {tried}", "value": best, "unit": "", "detail": True},
    ]


def add_ratio(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add the peer's value and the ratio to our row, if both contenders ran."""
    main_rows = [row for row in rows if not row.get("detail")]
    if len(main_rows) == 2:
        ours, theirs = main_rows
        ours |= {"peer": "Hugging Face GPT2, compile", "peer_value": theirs["value"],
                 "ratio": round(ours["value"] / theirs["value"], 4)}  # fmt: skip
    return rows


class Ours:
    """The recipe."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def speed(self, few: int) -> float:
        return measure_speed(self.setting.recipe, self.setting.folder / "few", few=few)

    def train(self, rate: float, *, steps: int, validations: int) -> TrainingResult:
        run = self.setting.folder / f"saccade-{rate}-{steps}"
        lasting = [
            f"train.steps={steps}", f"train.valid_every={max(1, steps // validations)}",
            f"train.schedule={{kind='cosine', lr={rate}, warmup_steps={int(WARMUP * steps)}, min_lr={rate / 10}}}",
        ]  # fmt: skip
        begin = time.perf_counter()
        model = saccade.train(override(self.setting.recipe, lasting), run=run).model.to(self.setting.device).eval()
        seconds = time.perf_counter() - begin

        def logits(inputs: Tensor) -> Tensor:
            return model.writer.head(model.writer(inputs, None, None))  # type: ignore[no-any-return]

        return TrainingResult(bits_per_byte(logits, self.setting), steps, seconds)


class Theirs:
    """Hugging Face's model, compiled once, in a plain training loop."""

    def __init__(self, setting: Setting) -> None:
        from transformers import GPT2Config, GPT2LMHeadModel

        stack, cuda = setting.recipe.writer.stack, setting.device.type == "cuda"  # type: ignore[union-attr]
        config = GPT2Config(
            vocab_size=setting.data.tokenizers.target.size, n_positions=setting.recipe.data.max_length,
            n_embd=stack.dim, n_layer=stack.layers, n_head=stack.heads, n_inner=stack.ff, resid_pdrop=DROPOUT,
            embd_pdrop=DROPOUT, attn_pdrop=0.0, use_cache=False,
        )  # fmt: skip
        self.setting, self.batches = setting, iterate_full_batches(setting)
        self.model = GPT2LMHeadModel(config).to(setting.device)
        decayed = [p for p in self.model.parameters() if p.dim() > 1]
        others = [p for p in self.model.parameters() if p.dim() <= 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
            lr=0.0, betas=(0.9, 0.95), fused=cuda,
        )  # fmt: skip
        self.loss = torch.compile(self.loss_of) if cuda else self.loss_of

    def speed(self, few: int) -> float:
        """Return the steps per second of the last two thirds of a few steps."""
        self.steps(few // 3, rate=1e-4)
        begin = time.perf_counter()
        self.steps(few - few // 3, rate=1e-4)
        return (few - few // 3) / (time.perf_counter() - begin)

    def train(self, rate: float, *, steps: int, validations: int) -> TrainingResult:
        torch.manual_seed(1)
        self.model.apply(self.model._init_weights)
        self.optimizer.state.clear()
        found, every, begin = [], max(1, steps // validations), time.perf_counter()
        for done in range(0, steps, every):
            self.steps(min(every, steps - done), rate=rate, done=done, total=steps)
            self.model.eval()
            found.append(bits_per_byte(lambda inputs: self.model(input_ids=inputs).logits, self.setting))
            self.model.train()
        return TrainingResult(min(found), steps, time.perf_counter() - begin)

    def steps(self, count: int, *, rate: float, done: int = 0, total: int = 0) -> None:
        """Train for this many steps, which are part of `total` if given."""
        for step in range(done, done + count):
            set_rate(self.optimizer, rate * (get_cosine_factor(step, total) if total else 1.0))
            self.optimizer.zero_grad(set_to_none=True)
            self.loss(next(self.batches).fields["target"].ids.to(self.setting.device)).backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
        if self.setting.device.type == "cuda":
            torch.cuda.synchronize()

    def loss_of(self, ids: Tensor) -> Tensor:
        kind = self.setting.device.type
        with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
            logits = self.model(input_ids=shift_right(ids, START)).logits
        return F.cross_entropy(logits.float().flatten(0, 1), ids.flatten())


def iterate_full_batches(setting: Setting) -> Iterator[Batch]:
    """Yield our training batches whose rows are all full: a compiled model needs static shapes."""
    recipe = setting.recipe
    stream = BatchStream(setting.data.train, batch_tokens=recipe.train.batch_tokens, seed=1)  # type: ignore[arg-type]
    rows = recipe.train.batch_tokens // recipe.data.max_length
    wanted = (rows, recipe.data.max_length)
    return (
        batch for batch in stream if tuple(batch["target"].ids.shape) == wanted and bool(batch["target"].mask.all())
    )


def get_cosine_factor(step: int, steps: int) -> float:
    """Return the learning-rate factor of our schedule: warm-up, then cosine decay to a tenth."""
    warmup = max(int(WARMUP * steps), 1)
    if step < warmup:
        return (step + 1) / warmup
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warmup) / max(steps - warmup, 1)))


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


@torch.no_grad()
def bits_per_byte(logits_of: Logits, setting: Setting) -> float:
    """Return the bits per byte of the validation books, in sequences as for training, each token given its prefix."""
    valid = setting.data.valid
    assert valid is not None, "the recipe has validation data"
    total, cuda = 0.0, setting.device.type == "cuda"
    for batch in iter_validation_batches(valid, batch_tokens=setting.recipe.data.max_length * (16 if cuda else 4)):
        ids, mask = (part.to(setting.device) for part in (batch["target"].ids, batch["target"].mask))
        with torch.autocast(setting.device.type, torch.bfloat16, enabled=cuda):
            logits = logits_of(shift_right(ids, START)).float()
        losses = F.cross_entropy(logits.flatten(0, 1), ids.flatten(), reduction="none").view_as(ids)
        total += float(losses[mask].double().sum())
    return total / math.log(2) / valid.num_bytes


CONTENDERS: dict[str, type[Ours] | type[Theirs]] = {"saccade": Ours, "huggingface": Theirs}

if __name__ == "__main__":
    main()
