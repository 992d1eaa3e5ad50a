"""The recipe: every setting of saccade, its type and its default.

Every table is frozen and rejects unknown keys. Where several kinds of a thing exist, the key `kind` chooses one.
Stacks and positions are in stacks.py, objectives and training in training.py; all of them can be had from here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from saccade.config.kinds import MARK, ByKind, Custom
from saccade.config.stacks import (
    Alibi,
    Bucketed,
    ConvolutionStack,
    Experts,
    Learned,
    NoPositions,
    Positions,
    ReaderStack,
    RecurrentReading,
    RecurrentWriting,
    Rotary,
    Shaw,
    Sinusoidal,
    TransformerStack,
    WriterStack,
)
from saccade.config.table import Count, Share, Table
from saccade.config.training import (
    Average,
    Fill,
    NextToken,
    Objective,
    Optimizer,
    RDrop,
    Reward,
    Schedule,
    Train,
)

__all__ = [
    "SCHEMA",
    "Alibi",
    "Average",
    "Bucketed",
    "ConvolutionStack",
    "Corpora",
    "Corpus",
    "Data",
    "Decoding",
    "Experts",
    "Fill",
    "FillWriter",
    "Learned",
    "NextToken",
    "NoPositions",
    "Objective",
    "Optimizer",
    "Positions",
    "RDrop",
    "Reader",
    "ReaderStack",
    "Recipe",
    "RecurrentReading",
    "RecurrentWriting",
    "Reward",
    "Rotary",
    "Schedule",
    "Shaw",
    "Sinusoidal",
    "Table",
    "TokenReader",
    "TokenWriter",
    "Tokenizer",
    "Train",
    "TransformerStack",
    "Valid",
    "Writer",
    "WriterStack",
]

SCHEMA = 1  # raised when a recipe of an older version can no longer be read as it is


# ---- data


class Corpus(Table):
    """Two line-aligned files, one file with columns, a Hub data set, or `embedded:NAME`."""

    files: Annotated[tuple[str, ...], Field(min_length=1, max_length=2)]
    columns: tuple[str, str] | None = None  # of a file with columns: source, target
    split: str = "train"  # of a Hub data set
    weight: Annotated[float, Field(gt=0)] = 1.0  # passes over this corpus in one epoch
    examples: Count | None = None  # how many examples to take (or to make, for embedded data)


def _corpora_or_share(value: Any) -> str:
    return MARK + ("corpora" if isinstance(value, tuple) else "share")


Corpora = tuple[Corpus, ...]
Valid = Annotated[
    Annotated[Corpora, Tag(MARK + "corpora")] | Annotated[Share, Tag(MARK + "share")], Discriminator(_corpora_or_share)
]


class Data(Table):
    train: Corpora = ()
    valid: Valid = ()  # a number: this share of the training pairs is held out
    max_length: Count = 256  # tokens of either side, <end> included; longer pairs are dropped and counted

    @field_validator("train", "valid", mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        """`["a.en", "a.de"]` is one corpus of two files, `"a.tsv"` one of one file; a list of these is several."""
        if isinstance(value, str):
            value = (value,)
        if not isinstance(value, list | tuple):
            return value
        if value and all(isinstance(item, str) for item in value):
            value = (tuple(value),)
        return tuple({"files": tuple(item)} if isinstance(item, list | tuple) else item for item in value)


class Tokenizer(Table):
    kind: Literal["bpe", "unigram", "wordpiece", "characters", "bytes", "words", "file"] = "bpe"
    size: Annotated[int, Field(ge=4)] = 8000  # at most; characters and words stop at what the data has
    shared: bool = True  # one vocabulary for source and target
    lowercase: bool = False
    dropout: Share = 0.0  # BPE dropout (Provilkov et al. 2020), training pairs only
    variants: Count = 8  # encodings of the training pairs that BPE dropout alternates between
    files: tuple[str, ...] = ()  # kind = "file": one tokenizer.json, or one each for source and target


# ---- reader, writer


class TokenReader(Table):
    kind: Literal["tokens"] = "tokens"
    stack: ReaderStack = TransformerStack()
    positions: Positions = Sinusoidal()
    scale: bool = True  # token vectors times sqrt(dim)
    dropout: Share = 0.1  # of the embedding
    init: str = ""  # a run whose reader's weights to start from


class TokenWriter(Table):
    kind: Literal["tokens"] = "tokens"
    stack: WriterStack = TransformerStack()
    positions: Positions = Sinusoidal()
    scale: bool = True
    dropout: Share = 0.1
    tie: Literal["none", "output", "all"] = "all"  # output: with the writer's embedding; all: also the reader's
    init: str = ""


class FillWriter(Table):
    """Writes all tokens at once (Gu et al. 2018): how many there will be is predicted first."""

    kind: Literal["fill"] = "fill"
    stack: Annotated[TransformerStack | Custom, ByKind()] = TransformerStack()
    positions: Positions = Sinusoidal()
    scale: bool = True
    dropout: Share = 0.1
    tie: Literal["none", "output", "all"] = "all"
    reach: Count = 16  # an output has at most so many tokens more or fewer than its source
    copy_source: bool = True  # a place where nothing is written yet sees the source states around it
    init: str = ""


Reader = Annotated[TokenReader | Custom, ByKind()]
Writer = Annotated[TokenWriter | FillWriter | Custom, ByKind()]


# ---- decoding


class Decoding(Table):
    """How the writer's output is searched. beam = 1 is greedy; sample = true draws instead.

    A writer that fills its output at once has no beam and no length penalty: those two say nothing to it.
    """

    beam: Count = 4
    length_penalty: float = 0.6  # alpha of ((5 + length) / 6)^alpha (Wu et al. 2016)
    coverage: Annotated[float, Field(ge=0)] = 0.0  # beta of the same: beams pay for input that was not attended to
    n_best: Count = 1
    sample: bool = False
    temperature: Annotated[float, Field(gt=0)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Annotated[int, Field(ge=0)] = 1
    min_length: Annotated[int, Field(ge=0)] = 0
    max_length: Count | None = None  # none: 2 x source + 20, at most data.max_length
    no_repeat: Annotated[int, Field(ge=0)] = 0  # no n-gram of this size twice
    prefix: str = ""  # every output begins with this text
    replace_unknown: bool = False  # unknown words become the source word that was looked at, or its lexicon's
    iterations: Count = 1  # of a writer that fills: passes, each of which writes the least sure tokens again
    lengths: Count = 1  # of a writer that fills: lengths that are tried side by side
    collapse: bool = False  # of a writer that fills: equal neighbours become one token
    batch_tokens: Count = 4096

    @model_validator(mode="after")
    def _consistent(self) -> Decoding:
        if self.n_best > self.beam and not self.sample:
            raise ValueError(f"n_best must be at most beam, got n_best = {self.n_best} and beam = {self.beam}")
        return self


class Recipe(Table):
    schema_version: int = SCHEMA
    name: str = ""
    about: str = ""  # the system, its paper, the lecture rows
    task: Literal["translate"] = "translate"
    data: Data = Data()
    tokenizer: Tokenizer = Tokenizer()
    reader: Reader = TokenReader()
    writer: Writer = TokenWriter()
    objectives: Annotated[tuple[Objective, ...], Field(min_length=1)] = (NextToken(),)
    train: Train = Train()
    predict: Decoding = Decoding()
    init: str = ""  # a run whose weights to start from
    freeze: tuple[Literal["reader", "writer"], ...] = ()

    @field_validator("freeze", mode="before")
    @classmethod
    def _one_part(cls, value: Any) -> Any:
        """`freeze = "reader"` is short for `freeze = ["reader"]`."""
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _tied_vocabularies_are_one(self) -> Recipe:
        writer = None if isinstance(self.writer, Custom) else self.writer
        if writer is not None and writer.tie == "all" and not self.tokenizer.shared:
            raise ValueError(
                'writer.tie = "all" needs one vocabulary for source and target; '
                'set tokenizer.shared = true or writer.tie = "output"'
            )
        return self

    @model_validator(mode="after")
    def _writer_learns_what_it_does(self) -> Recipe:
        """One that fills is not trained to say the next token, nor the other way round."""
        fills = isinstance(self.writer, FillWriter)
        shipped = [] if isinstance(self.writer, Custom) else self.objectives
        for objective in shipped:
            if not isinstance(objective, Custom) and isinstance(objective, Fill) != fills:
                fitting = '"fill"' if fills else '"next-token" or "r-drop"'
                raise ValueError(
                    f'a writer of kind "{self.writer.kind}" cannot learn by the objective "{objective.kind}"; '
                    f"take {fitting}, or change writer.kind"
                )
        return self
