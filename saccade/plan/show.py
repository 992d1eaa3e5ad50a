"""Format a plan as tables of text."""

from __future__ import annotations

from collections.abc import Sequence

from saccade.plan.activations import BytesPerToken
from saccade.plan.counts import count_by_part, count_parameters, count_trainable
from saccade.plan.cpu import CpuSpeed
from saccade.plan.estimate import Plan, count_sides
from saccade.plan.hardware import GIB, TERA
from saccade.plan.layouts import count_micro_batches
from saccade.train.pace import LONG_SECONDS, format_time

Rows = list[tuple[str, ...]]
UNKNOWN_STACK = "not known for this kind of stack"


def build_sections(plan: Plan) -> list[tuple[str, Rows]]:
    """Return the title and the rows of each table."""
    return [
        (format_headline(plan), build_part_rows(plan)),
        ("FLOPs per token", build_flops_rows(plan)),
        (f"memory on one {plan.gpu.name}, {plan.batch_tokens:,} tokens in a batch", build_memory_rows(plan)),
        *([(format_cpu_title(plan.cpu), build_cpu_rows(plan, plan.cpu))] if plan.cpu is not None else []),
        ("time" if plan.cpu is None else f"time on one {plan.gpu.name}", build_time_rows(plan)),
        (f"memory per GPU on {format_gpus(plan.time.gpus)}", build_sharding_rows(plan)),
        *([(format_layout_title(plan), build_layout_rows(plan))] if plan.time.gpus > 1 else []),
    ]


def format_headline(plan: Plan) -> str:
    frozen = count_parameters(plan.model) - count_trainable(plan.model)
    note = f", {frozen:,} of them frozen" if frozen else ""
    return f"{plan.recipe.name}: {count_parameters(plan.model):,} parameters{note}, vocabulary {plan.vocabulary:,}"


def build_part_rows(plan: Plan) -> Rows:
    found = count_by_part(plan.model)
    sides = list(dict.fromkeys(side for counts in found.values() for side in counts))
    rows = [("part", *sides)]
    for part, counts in found.items():
        rows.append((part, *(format_count(counts.get(side)) for side in sides)))
    return [*rows, ("all", *(f"{sum(counts.get(side, 0) for counts in found.values()):,}" for side in sides))]


def format_count(count: int | None) -> str:
    return "" if count is None else f"{count:,}" if count else "tied"


def build_flops_rows(plan: Plan) -> Rows:
    flops = plan.flops
    rows: Rows = []
    if flops.source:
        rows = [("forward, source", format_flops(flops.source)), ("forward, target", format_flops(flops.target))]
    share = flops.attention / (flops.source + flops.target)
    note = f"{share:.1%} of it attention scores and weighted sums, sequences of {plan.length:,} tokens"
    times = f"{plan.time.flops_per_token / flops.mean:g} times the forward pass"
    return [
        *rows,
        ("forward, mean", format_flops(flops.mean), note),
        ("training", format_flops(plan.time.flops_per_token), times),
    ]


def build_memory_rows(plan: Plan) -> Rows:
    memory, tokens = plan.memory, plan.batch_tokens
    fixed, loss, cache = memory.fixed, memory.get_loss(memory.count_target_tokens(tokens)), memory.get_cache()
    peak, recomputed = memory.get_batch_peak(tokens), memory.get_batch_peak(tokens, recompute=True)
    rows: Rows = [
        ("weights", format_gib(fixed.weights)),
        ("gradients", format_gib(fixed.gradients)),
        ("optimizer", format_gib(fixed.optimizer)),
        ("bf16 copies of weights", format_gib(fixed.matmul_copies)),
        ("saved for the backward pass", format_per_token(memory.get_activations())),
        ("  with train.recompute", format_per_token(memory.get_activations(recompute=True))),
        ("loss", format_gib(loss.total), f"{format_gib(loss.piece)} of it logits"),
        ("peak", format_gib(peak), "" if recomputed is None else f"{format_gib(recomputed)} with train.recompute"),
        (
            "largest train.batch_tokens",
            format_tokens(memory.find_largest_batch()),
            format_recompute(memory.find_largest_batch(recompute=True)),
        ),
        ("decoding cache", format_per_token(cache)),
    ]
    return [*rows[:3], ("moving average", format_gib(fixed.average)), *rows[3:]] if fixed.average else rows


def format_tokens(tokens: int | None) -> str:
    return UNKNOWN_STACK if tokens is None else f"{tokens:,}"


def format_recompute(tokens: int | None) -> str:
    return "" if tokens is None else f"{tokens:,} with train.recompute"


def format_per_token(size: BytesPerToken | None) -> str:
    if size is None:
        return UNKNOWN_STACK
    target = f"{size.target / 1024:,.1f} KiB per target token"
    return f"{size.source / 1024:,.1f} KiB per source token, {target}" if size.source else target


def build_time_rows(plan: Plan) -> Rows:
    time, speed, step = plan.time, plan.time.tokens_per_second, plan.step_seconds
    if speed is None or step is None:
        return [("speed", "the MFU of this kind of stack was not measured; give --mfu")]
    rate = f"{format_gpus(time.gpus)} of {time.matmul_flops / TERA:,.0f} TFLOP/s"
    rows: Rows = [
        (
            "speed",
            f"{speed:,.0f} tokens/s",
            f"{rate} at MFU {time.mfu:.2f}, {time.end_to_end:.2f} of it end to end",
        ),
        ("a step", f"{1000 * step:,.1f} ms" if step < 10 else f"{step:,.0f} s", format_batches(plan)),
    ]
    if time.hours is None or time.tokens is None:
        return [*rows, ("training", "the recipe has no train.steps; give --tokens")]
    rows.append(("training", format_duration(time.hours), f"{time.tokens:,.0f} tokens"))
    if time.dollars is not None:
        rows.append(("cost", f"${time.dollars:,.2f}", f"${time.price:g} per GPU hour"))
    return rows


def format_cpu_title(cpu: CpuSpeed) -> str:
    how = "estimated from the speed of a large matrix product"
    if cpu.measured_tokens is not None:
        how = f"measured in training steps of {cpu.measured_tokens:,} tokens"
    return f"time on the CPU of this machine with {cpu.threads} thread{'s' * (cpu.threads != 1)}, {how}"


def build_cpu_rows(plan: Plan, cpu: CpuSpeed) -> Rows:
    rows: Rows = [
        ("speed", f"{plan.step_tokens / cpu.step_seconds:,.0f} tokens/s", "without validation"),
        ("a step", f"{cpu.step_seconds:,.3g} s", format_batches(plan)),
    ]
    if (minutes := plan.recipe.train.minutes) is not None:
        rows.append(("steps", f"{60 * minutes / cpu.step_seconds:,.0f}", f"fit into train.minutes={minutes:g}"))
    elif plan.cpu_hours is not None:
        rows.append(("training", format_time(3600 * plan.cpu_hours), suggest_small_recipe(plan)))
    return rows


def suggest_small_recipe(plan: Plan) -> str:
    small = plan.recipe.task.small_recipe
    if plan.cpu_hours is None or 3600 * plan.cpu_hours < LONG_SECONDS or not small or small == plan.recipe.name:
        return ""
    return f"the recipe {small} is made for a CPU"


def build_sharding_rows(plan: Plan) -> Rows:
    rows: Rows = [
        (option.name, format_gib(option.bytes), "" if option.fits else "does not fit") for option in plan.advice.options
    ]
    least = "one layer does not fit"
    if plan.advice.min_gpus:
        least = f"FSDP with recompute and one sequence per GPU needs {format_gpus(plan.advice.min_gpus)}"
    known = plan.memory.get_activations() is not None
    note: Rows = [] if known else [("not counted", "activations for the backward pass", UNKNOWN_STACK)]
    return [*rows, *note, ("advice", plan.advice.best or "more GPUs", least)]


def format_layout_title(plan: Plan) -> str:
    count = count_micro_batches(plan.recipe, plan.time.gpus)
    uneven = any(count % (each.layout.data * each.layout.shard) for each in plan.layouts)
    note = f", where train.accumulate must be a multiple of data x shard (it is {count})" if uneven else ""
    return f"layouts of `saccade train`{note}"


def build_layout_rows(plan: Plan) -> Rows:
    """Rows of what each process holds and sends, from exact counts of parameters, gradients and optimizer."""
    rows: Rows = [("train.parallel", "parameters", "gradients", "optimizer", "sent per step")]
    for layout, states, sent in plan.layouts:
        sizes = " ".join(f"{name}={size}" for name, size in layout._asdict().items() if size > 1)
        held = (states.parameters, states.gradients, states.optimizer)
        rows.append((sizes or "data=1", *(format_gib(size) for size in held), format_gib(sent)))
    return rows


def format_batches(plan: Plan) -> str:
    count = count_micro_batches(plan.recipe, plan.time.gpus)
    tokens, target = plan.batch_tokens, plan.memory.count_target_tokens(plan.batch_tokens)
    if count_sides(plan.model, plan.flops.target_ratio) == 1:
        each = f"{tokens:,} tokens"
    else:
        each = f"{tokens:,} tokens per side" if tokens == target else f"{tokens:,} source and {target:,} target tokens"
    return f"of {each}" if count == 1 else f"of {count} micro-batches of {each}"


def format_duration(hours: float) -> str:
    return f"{60 * hours:,.0f} minutes" if hours < 10 else f"{hours:,.0f} hours"


def format_gpus(gpus: int) -> str:
    return "1 GPU" if gpus == 1 else f"{gpus} GPUs"


def format_flops(value: float) -> str:
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= size:
            return f"{value / size:,.2f} {unit}FLOP"
    return f"{value / 1e3:,.2f} kFLOP"


def format_gib(size: float | None) -> str:
    return UNKNOWN_STACK if size is None else f"{size / GIB:,.2f} GiB"


def pad_rows(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Pad rows with empty cells to the same length."""
    width = max(map(len, rows))
    return [(*row, *[""] * (width - len(row))) for row in rows]
