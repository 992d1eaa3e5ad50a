"""Random rounds of the C kernels, compiled with ASan and UBSan, on tensors that end at a page nobody may touch.

The callers are saccade's own, so that the sizes of their buffers are tested too; each result is compared with torch.
The program starts itself again with the sanitizers preloaded: `python tests/fuzz/kernels.py --rounds 20000`.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import math
import mmap
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from tallies import Tally, run_jobs

SANITIZERS = ("libasan.so", "libubsan.so")
FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=all -g"
TESTS = Path(__file__).parents[1]
MAX_PAGES = 8000  # areas of memory at a time; Linux allows a process 65,530
FLOAT32_ERROR = 1e-5  # relative, of the few operations in float32 of which each has one of 6e-8
PROT_NONE, FAILED = 0, ctypes.c_void_p(-1).value


def start_sanitized(cache: Path) -> int:
    """Run this program with the sanitizers preloaded, and kernels compiled with them."""
    compiler = os.environ.get("CC") or "gcc"
    paths = [
        subprocess.run(
            [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in SANITIZERS
    ]
    environment = {
        **os.environ, "LD_PRELOAD": ":".join(paths), "CC": f"env -u LD_PRELOAD {compiler} {FLAGS}",
        "SACCADE_CACHE": str(cache),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:detect_stack_use_after_return=1",
        "UBSAN_OPTIONS": "print_stacktrace=1", "OMP_NUM_THREADS": "2", "SACCADE_STRICT_ENGINES": "1",
        "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]), "SACCADE_DEVICE": "cpu",
    }  # fmt: skip
    return subprocess.run([sys.executable, *sys.argv], env=environment).returncode


class GuardedMemory:
    """Memory that ends at a page without access; released as a whole."""

    def __init__(self) -> None:
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.mmap.restype = ctypes.c_void_p
        self.libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        self.libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self.libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self.pages: list[tuple[int, int]] = []

    def allocate(self, size: int) -> Any:
        """A buffer of `size` bytes whose last byte is the last before the guard page."""
        page = mmap.PAGESIZE
        whole = -(-size // page) * page
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        start = self.libc.mmap(None, whole + page, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        if start == FAILED or self.libc.mprotect(start + whole, page, PROT_NONE):
            raise OSError(ctypes.get_errno(), "no guarded memory")
        self.pages.append((start, whole + page))
        return (ctypes.c_char * size).from_address(start + whole - size)

    def release(self) -> None:
        for start, size in self.pages:
            self.libc.munmap(start, size)
        self.pages.clear()


@contextmanager
def guard_tensors(memory: GuardedMemory) -> Iterator[Callable[[Any], Any]]:
    """Let every tensor that is created inside the block end at a guard page; yields the function that moves one."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves, tree_map

    def move(tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor) or not tensor.numel() or tensor.layout != torch.strided:
            return tensor
        if tensor.device.type != "cpu":  # the meta device, on which models are built
            return tensor
        extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        buffer = memory.allocate(extent * tensor.element_size())
        moved = torch.frombuffer(buffer, dtype=tensor.dtype, count=extent).as_strided(tensor.shape, tensor.stride())
        moved.copy_(tensor)
        return moved

    class Guard(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            given = {find_storage(item) for item in tree_leaves((args, kwargs or {}))}
            return tree_map(lambda item: item if find_storage(item) in given else move(item), result)

    with Guard():
        yield move


def find_storage(item: Any) -> int | None:
    """The address of the memory of a tensor; None for anything else. Views and results in place share it."""
    import torch

    is_dense = isinstance(item, torch.Tensor) and item.layout == torch.strided and item.device.type == "cpu"
    return item.untyped_storage().data_ptr() if is_dense else None


class Rounds:
    """One method for each kernel: draws sizes and values, runs it, and compares with torch."""

    def __init__(self, random: Random) -> None:
        import torch

        self.random, self.torch, self.models = random, torch, {}  # type: ignore[var-annotated]

    def draw_values(self, *shape: int) -> Any:
        values = self.torch.randn(shape)
        if self.random.random() < 0.1 and values.numel():
            values.view(-1)[self.random.randrange(values.numel())] = self.random.choice(
                (math.nan, math.inf, 1e38, -0.0)
            )
        return values

    def size(self, limit: int) -> int:
        return self.random.choice((1, self.random.randint(1, limit), self.random.randint(1, limit), 16, 32))

    def check(self, found: Any, expected: Any, *, close: float) -> None:
        if self.torch.isfinite(expected).all():
            self.torch.testing.assert_close(found, expected, atol=close, rtol=close)

    def multiply_floats(self, move: Callable[[Any], Any]) -> None:
        from saccade.kernels.cpu.fma import FmaLinear

        rows, inputs, outputs = self.random.choice((1, 2, 7, 8, 9, 17, 530)), self.size(90), self.size(70)
        weight, bias = self.draw_values(outputs, inputs), self.draw_values(outputs)
        relu, has_bias = self.random.random() < 0.5, self.random.random() < 0.5
        layer = FmaLinear(move(weight), move(bias) if has_bias else None, relu=relu)
        x = self.draw_values(rows, inputs)
        expected = self.torch.nn.functional.linear(x, weight, bias if has_bias else None)
        self.check(layer(move(x)), expected.relu() if relu else expected, close=1e-3)

    def multiply_bytes(self, move: Callable[[Any], Any]) -> None:
        from saccade.kernels.cpu.vnni import VnniLinear

        rows, inputs, outputs = self.random.choice((1, 2, 5, 7, 8, 9, 16, 19)), self.size(90), self.size(70)
        weight = self.torch.randint(-127, 128, (outputs, inputs), dtype=self.torch.int8)
        scale, bias = self.torch.rand(outputs), self.draw_values(outputs)
        nonnegative = self.random.random() < 0.5
        layer = VnniLinear(move(weight), move(scale), move(bias), relu=False, nonnegative=nonnegative)
        x = self.draw_values(rows, inputs)
        x = x.abs() if nonnegative else x
        together = layer(move(x))
        if self.torch.isfinite(x).all() and self.torch.isfinite(bias).all():
            alone = self.torch.cat([layer(move(row[None])) for row in x])
            self.torch.testing.assert_close(together, alone, atol=0, rtol=0)
            real = weight.double() * scale[:, None].double()
            step = x.double().abs().amax(1, keepdim=True) / (255 if nonnegative else 127)
            check_int8_product(together, x.double() @ real.T + bias.double(), step / 2 * real.abs().sum(1))

    def attend(self, move: Callable[[Any], Any]) -> None:
        from saccade.kernels.cpu import step_attention

        rows, count, heads = self.random.randint(1, 4), self.random.randint(1, 5), self.random.randint(1, 4)
        keys, head_dim = self.size(40), self.random.choice((1, 3, 15, 16, 17, 64, 100, 128))
        query, key, value = (self.draw_values(rows, n, heads, head_dim) for n in (count, keys, keys))
        if self.random.random() < 0.5:  # other strides, as in caches
            key, value = (part.transpose(0, 1).contiguous().transpose(0, 1) for part in (key, value))
        keep = self.torch.rand(rows, keys) > 0.4 if self.random.random() < 0.5 else None
        moved = None if keep is None else move(keep)
        found = step_attention.attend_few_queries(move(query), move(key), move(value), scale=0.3, keep=moved)
        scores = self.torch.einsum("bqhe,bkhe->bhqk", query * 0.3, key)
        if keep is not None:
            scores = scores.masked_fill(~keep[:, None, None], -math.inf)
        weights = scores.softmax(-1).nan_to_num() if keep is not None else scores.softmax(-1)
        expected = self.torch.einsum("bhqk,bkhe->bqhe", weights, value)
        if all(self.torch.isfinite(part).all() for part in (query, key, value)):
            self.check(found, expected, close=1e-3)

    def build_model(self) -> Any:
        """A small writer, with a reader or without, in float32 or int8; some are kept for other rounds."""
        from laid_out import made

        number = self.random.randrange(24)
        if number not in self.models:
            recipe, norm = ("transformer", ("post", "pre")[number % 2]) if number % 3 else ("gpt2", "pre")
            settings = [f"writer.stack.norm={norm}", f"writer.stack.layers={1 + number % 2}"]
            kind = ("fp32", "int8")[number // 3 % 2]
            self.models[number] = made(*settings, recipe=recipe, kind=kind, words=17 + number, end=1.5, seed=number)
        return self.models[number]

    def forget_models(self) -> None:
        """Drop all models, and what was prepared for their searches."""
        from saccade.predict.engines.cpu_fused import PREPARED_SEARCHES

        self.models.clear()
        PREPARED_SEARCHES.clear()
        gc.collect()

    def search(self, move: Callable[[Any], Any]) -> None:
        """Greedy or beam search in one call of C, against single steps."""
        from saccade.data.batching.batch import Batch, pad
        from saccade.predict.engines.cpu_fused import prepare_search
        from saccade.predict.search import filters
        from saccade.predict.search.beam import beam_search
        from saccade.predict.search.greedy import choose_best, decode_rows

        model, sentences, beam = self.build_model(), self.random.randint(1, 4), self.random.randint(1, 6)
        sources = [
            [self.random.randint(4, 15) for _ in range(self.random.randint(1, 9))] + [2] for _ in range(sentences)
        ]
        limits = self.torch.tensor([self.random.randint(1, 12) for _ in range(sentences)])
        least = self.random.choice((0, 0, 2))
        found = []
        for fused in (True, False):
            batch = Batch({"source": pad(sources)})
            memory = None if model.reader is None else model.read(batch)
            state = model.writer.start(memory, capacity=14, rows=sentences)
            rules = [filters.forbid_tokens(), filters.limit_length(limits)]
            rules[1:1] = [filters.require_min_length(least)] if least else []
            multi_step = prepare_search(model.writer.describe_step()) if fused else None
            if beam == 1:
                ids = self.torch.arange(sentences)
                outputs = decode_rows(
                    model.writer, state, sentence_ids=ids, choose=choose_best, rules=rules, multi_step=multi_step
                )
            else:
                outputs = beam_search(
                    model.writer, state, limits=limits, width=beam, rules=rules, multi_step=multi_step
                )
            found.append([group[0].log_prob for group in outputs])
        for ours, theirs in zip(*found, strict=True):
            assert abs(ours - theirs) < 1e-2, f"the search in C finds {ours}, single steps {theirs}"


def check_int8_product(found: Any, expected: Any, rounding: Any) -> None:
    """Compare a product with the one in float64: inputs are rounded to a level, sums exact, the rest is float32.

    A product that float32 cannot hold is infinite, and only such a product is.
    """
    import torch

    most = torch.finfo(torch.float32).max
    difference = (found.double().clamp(-most, most) - expected.clamp(-most, most)).abs()
    limit = (1 + FLOAT32_ERROR) * rounding + FLOAT32_ERROR * (expected.abs() + 1)
    assert (difference <= limit).all(), "more than rounding of inputs"  # a NaN is not less


KERNELS = {
    "float_product (fma.c)": ("multiply_floats", 3),
    "int8_product (vnni.c)": ("multiply_bytes", 3),
    "attend_once (step_attention.c)": ("attend", 3),
    "greedy_steps, beam_steps (search_steps.c, stack_step.c)": ("search", 1),
}


def run_rounds(rounds: int, seconds: float, seed: int, shard: tuple[int, int] = (1, 1)) -> Counter[str]:
    """Run rounds of all kernels, or the k-th of n parts of them; a fault ends the process."""
    import torch

    done: Counter[str] = Counter()
    names, weights = [*KERNELS], [weight for _, weight in KERNELS.values()]
    work, begin, kept = Rounds(Random(seed)), time.monotonic(), list[GuardedMemory]()
    for number in range(shard[0] - 1, rounds, shard[1]):
        if time.monotonic() - begin > seconds:
            break
        work.random.seed(f"{seed}-{number}")
        torch.manual_seed(work.random.randrange(2**31))
        name, memory = work.random.choices(names, weights)[0], GuardedMemory()
        try:
            with torch.inference_mode(), guard_tensors(memory) as move:
                getattr(work, KERNELS[name][0])(move)
        except BaseException:
            print(f"FAULT in round {number} of {name}, seed {seed}", flush=True)
            raise
        if KERNELS[name][0] != "search":
            memory.release()
        else:  # its models have memory that other rounds need
            kept.append(memory)
        if sum(len(each.pages) for each in kept) > MAX_PAGES:
            work.forget_models()
            for each in kept:
                each.release()
            kept.clear()
        done[name] += 1
        if done.total() % 500 == 0:
            print(f"{done.total()} rounds", flush=True)
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--shard", default="1/1", metavar="K/N", help="the K-th of N parts of the rounds")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with a part of the rounds")
    parser.add_argument("--tally", type=Path, default=None, help="file to which the counts are added, see tallies.py")
    options = parser.parse_args()
    if "LD_PRELOAD" not in os.environ:
        with tempfile.TemporaryDirectory(prefix="saccade-kernels-") as cache:
            return start_sanitized(Path(cache))
    from saccade.kernels.cpu import native

    missing = native.explain_missing()
    if missing:
        print(f"no rounds of C kernels: {missing}")
        return 0
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    if options.jobs > 1:
        return run_jobs(options.jobs, seed, options.tally)
    native.FLAGS = tuple(flag.replace("-O3", "-O1") for flag in native.FLAGS)  # sanitizers make -O3 slow to compile
    native.COMPILE_TIMEOUT_SECONDS = 1800
    print(f"seed {seed}", flush=True)
    number, _, count = options.shard.partition("/")
    done = run_rounds(options.rounds, options.seconds, seed, (int(number), int(count)))
    for name, rounds in done.items():
        print(f"{name:<60}{rounds:>8,} rounds, 0 faults", flush=True)
    if options.tally:
        Tally("kernels", seed, options.shard, done).append_to(options.tally)
    return 0


if __name__ == "__main__":
    sys.exit(main())
