"""A plan as rows of text."""

from __future__ import annotations

from collections.abc import Sequence

from saccade.plan.activations import Kept
from saccade.plan.counts import by_part, parameters, trained
from saccade.plan.estimate import Plan, sides
from saccade.plan.hardware import GIB, TERA

Rows = list[tuple[str, ...]]
UNKNOWN = "not known for this kind of stack"


def sections(plan: Plan) -> list[tuple[str, Rows]]:
    """Titles, and the rows under each."""
    return [
        (headline(plan), part_rows(plan)),
        ("floating-point operations for a token", work_rows(plan)),
        (f"memory on one {plan.gpu.name}, {plan.batch_tokens:,} tokens in a batch", memory_rows(plan)),
        ("time", time_rows(plan)),
        (f"how to lay it out over {plural(plan.time.gpus)}", sharding_rows(plan)),
    ]


def headline(plan: Plan) -> str:
    frozen = parameters(plan.model) - trained(plan.model)
    note = f", {frozen:,} of them frozen" if frozen else ""
    return f"{plan.recipe.name}: {parameters(plan.model):,} parameters{note}, vocabulary {plan.vocabulary:,}"


def part_rows(plan: Plan) -> Rows:
    found = by_part(plan.model)
    sides = list(dict.fromkeys(side for counts in found.values() for side in counts))
    rows = [("part", *sides)]
    for part, counts in found.items():
        rows.append((part, *(told(counts.get(side)) for side in sides)))
    return [*rows, ("all", *(f"{sum(counts.get(side, 0) for counts in found.values()):,}" for side in sides))]


def told(count: int | None) -> str:
    return "" if count is None else f"{count:,}" if count else "tied"


def work_rows(plan: Plan) -> Rows:
    work = plan.work
    rows: Rows = []
    if work.source:
        rows = [("forward, of the source", flops(work.source)), ("forward, of the target", flops(work.target))]
    scores = work.of_scores / (work.source + work.target)
    share = f"{scores:.1%} of it scores and means of attention, {plan.length:,} tokens a text"
    return [
        *rows,
        ("forward, mean", flops(work.mean), share),
        ("training", flops(plan.time.per_token), f"{plan.time.per_token / work.mean:g} times the forward pass"),
    ]


def memory_rows(plan: Plan) -> Rows:
    memory, tokens = plan.memory, plan.batch_tokens
    fixed, loss, cache = memory.fixed, memory.loss(memory.written(tokens)), memory.cache()
    peak, again = memory.peak_of_batch(tokens), memory.peak_of_batch(tokens, recompute=True)
    rows: Rows = [
        ("weights", gib(fixed.weights)),
        ("gradients", gib(fixed.gradients)),
        ("optimizer", gib(fixed.optimizer)),
        ("narrow copies of weights", gib(fixed.narrow)),
        ("kept for the backward pass", each(memory.kept())),
        ("  with train.recompute", each(memory.kept(recompute=True))),
        ("loss", gib(loss.total), f"{gib(loss.piece)} of it logits"),
        ("peak", gib(peak), "" if again is None else f"{gib(again)} with train.recompute"),
        (
            "largest train.batch_tokens",
            largest(memory.largest_batch()),
            recomputed(memory.largest_batch(recompute=True)),
        ),
        ("decoding cache", each(cache)),
    ]
    return [*rows[:3], ("moving average", gib(fixed.average)), *rows[3:]] if fixed.average else rows


def largest(tokens: int | None) -> str:
    return UNKNOWN if tokens is None else f"{tokens:,}"


def recomputed(tokens: int | None) -> str:
    return "" if tokens is None else f"{tokens:,} with train.recompute"


def each(kept: Kept | None) -> str:
    if kept is None:
        return UNKNOWN
    target = f"{kept.target / 1024:,.1f} KiB a token written"
    return f"{kept.source / 1024:,.1f} KiB a token read, {target}" if kept.source else target


def time_rows(plan: Plan) -> Rows:
    time, speed, step = plan.time, plan.time.tokens_per_second, plan.step_seconds
    if speed is None or step is None:
        return [("speed", "nobody measured the MFU of this kind of stack; give --mfu")]
    rate = f"{plural(time.gpus)} of {time.rate / TERA:,.0f} TFLOP/s"
    rows: Rows = [
        ("speed", f"{speed:,.0f} tokens/s", f"{rate} at MFU {time.mfu:.2f}, {time.whole:.2f} of it in a whole run"),
        ("a step", f"{1000 * step:,.1f} ms" if step < 10 else f"{step:,.0f} s", batches(plan)),
    ]
    if time.hours is None or time.tokens is None:
        return [*rows, ("training", "the recipe counts no steps; give --tokens")]
    rows.append(("training", duration(time.hours), f"{time.tokens:,.0f} tokens"))
    if time.dollars is not None:
        rows.append(("money", f"${time.dollars:,.2f}", f"${time.price:g} for a GPU and an hour"))
    return rows


def sharding_rows(plan: Plan) -> Rows:
    rows: Rows = [
        (choice.name, gib(choice.bytes), "" if choice.fits else "does not fit") for choice in plan.advice.choices
    ]
    fewest = plan.advice.fewest
    few = f"FSDP with recompute and one text on each needs {plural(fewest)}" if fewest else "one layer does not fit"
    known = plan.memory.kept() is not None
    note: Rows = [] if known else [("not counted", "what is kept for the backward pass", UNKNOWN)]
    return [*rows, *note, ("advice", plan.advice.best or "more GPUs", few)]


def batches(plan: Plan) -> str:
    count = plan.recipe.train.accumulate
    tokens, written = plan.batch_tokens, plan.memory.written(plan.batch_tokens)
    if sides(plan.model, plan.work.beside) == 1:
        each = f"{tokens:,} tokens"
    else:
        each = f"{tokens:,} tokens a side" if tokens == written else f"{tokens:,} tokens read and {written:,} written"
    return f"of {each}" if count == 1 else f"of {count} micro-batches of {each}"


def duration(hours: float) -> str:
    return f"{60 * hours:,.0f} minutes" if hours < 10 else f"{hours:,.0f} hours"


def plural(gpus: int) -> str:
    return "1 GPU" if gpus == 1 else f"{gpus} GPUs"


def flops(value: float) -> str:
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= size:
            return f"{value / size:,.2f} {unit}FLOP"
    return f"{value / 1e3:,.2f} kFLOP"


def gib(size: float | None) -> str:
    return UNKNOWN if size is None else f"{size / GIB:,.2f} GiB"


def columns(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """All rows equally long."""
    width = max(map(len, rows))
    return [(*row, *[""] * (width - len(row))) for row in rows]
