"""Check on the successors of the Transformer: each is a recipe with its own objective and one new idea."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from saccade.data.batching.segments import SegmentPairs
from saccade.data.batching.spans import CorruptedSpans
from saccade.layers.attention.lsh import LshAttention
from saccade.layers.attention.two_stream import build_permutation_mask, run_two_streams
from saccade.layers.blocks.reversible import ReversibleBlock
from saccade.lectures.claims import CheckResult, Comparison, build_result, check
from saccade.lectures.scale.family_checks import check_encoder, check_gpt2, check_gpt3, check_t5
from saccade.lectures.scale.family_data import check_full_rows, check_masking, check_pairs, check_spans
from saccade.lectures.scale.family_streams import check_reformer, check_xlnet
from saccade.model.build.model import build
from saccade.train.objectives.masked import mask_tokens


class System(NamedTuple):
    """A system: its recipe, what it predicts, its new idea, and the functions that compare it with its formulas."""

    name: str
    recipe: str
    objective: str
    idea: str
    checks: Sequence[Callable[[], list[Comparison]]]


SYSTEMS = (
    System("GPT-2", "gpt2", "next word", "pre-norm, learned positions", [check_gpt2]),
    System("BERT", "bert", "masked words, next sentence", "attends to both sides of a word",
           [partial(part, "BERT") for part in (check_encoder, check_masking, check_pairs)]),
    System("GPT-3", "gpt3", "next word", "dense and banded attention in turn", [check_gpt3]),
    System("XLNet", "xlnet", "words in random order", "two streams, memory of the segment before", [check_xlnet]),
    System("ALBERT", "albert", "masked words, sentence order", "layers share weights, narrow word vectors",
           [partial(part, "ALBERT") for part in (check_encoder, check_masking, check_pairs)]),
    System("RoBERTa", "roberta", "masked words", "other masks each time, full rows",
           [partial(check_encoder, "RoBERTa"), partial(check_masking, "RoBERTa"), check_full_rows]),
    System("Reformer", "reformer", "next word", "LSH attention, reversible layers", [check_reformer]),
    System("T5", "t5", "masked spans", "text to text, bucketed distances", [check_t5, check_spans]),
)  # fmt: skip


@check(
    103,
    "S0:12, S4:242",
    "GPT-2, BERT, GPT-3, XLNet, ALBERT, RoBERTa, Reformer and T5 are recipes over the same Transformer blocks.",
    formula=r"\mathrm{recipe} \to \mathrm{blocks}",
    code=(
        build,
        mask_tokens,
        SegmentPairs,
        build_permutation_mask,
        run_two_streams,
        LshAttention,
        ReversibleBlock,
        CorruptedSpans,
    ),
    recipes=(
        "albert",
        "bert",
        "gpt2",
        "gpt2-large",
        "gpt2-medium",
        "gpt2-xl",
        "gpt3",
        "megatron",
        "reformer",
        "roberta",
        "t5",
        "t5-1.0",
        "t5-base",
        "xlnet",
    ),
    breaks=(
        "uniform-attention",
        "unmasked-attention",
        "embedding-without-positions",
        "sublayers-without-norm",
        "windows-ignored",
        "segments-ignored",
        "masked-words-stay",
        "all-masked-words-become-masks",
        "masks-never-change",
        "sentence-pairs-by-the-mean",
        "second-sentence-never-replaced",
        "sentences-never-swapped",
        "layers-not-shared",
        "permutation-by-position",
        "queries-see-their-own-word",
        "no-memory-of-the-segment-before",
        "random-hash-buckets",
        "hashed-keys-keep-their-length",
        "reversible-layers-not-reversed",
        "one-bucket-for-all-distances",
        "one-sentinel-for-all-spans",
        "targets-with-other-spans",
    ),
)
def families() -> CheckResult:
    compared = [comparison for system in SYSTEMS for part in system.checks for comparison in part()]
    rows = [("system", "recipe", "objective", "new idea")]
    rows += [(system.name, system.recipe, system.objective, system.idea) for system in SYSTEMS]
    return build_result(*compared, table=rows)
