"""Writes the profile of a run: a Markdown table, JSON, and a trace for a browser."""

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
from saccade.files import atomic_replace, atomic_write
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.model.run import SkipInit
from saccade.train.finish import describe_hardware
from saccade.train.loss import MicroBatchLoss
from saccade.train.machine import preserve_rng_state, uses_bf16
from saccade.train.objectives.objectives import compute_terms
from saccade.train.profiling.communication import measure_communication
from saccade.train.profiling.profile import (
    PARTS,
    PlainSteps,
    ProfileResult,
    compute_seconds,
    record_timestamp,
    synchronize,
)
from saccade.train.session import Session

TABLE_FILE, VALUES_FILE, TRACE_FILE = "profile.md", "profile.json", "trace.json"
MAX_OPERATORS = 15  # in the table
Shape = Sequence[int]
METHOD = (
    "Model FLOPs are two for each multiplication of the matrix products, forward and backward, counted in this run's "
    "model on one sequence of the mean length, without padding, and with all scores of causal attention; recomputation "
    "is not counted. MFU is the model FLOPs per second divided by those of a large matrix product of the same "
    "precision on this machine, measured right after the steps."
)


def write_profile(s: Session, found: ProfileResult) -> None:
    """Write profile.md, profile.json and trace.json into the folder of the run."""
    if not s.ranks.is_main:
        return
    values = compute_values(s, found)
    with atomic_replace(s.run / TRACE_FILE) as temporary:
        found.trace.export_chrome_trace(str(temporary))
    atomic_write(s.run / VALUES_FILE, (json.dumps(values, indent=2) + "\n").encode())
    atomic_write(s.run / TABLE_FILE, format_markdown(values).encode())
    s.log.print_line(
        f"profile of {sum(found.steps.values())} steps: {values['tokens_per_second']:,.0f} tok/s, "
        f"MFU {values['mfu']:.1%}; see {s.run / TABLE_FILE}"
    )


def compute_values(s: Session, found: ProfileResult) -> dict[str, Any]:
    """Compute all values of profile.json; times are in milliseconds, for a plain step unless the key names another."""
    memory = get_peak_memory(s.device)  # before the measurements below allocate memory
    plain, tokens = found.plain, found.plain.tokens.total()
    timed, whole = found.steps["parts"], found.parts["step"]
    rate = measure_matmul_rate(s.device, torch.bfloat16 if uses_bf16(s.recipe.train, s.device) else torch.float32)
    flops = count_row_flops(s.loss, plain, model=build_whole_model(s)) * plain.rows / plain.steps
    step = plain.seconds / plain.steps
    shares = {name: found.parts[name] / whole for name in PARTS}
    return {
        "hardware": describe_hardware(s),
        "torch": torch.__version__,
        "steps": {**found.steps, "usual": plain.steps},
        "step_ms": 1000 * step,
        "tokens_per_step": tokens / plain.steps,
        "tokens_per_second": tokens / plain.seconds,
        "waited_for_data_ms": 1000 * found.data_wait,
        "timed_step_ms": 1000 * whole / timed,
        "parts_ms": {name: 1000 * found.parts[name] / timed for name in PARTS}
        | {"rest": 1000 * whole * (1 - sum(shares.values())) / timed},
        **compute_device_use(found, step),
        "model_flops_per_step": flops,
        "matrix_flops_per_second": rate,
        "mfu": flops / step / rate,
        "padding": s.prefetcher.padding,
        "peak_memory_bytes": memory,
        "communication": measure_communication(found.trace.events(), steps=found.steps["traced"]),
        "operators": list_operators(found.trace, steps=found.steps["traced"]),
        "how": METHOD,
    }


def compute_device_use(found: ProfileResult, step: float) -> dict[str, float]:
    """Return how long the GPU is busy and idle in a step; {} without a GPU."""
    kernels = [row for row in found.trace.key_averages() if row.device_type.name == "CUDA"]
    busy = sum(row.self_device_time_total for row in kernels if not row.is_user_annotation) / 1e6
    busy /= found.steps["traced"]
    return {} if not busy else {"device_busy_ms": 1000 * busy, "device_waiting_ms": 1000 * max(0.0, step - busy)}


def build_whole_model(s: Session) -> Model:
    """Return a copy of the model on the CPU; of a sharded model, one of the same shapes without its weights."""
    if s.ranks.mesh is None:
        return copy.deepcopy(s.model).cpu()
    with SkipInit():
        return build(s.recipe, source_size=s.tokenizers.source.size, target_size=s.tokenizers.target_size)


def count_row_flops(loss: MicroBatchLoss, plain: PlainSteps, *, model: Model) -> float:
    """Count the FLOPs of a sequence of mean length, forward and backward, in a model on the CPU."""
    fields = {name: build_row(round(count / plain.rows)) for name, count in plain.tokens.items()}
    with preserve_rng_state(loss.device), FlopCounterMode(display=False, custom_mapping=get_flop_formulas()) as counter:
        terms = compute_terms(loss.objectives, model, Batch(fields), torch.Generator())
        sum((term.weight * term.sum for term in terms.values() if term.weight), torch.zeros(())).backward()
    return float(counter.get_total_flops())


def get_flop_formulas() -> dict[Any, Callable[..., int]]:
    """Return FLOP formulas, by the shapes of the arguments, for operators that torch's counter does not know."""
    aten = torch.ops.aten

    def count_addmm(
        total: Shape, left: Shape, right: Shape, *, beta: Any = 1, alpha: Any = 1, out_shape: Any = None
    ) -> int:
        return 2 * left[0] * left[1] * right[1]

    def count_attention(*shapes: Any, attn_mask: Any = None, scale: Any = None, out_shape: Any = None) -> int:
        return sdpa_flop_count(*shapes[:3])

    def count_attention_backward(*shapes: Any, attn_mask: Any = None, scale: Any = None, out_shape: Any = None) -> int:
        return 2 * sdpa_flop_count(*shapes[1:4])  # without the recomputation of scores in the kernel

    return {
        aten.addmm_: count_addmm,
        aten._scaled_dot_product_flash_attention_for_cpu: count_attention,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: count_attention_backward,
    }


def build_row(length: int) -> Tokens:
    return Tokens(torch.zeros(1, max(length, 1), dtype=torch.int64), torch.ones(1, max(length, 1), dtype=torch.bool))


def measure_matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Measure the FLOPs per second of a large matrix product, as the median of several."""
    size = 1024
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        size = next(n for n in (8192, 4096, 2048, 1024) if n == 1024 or 3 * n * n * dtype.itemsize < free / 2)
    generator = torch.Generator(device)  # a new one: random numbers of training do not change
    left, right = (torch.randn(size, size, device=device, dtype=dtype, generator=generator) for _ in "ab")
    durations: list[float] = []
    deadline = time.perf_counter() + 0.3
    left @ right
    while not durations or time.perf_counter() < deadline:
        begin = record_timestamp(device)
        left @ right
        end = record_timestamp(device)
        synchronize(device)
        durations.append(compute_seconds(begin, end))
    return 2 * size**3 / statistics.median(durations)


def get_peak_memory(device: torch.device) -> int | None:
    """Return the peak memory in bytes: of tensors on a GPU, else of the process; None on Windows."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if importlib.util.find_spec("resource") is None:  # on Windows
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def list_operators(trace: profile, *, steps: int) -> list[dict[str, Any]]:
    """List the operators with the most self time, on the GPU if there is one."""
    rows = [row for row in trace.key_averages() if row.device_type.name == "CPU" and row.key not in PARTS]
    on_device = any(row.self_device_time_total for row in rows)
    spent = {(row.key, row.count): row.self_device_time_total if on_device else row.self_cpu_time_total for row in rows}
    total = sum(spent.values()) or 1.0
    most = sorted(spent.items(), key=lambda item: -item[1])[:MAX_OPERATORS]
    return [
        {"name": name, "ms": time / 1000 / steps, "share": time / total, "calls": count / steps}
        for (name, count), time in most
        if time
    ]


def format_markdown(values: Mapping[str, Any]) -> str:
    """Format the values of a profile as Markdown."""
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
        *[f"| {name} | {value} |" for name, value in list_facts(values)],
        "",
        values["how"],
        "",
        "| operator | ms a step | share | calls a step |",
        "|---|--:|--:|--:|",
        *[f"| `{o['name']}` | {o['ms']:.3f} | {o['share']:.1%} | {o['calls']:.0f} |" for o in values["operators"]],
        "",
        *format_communication(values["communication"]),
        f"`{TRACE_FILE}` has every operator of {values['steps']['traced']} steps on a time line: open it in "
        "https://ui.perfetto.dev or chrome://tracing.",
    ]
    return "\n".join(lines) + "\n"


def format_communication(found: Mapping[str, Any]) -> list[str]:
    """Format the table of collective operations; no lines if there were none."""
    if not found:
        return []
    operations = [f"| `{o['name']}` | {o['ms']:.3f} | {o['calls']:.0f} |" for o in found["operations"]]
    return [
        f"Communication takes {found['ms']:.2f} ms a step, {found['hidden']:.1%} of it while this process computes.",
        "",
        "| collective operation | ms a step | calls a step |",
        "|---|--:|--:|",
        *operations,
        "",
    ]


def list_facts(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    counts, step = values["steps"], values["step_ms"]
    rows = [
        (f"a step, mean of {counts['usual']} of {counts['plain']} that were not profiled", f"{step:.2f} ms"),
        (f"a step, mean of {counts['parts']} whose parts were timed", f"{values['timed_step_ms']:.2f} ms"),
        ("the loop waited for data", f"{values['waited_for_data_ms']:.2f} ms a step"),
    ]
    if "device_busy_ms" in values:
        for name, text in (("busy", "the GPU computed"), ("waiting", "the GPU waited for the host")):
            ms = values[f"device_{name}_ms"]
            rows.append((text, f"{ms:.2f} ms a step ({ms / step:.1%})"))
    memory = values["peak_memory_bytes"]
    return [
        *rows,
        ("real tokens a step", f"{values['tokens_per_step']:,.0f}"),
        ("real tokens a second", f"{values['tokens_per_second']:,.0f}"),
        ("padding", f"{values['padding']:.2%}"),
        ("model FLOPs a step", f"{values['model_flops_per_step']:.3e}"),
        ("matrix product of the machine", f"{values['matrix_flops_per_second'] / 1e12:.2f} TFLOP/s"),
        ("MFU", f"{values['mfu']:.1%}"),
        ("peak memory", "unknown" if memory is None else f"{memory / 2**20:,.0f} MiB"),
    ]
