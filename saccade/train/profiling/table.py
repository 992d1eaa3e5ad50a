"""What the watched steps of a run say, as a table to read, as JSON, and as a trace that opens in a browser."""

from __future__ import annotations

import copy
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.profiler import profile
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from saccade.data.batching.batch import Batch, Tokens
from saccade.files import atomic_write, replacing
from saccade.train.finish import hardware
from saccade.train.loss import MicroLoss
from saccade.train.machine import kept_randomness, uses_bf16
from saccade.train.objectives.objectives import all_terms
from saccade.train.profiling.profile import PARTS, Findings, Plain, moment, seconds_between, synchronize
from saccade.train.session import Session

TABLE, VALUES, TRACE = "profile.md", "profile.json", "trace.json"
OPERATORS = 15  # shown
Shape = Sequence[int]
HOW = (
    "Model FLOPs are two for each multiplication of the matrix products, forward and backward, counted in this run's "
    "model on one row of the mean length, without padding, and with every score of causal attention; what `recompute` "
    "computes again is not counted. MFU is the model FLOPs a second over what a large matrix product of the same "
    "precision reached on this machine, measured right after the steps."
)


def write_profile(s: Session, found: Findings) -> None:
    """Writes profile.md, profile.json and trace.json into the run."""
    if not s.ranks.main:
        return
    values = profile_values(s, found)
    with replacing(s.run / TRACE) as temporary:
        found.trace.export_chrome_trace(str(temporary))
    atomic_write(s.run / VALUES, (json.dumps(values, indent=2) + "\n").encode())
    atomic_write(s.run / TABLE, markdown(values).encode())
    s.log.say(
        f"profile of {sum(found.steps.values())} steps: {values['tokens_per_second']:,.0f} tok/s, "
        f"MFU {values['mfu']:.1%}; see {s.run / TABLE}"
    )


def profile_values(s: Session, found: Findings) -> dict[str, Any]:
    """All numbers, for a plain step where nothing else is said; times in milliseconds."""
    memory = peak_memory(s.device)  # before what is measured here takes its own
    plain, tokens = found.plain, found.plain.tokens.total()
    timed, whole = found.steps["parts"], found.parts["step"]
    rate = matrix_rate(s.device, torch.bfloat16 if uses_bf16(s.recipe.train, s.device) else torch.float32)
    flops = flops_of_row(s.loss, plain) * plain.rows / plain.steps
    step = plain.seconds / plain.steps
    shares = {name: found.parts[name] / whole for name in PARTS}
    return {
        "hardware": hardware(s),
        "torch": torch.__version__,
        "steps": {**found.steps, "usual": plain.steps},
        "step_ms": 1000 * step,
        "tokens_per_step": tokens / plain.steps,
        "tokens_per_second": tokens / plain.seconds,
        "waited_for_data_ms": 1000 * found.waited,
        "timed_step_ms": 1000 * whole / timed,
        "parts_ms": {name: 1000 * found.parts[name] / timed for name in PARTS}
        | {"rest": 1000 * whole * (1 - sum(shares.values())) / timed},
        **device_use(found, step),
        "model_flops_per_step": flops,
        "matrix_flops_per_second": rate,
        "mfu": flops / step / rate,
        "padding": s.feed.padding,
        "peak_memory_bytes": memory,
        "operators": operators(found.trace, steps=found.steps["traced"]),
        "how": HOW,
    }


def device_use(found: Findings, step: float) -> dict[str, float]:
    """How long a GPU computes in a step, and how long it stands still; nothing where the profiler saw no GPU."""
    kernels = [row for row in found.trace.key_averages() if row.device_type.name == "CUDA"]
    busy = sum(row.self_device_time_total for row in kernels if not row.is_user_annotation) / 1e6
    busy /= found.steps["traced"]
    return {} if not busy else {"device_busy_ms": 1000 * busy, "device_waiting_ms": 1000 * max(0.0, step - busy)}


def flops_of_row(loss: MicroLoss, plain: Plain) -> float:
    """FLOPs of a row of mean length, forward and backward, of a copy of the model on the CPU."""
    model = copy.deepcopy(loss.model).cpu()
    fields = {name: row_of(round(count / plain.rows)) for name, count in plain.tokens.items()}
    with kept_randomness(loss.device), FlopCounterMode(display=False, custom_mapping=more_products()) as counter:
        terms = all_terms(loss.objectives, model, Batch(fields), torch.Generator())
        sum((term.weight * term.sum for term in terms.values() if term.weight), torch.zeros(())).backward()
    return float(counter.get_total_flops())


def more_products() -> dict[Any, Callable[..., int]]:
    """Operations that torch's counter does not know, with their FLOPs by the shapes of what they are given."""
    aten = torch.ops.aten

    def added(total: Shape, left: Shape, right: Shape, *, beta: Any = 1, alpha: Any = 1, out_shape: Any = None) -> int:
        return 2 * left[0] * left[1] * right[1]

    def attention(*shapes: Any, attn_mask: Any = None, scale: Any = None, out_shape: Any = None) -> int:
        return sdpa_flop_count(*shapes[:3])

    def attention_back(*shapes: Any, attn_mask: Any = None, scale: Any = None, out_shape: Any = None) -> int:
        return 2 * sdpa_flop_count(*shapes[1:4])  # that it makes the scores once more is its own affair

    return {
        aten.addmm_: added,
        aten._scaled_dot_product_flash_attention_for_cpu: attention,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: attention_back,
    }


def row_of(length: int) -> Tokens:
    return Tokens(torch.zeros(1, max(length, 1), dtype=torch.int64), torch.ones(1, max(length, 1), dtype=torch.bool))


def matrix_rate(device: torch.device, kind: torch.dtype) -> float:
    """FLOPs a second of a large matrix product, the median of several."""
    size = 1024
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        size = next(n for n in (8192, 4096, 2048, 1024) if n == 1024 or 3 * n * n * kind.itemsize < free / 2)
    generator = torch.Generator(device)  # its own: training's random numbers go on as before
    left, right = (torch.randn(size, size, device=device, dtype=kind, generator=generator) for _ in "ab")
    took, until = [], time.perf_counter() + 0.3
    left @ right
    while time.perf_counter() < until:
        begin = moment(device)
        left @ right
        end = moment(device)
        synchronize(device)
        took.append(seconds_between(begin, end))
    return 2 * size**3 / statistics.median(took)


def peak_memory(device: torch.device) -> int | None:
    """Bytes: of tensors on a GPU, else of the whole process where the system tells."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if importlib.util.find_spec("resource") is None:  # on Windows
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def operators(trace: profile, *, steps: int) -> list[dict[str, Any]]:
    """The operators that take the most time by themselves: of the device where it is not the host."""
    rows = [row for row in trace.key_averages() if row.device_type.name == "CPU" and row.key not in PARTS]
    on_device = any(row.self_device_time_total for row in rows)
    spent = {(row.key, row.count): row.self_device_time_total if on_device else row.self_cpu_time_total for row in rows}
    total = sum(spent.values()) or 1.0
    most = sorted(spent.items(), key=lambda item: -item[1])[:OPERATORS]
    return [
        {"name": name, "ms": time / 1000 / steps, "share": time / total, "calls": count / steps}
        for (name, count), time in most
        if time
    ]


def markdown(values: Mapping[str, Any]) -> str:
    """The table to read."""
    parts = values["parts_ms"]
    lines = [
        "# Where the time of a training step goes",
        "",
        f"{values['hardware']}; torch {values['torch']}",
        "",
        "| part of a step | ms | share |",
        "|---|--:|--:|",
        *[f"| {name} | {ms:.2f} | {ms / values['timed_step_ms']:.1%} |" for name, ms in parts.items()],
        "",
        "| | |",
        "|---|--:|",
        *[f"| {name} | {value} |" for name, value in facts(values)],
        "",
        values["how"],
        "",
        "| operator | ms a step | share | calls a step |",
        "|---|--:|--:|--:|",
        *[f"| `{o['name']}` | {o['ms']:.3f} | {o['share']:.1%} | {o['calls']:.0f} |" for o in values["operators"]],
        "",
        f"`{TRACE}` has every operator of {values['steps']['traced']} steps on a time line: open it in "
        "https://ui.perfetto.dev or chrome://tracing.",
    ]
    return "\n".join(lines) + "\n"


def facts(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    counts, step = values["steps"], values["step_ms"]
    shown = [
        (f"a step, mean of {counts['usual']} of {counts['plain']} that ran as ever", f"{step:.2f} ms"),
        (f"a step, mean of {counts['parts']} whose parts were timed", f"{values['timed_step_ms']:.2f} ms"),
        ("the loop waited for data", f"{values['waited_for_data_ms']:.2f} ms a step"),
    ]
    if "device_busy_ms" in values:
        for name, text in (("busy", "the GPU computed"), ("waiting", "the GPU waited for the host")):
            ms = values[f"device_{name}_ms"]
            shown.append((text, f"{ms:.2f} ms a step ({ms / step:.1%})"))
    memory = values["peak_memory_bytes"]
    return [
        *shown,
        ("real tokens a step", f"{values['tokens_per_step']:,.0f}"),
        ("real tokens a second", f"{values['tokens_per_second']:,.0f}"),
        ("padding", f"{values['padding']:.2%}"),
        ("model FLOPs a step", f"{values['model_flops_per_step']:.3e}"),
        ("matrix product of the machine", f"{values['matrix_flops_per_second'] / 1e12:.2f} TFLOP/s"),
        ("MFU", f"{values['mfu']:.1%}"),
        ("peak memory", "unknown" if memory is None else f"{memory / 2**20:,.0f} MiB"),
    ]
