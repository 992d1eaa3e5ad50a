"""Random small recipes over every key that changes a model, their models with random weights, and random sentences.

`draw_case(seed)` is deterministic. Most keys have their default; some cases have many unusual keys, most have few.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from saccade.config import schema
from saccade.config.load import validate
from saccade.config.schema import Decoding, Recipe, Table
from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.tokenizers import END, START, UNKNOWN
from saccade.errors import SaccadeError
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.predict.search.request import Request

MAX_LENGTH = 24
SCORES = ["dot", "general", "additive", {"kind": "additive", "hidden_dim": 3}, {"kind": "concat", "hidden_dim": 5}]
EXPERTS = [
    {"count": 3, "hidden_dim": 7}, {"count": 5, "top_k": 3, "every_n_layers": 2}, {"count": 9, "groups": 3},
]  # fmt: skip
RECURRENT = {
    "cell": ["rnn", "gru", "lstm"], "layers": [1, 2, 3], "residual": [True], "fast_forward": [True],
    "experts": [{"count": 3, "hidden_dim": 7}, {"count": 9, "groups": 3}], "input_dim": [6, 10],
    "cell_dim": [18, 70],
}  # fmt: skip

# Values of each key that are drawn in place of the default; sizes are drawn by `draw_stack`.
VALUES: dict[type[Table], dict[str, list[Any]]] = {
    schema.TransformerStack: {
        "kv_heads": [1, 2], "ff": [0], "norm": ["pre", "pre", "none"], "residual": [False],
        "score": SCORES, "cross_score": [*SCORES, "scaled-dot"], "norm_kind": ["rms"], "norm_epsilon": [1e-6, 0.1],
        "activation": ["gelu", "gelu-tanh", "silu", "sigmoid"], "gated": [True],
        "head_projection": ["full", "split"], "head_dim": [3, 8], "value_dim": [5, 6],
        "scale_attention": [False, "first"], "bias": [False],
        "attention_bias": [False], "window": [0, 1, [2, "none"]], "experts": EXPERTS,
        "share_layers": [True],
    },
    schema.ConvolutionStack: {
        "block": ["residual"], "layers": [1, 2, 3], "hidden_dim": [6, 10, [6, 10]], "kernel": [2, 4, 5, [3, 1]],
        "dilations": [[2], [1, 3]], "attention": [[False], [False, True]], "score": SCORES[1:], "unfold": [[1.5, 2.0]],
        "weight_norm": [False],
    },
    schema.RecurrentReaderStack: RECURRENT | {
        "bidirectional": [True, "first", "alternate"], "reverse": [True], "full_directions": [True], "columns": [2],
    },
    schema.RecurrentWriterStack: RECURRENT | {
        "attention": ["additive", "dot", "general", "concat", "score"], "score": SCORES,
        "local": [{"window": 2}, {"kind": "monotonic", "window": 1}], "context_gate": [True],
        "input_feeding": [False], "context": ["mean"], "initial_state": ["copied", "zero"], "maxout_dim": [3, 8],
    },
    schema.TokenReader: {
        "scale_embedding": [False], "embedding_norm": [True], "embedding_dim": [6, 10], "segments": [1, 3],
        "causal": [True], "concat_embedding": [True],
    },
    schema.TokenWriter: {
        "scale_embedding": [False], "embedding_norm": [True], "tie": ["none", "input", "output"],
        "start_token": ["pad", "end"], "output_scale": [True], "output_bias": [True],
    },
    schema.FillWriter: {
        "scale_embedding": [False], "tie": ["none", "output"], "max_length_difference": [1, 5], "copy_source": [False],
    },
    schema.FertilityWriter: {
        "scale_embedding": [False], "tie": ["none"], "max_fertility": [1, 3], "positional_attention": [False],
        "attend_self": [True],
    },
    schema.Sinusoidal: {
        "layout": ["concatenated"], "frequencies": ["tensor2tensor"], "combine": ["concat"],
    },
    schema.Learned: {"length": [MAX_LENGTH, 31], "combine": ["concat"]},
    schema.Axial: {"shape": [[3, 8], [5, 5]], "row_dim": [1, 3]},
    schema.Rotary: {"base": [100.0], "scaling": [{"factor": 2.0, "original_length": 7}]},
    schema.Shaw: {"max_distance": [2, 5]},
    schema.Bucketed: {"buckets": [4, 8], "max_distance": [9]},
    schema.Alibi: {},
    schema.NoPositions: {},
    schema.TransformerXL: {"content_bias": [True], "relative_segments": [True]},
}  # fmt: skip
# Keys that are not drawn: sizes and choices that `draw_part` makes, keys of training, and keys of other tasks.
OTHER_KEYS = {
    "kind", "stack", "positions", "layers", "dim", "heads", "dropout", "attention_dropout", "ff_dropout", "drop_path",
    "init",
    "attention", "chunks",  # of reversible stacks, see REVERSIBLE
    "second_pass",  # for classification
    "hard_attention",  # samples
    "ctc",  # acts with `ctc_weight` only
}  # fmt: skip
REVERSIBLE = [  # of language models; "lsh" attention depends on the length of the whole sequence
    {"residual": "reversible", "norm": "pre"},
    {"residual": "reversible", "norm": "pre", "attention": ["local"], "chunks": {"length": 4}},
    {"residual": "reversible", "norm": "pre", "attention": ["full", "local"], "chunks": {"length": 5, "local": 3}},
]
READER_STACKS = {"convolution": schema.ConvolutionStack, "recurrent": schema.RecurrentReaderStack}
WRITER_STACKS = {"convolution": schema.ConvolutionStack, "recurrent": schema.RecurrentWriterStack}
POSITIONS = {
    "sinusoidal": schema.Sinusoidal, "learned": schema.Learned, "axial": schema.Axial, "rotary": schema.Rotary,
    "shaw": schema.Shaw, "bucketed": schema.Bucketed, "alibi": schema.Alibi, "none": schema.NoPositions,
    "transformer-xl": schema.TransformerXL,
}  # fmt: skip


Keys = Mapping[type[Table], set[str]]


class Draw(random.Random):
    """Random numbers, and the keys that are drawn; None: all of them."""

    keys: Keys | None = None

    def list_tables(self, tables: dict[str, type[Table]]) -> list[str]:
        """Return the kinds that may be drawn."""
        return sorted(kind for kind, table in tables.items() if self.keys is None or table in self.keys)


@dataclass(frozen=True)
class Case:
    """A random model in evaluation mode, sentences for it, outputs to score, and how to decode."""

    seed: int
    recipe: Recipe
    model: Model
    sizes: tuple[int, int]  # of the vocabularies
    sources: list[list[int]]  # END last; empty for a language model
    prompts: list[list[int]]  # all of one length, START first; only for a language model
    targets: list[list[int]]  # END last
    limits: list[int]
    prefix: list[int]
    decoding: Decoding  # beam search, or mask-predict

    @property
    def is_parallel(self) -> bool:
        """Whether all tokens are predicted at once."""
        return self.recipe.writer.is_non_autoregressive

    @property
    def rows(self) -> range:
        return range(len(self.targets))

    def make_batch(self, rows: Sequence[int], targets: Sequence[Sequence[int]]) -> Batch:
        """Return a batch of these rows with other targets; a row may be repeated."""
        sources = {"source": pad([self.sources[row] for row in rows])} if self.sources else {}
        return Batch({**sources, "target": pad(targets)})

    def make_request(self, decoding: Decoding) -> Request:
        batch = Batch({"source": pad(self.sources)}) if self.sources else None
        prompts = torch.tensor(self.prompts) if self.prompts else None
        return Request(self.limits, decoding, batch, prompts=prompts, prefix=self.prefix)

    def describe(self) -> str:
        """Return the seed and the settings that were drawn: what to look at when a test fails."""
        settings = [part.model_dump(exclude_unset=True) for part in (self.recipe.reader, self.recipe.writer)]
        other = f"vocabularies {self.sizes}, limits {self.limits}, prefix {self.prefix}, {self.decoding!r}"
        return f"seed {self.seed}: {settings}, {other}"


def draw_case(seed: int, keys: Keys | None = None) -> Case:
    """Draw a recipe that saccade accepts, and all that belongs to it; `keys` are those that are drawn, by table."""
    draw = Draw(seed)
    draw.keys = keys
    task = "translate" if keys else draw.choice(["translate"] * 7 + ["language-model"] * 2 + ["fill"])
    while True:
        sizes = draw_sizes(draw)
        try:
            recipe = validate(draw_recipe(draw, task, shared=sizes[0] == sizes[1]), origin="test")
            torch.manual_seed(seed)
            model = build(recipe, source_size=sizes[0], target_size=sizes[1]).eval()
        except SaccadeError:
            continue
        shake_weights(model, sharpness=draw.choice([1.0, 3.0]))
        count, is_prompted = draw.randint(1, 5), task == "language-model"
        sources, targets = ([draw_sentence(draw, size) for _ in range(count)] for size in sizes)
        before = draw.choice([0, 1, 4, 7])
        prompts = [[START, *(draw.randrange(4, sizes[1]) for _ in range(before))] for _ in range(count)]
        limits = [draw.choice([0, 1, 5, 9, 15, MAX_LENGTH - 1 - before * is_prompted]) for _ in range(count)]
        prefix = [draw.randrange(4, sizes[1]) for _ in range(draw.choice([0, 0, 0, min(2, *limits, 2)]))]
        parallel = draw_fertility_decoding if recipe.writer.predicts_fertilities else draw_parallel_decoding
        decoding = parallel(draw) if task == "fill" else draw_decoding(draw, min(limits))
        return Case(
            seed, recipe, model, sizes, [] if is_prompted else sources, prompts if is_prompted else [], targets, limits,
            [] if task == "fill" or keys else prefix, decoding,
        )  # fmt: skip


def draw_recipe(draw: Draw, task: str, *, shared: bool) -> dict[str, Any]:
    """Draw the settings of a recipe, which may not be consistent."""
    share = draw.choice([0.02, 0.1, 0.3])  # of keys that are not at their default
    dims = draw.choice([(8, 2), (12, 3), (8, 1), (16, 4), (10, 5), (32, 2), (64, 4)])
    reader = draw_part(draw, schema.TokenReader, READER_STACKS, share, dims)
    parallel = draw.choice([schema.FillWriter, schema.FertilityWriter]) if task == "fill" else None
    table, stacks = (parallel, {}) if parallel else (schema.TokenWriter, WRITER_STACKS)
    writer = draw_part(draw, table, stacks, share, dims if draw.random() < 0.8 else draw.choice([(12, 2), (14, 7)]))
    if draw.random() < 0.7 and all("kind" not in part["stack"] for part in (reader, writer)):
        # Most systems have the same settings on both sides.
        writer["stack"] |= {key: value for key, value in reader["stack"].items() if key != "cross_score"}
    if task == "language-model":
        reader = {"kind": "none"}
        if draw.random() < 0.2:
            writer["stack"] |= draw.choice(REVERSIBLE)
    if (task == "language-model" or not shared) and writer.get("tie", "all") in ("all", "input"):
        writer["tie"] = draw.choice(["none", "output"])
    settings = {"data": {"max_length": MAX_LENGTH}, "tokenizer": {"shared": shared}, "reader": reader, "writer": writer}
    if parallel:
        writer["kind"] = parallel.model_fields["kind"].default
        settings["objectives"] = [{"kind": writer["kind"]}]
    return {"task": "language-model", **settings} if task == "language-model" else settings


def draw_sizes(draw: Draw) -> tuple[int, int]:
    """Draw the sizes of the vocabularies: from one token beside the special ones to so many that top-k is blockwise."""
    source = draw.choice([5, 7, 11, 23, 64, 131])
    return (source, source) if draw.random() < 0.7 else (source, draw.choice([5, 6, 9, 37, 2311]))


def draw_part(
    draw: Draw, table: type[Table], stacks: dict[str, type[Table]], share: float, sizes: tuple[int, int]
) -> dict[str, Any]:
    dim, heads = sizes
    kind = "transformer" if draw.random() < 0.8 else draw.choice(draw.list_tables(stacks) or ["transformer"])
    stack: dict[str, Any] = {"dim": dim}
    if kind == "transformer":
        stack |= {
            "heads": heads,
            "layers": draw.choice([1, 2, 2, 3]),
            "ff": draw.choice([11, 16, 32, 1031 if dim == 64 else 64]),
        }
        stack |= draw_keys(draw, schema.TransformerStack, share)
    else:
        stack |= {"kind": kind, "layers": 2, **draw_keys(draw, stacks[kind], max(share, 0.1))}
    positions = draw.choice(draw.list_tables(POSITIONS)) if draw.random() < 2 * share else "sinusoidal"
    where = {"kind": positions, **draw_keys(draw, POSITIONS[positions], share)}
    return {**draw_keys(draw, table, share), "stack": stack, "positions": where}


def draw_keys(draw: Draw, table: type[Table], share: float) -> dict[str, Any]:
    keys = VALUES[table].keys() if draw.keys is None else draw.keys[table]
    return {key: draw.choice(values) for key, values in VALUES[table].items() if key in keys and draw.random() < share}


def draw_sentence(draw: Draw, size: int) -> list[int]:
    """Draw token ids, END last, of any length that is allowed, with words that repeat, unknown ones, and END inside."""
    length = draw.choice([0, 1, 2, 5, 9, 15, MAX_LENGTH - 1])
    words = [draw.randrange(4, size) for _ in range(draw.randint(1, 9))]
    return [*(draw.choice([*words, *words, UNKNOWN, END]) for _ in range(length)), END]


def draw_decoding(draw: Draw, min_limit: int) -> Decoding:
    beam = draw.randint(2, 5)
    return Decoding(
        beam=beam,
        n_best=draw.randint(1, beam),
        length_penalty=draw.choice([0.0, 0.6, 1.0]),
        min_length=draw.randint(0, min(3, min_limit)),
    )


def draw_parallel_decoding(draw: Draw) -> Decoding:
    return Decoding(
        iterations=draw.choice([1, 3]), length_candidates=draw.choice([1, 2]), collapse=draw.choice([False, True])
    )


def draw_fertility_decoding(draw: Draw) -> Decoding:
    return Decoding(fertilities=draw.choice(["argmax", "average"]), npd=draw.choice([1, 3]), seed=draw.randrange(9))


@torch.no_grad()
def shake_weights(model: Model, *, sharpness: float) -> None:
    """Change weights that begin as zeros and ones, which would hide mistakes, and let outputs differ in length."""
    for parameter in model.parameters():
        parameter += 0.2 * torch.randn_like(parameter)
    model.writer.output.weight *= sharpness
    model.writer.output.weight[[START, UNKNOWN]] *= 1.5  # tokens that no output may contain often have the best logit
