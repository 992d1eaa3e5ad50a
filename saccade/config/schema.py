"""The recipe: every setting of saccade, its type and its default.

Every table is frozen and rejects unknown keys. Where several kinds of a thing exist, the key `kind` chooses one.
Readers are in readers.py, media.py and sound.py, writers in writers.py, stacks and positions in stacks.py, objectives
and training in training.py, the search in decoding.py; all of them can be had from here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, field_validator, model_validator
from pydantic import Tag as TagOf

from saccade.config.decoding import Decoding
from saccade.config.kinds import MARK
from saccade.config.media import (
    CellReader,
    ConcatJoin,
    GlimpsesJoin,
    GridReader,
    HopsJoin,
    MediaReader,
    PatchReader,
    PictureChanges,
    PictureReader,
    QuestionJoin,
    TimmReader,
)
from saccade.config.playing import Play, TemporalDifference, ValuesWriter
from saccade.config.positions import (
    Alibi,
    Axial,
    Bucketed,
    Learned,
    NoPositions,
    Positions,
    Rotary,
    Shaw,
    Sinusoidal,
    TransformerXL,
)
from saccade.config.readers import Again, JoinedReader, NoReader, Reader, TokenReader
from saccade.config.sound import FrameReader, Sound, SoundChanges
from saccade.config.stacks import (
    ConvolutionStack,
    Experts,
    ReaderStack,
    RecurrentReading,
    RecurrentWriting,
    TransformerStack,
    WriterStack,
)
from saccade.config.table import Count, Share, Table
from saccade.config.task import Task, TaskByName, get_task
from saccade.config.training import (
    Average,
    Fill,
    Label,
    Lora,
    Masked,
    NextToken,
    Objective,
    Optimizer,
    Patches,
    Permuted,
    RDrop,
    Regress,
    Reinforce,
    Reward,
    Schedule,
    Scheduled,
    Start,
    Tag,
    Train,
)
from saccade.config.writers import (
    ActionWriter,
    FillWriter,
    Head,
    LabelWriter,
    MaskedWriter,
    NumberWriter,
    PatchWriter,
    PermutedWriter,
    StatesWriter,
    TagWriter,
    TokenWriter,
    Writer,
)

__all__ = [
    "SCHEMA",
    "ActionWriter",
    "Again",
    "Alibi",
    "Average",
    "Axial",
    "Bucketed",
    "CellReader",
    "ConcatJoin",
    "ConvolutionStack",
    "Corpora",
    "Corpus",
    "Data",
    "Decoding",
    "Experts",
    "Fill",
    "FillWriter",
    "FrameReader",
    "GlimpsesJoin",
    "GridReader",
    "Head",
    "HopsJoin",
    "JoinedReader",
    "Label",
    "LabelWriter",
    "Learned",
    "Lora",
    "Masked",
    "MaskedWriter",
    "MediaReader",
    "NextToken",
    "NoPositions",
    "NoReader",
    "NumberWriter",
    "Objective",
    "Optimizer",
    "PatchReader",
    "PatchWriter",
    "Patches",
    "Permuted",
    "PermutedWriter",
    "PictureChanges",
    "PictureReader",
    "Play",
    "Positions",
    "QuestionJoin",
    "RDrop",
    "Reader",
    "ReaderStack",
    "Recipe",
    "RecurrentReading",
    "RecurrentWriting",
    "Regress",
    "Reinforce",
    "Reward",
    "Rotary",
    "Schedule",
    "Scheduled",
    "Shaw",
    "Sinusoidal",
    "Sound",
    "SoundChanges",
    "Start",
    "StatesWriter",
    "Table",
    "Tag",
    "TagWriter",
    "TemporalDifference",
    "TimmReader",
    "TokenReader",
    "TokenWriter",
    "Tokenizer",
    "Train",
    "TransformerStack",
    "TransformerXL",
    "Valid",
    "ValuesWriter",
    "Writer",
    "WriterStack",
]

SCHEMA = 1  # raised when a recipe of an older version can no longer be read as it is


# ---- data


class Corpus(Table):
    """Two line-aligned files, one file with columns, a Hub data set, `embedded:NAME`; or text, in files or folders.

    Of pictures and sound: a folder or a .tar of them, alone with what is said of them or with a second file of that.
    """

    files: Annotated[tuple[str, ...], Field(min_length=1, max_length=2)]
    columns: Annotated[tuple[str, ...], Field(min_length=1, max_length=3)] | None = None  # source, target; text, label
    split: str = "train"  # of a Hub data set
    weight: Annotated[float, Field(gt=0)] = 1.0  # passes over this corpus in one epoch
    examples: Count | None = None  # how many examples to take (or to make, for embedded data)


def _corpora_or_share(value: Any) -> str:
    return MARK + ("corpora" if isinstance(value, tuple) else "share")


Corpora = tuple[Corpus, ...]
Valid = Annotated[
    Annotated[Corpora, TagOf(MARK + "corpora")] | Annotated[Share, TagOf(MARK + "share")],
    Discriminator(_corpora_or_share),
]


class Data(Table):
    train: Corpora = ()
    valid: Valid = ()  # a number: this share of the training pairs is held out
    max_length: Count = 256  # tokens, <end> included: longer pairs are dropped and counted, longer documents are cut
    documents: Literal["lines", "blank", "file"] = "lines"  # of a text file: each line, between empty lines, all of it
    cut: bool = False  # texts with labels that are too long are cut at their end, of a pair the longer; else dropped
    cross: bool = False  # rows of max_length tokens go on from one document to the next, and attention with them
    stream: bool = False  # documents are tokenised as they come, and nothing of them is kept on the disk
    buffer: Count = 10_000  # with stream: documents shuffled among each other; the tokenizer learns from the first ones
    hidden: Annotated[float, Field(gt=0, lt=1)] = 0.15  # task "restore": the share of tokens that are hidden
    span: Annotated[float, Field(ge=1)] = 3.0  # and how many of them stand together, in the mean
    play: Play = Play()  # task "interact": how a model plays that learns from what it does

    @property
    def valid_share(self) -> float:
        """The share of the training examples that is held out for validation; 0 where files are named for it."""
        return self.valid if isinstance(self.valid, float) else 0.0

    @property
    def valid_corpora(self) -> Corpora:
        """The corpora that are named for validation."""
        return () if isinstance(self.valid, float) else self.valid

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
    kind: Literal["bpe", "unigram", "wordpiece", "characters", "bytes", "words", "file", "init"] = "bpe"
    size: Annotated[int, Field(ge=4)] = 8000  # at most; characters and words stop at what the data has
    shared: bool = True  # one vocabulary for source and target
    lowercase: bool = False
    begin: bool = False  # a piece [CLS] before every text, whose state can stand for all of it
    mask: bool = False  # a piece [MASK] that stands for hidden text
    dropout: Share = 0.0  # BPE dropout (Provilkov et al. 2020), training pairs only
    variants: Count = 8  # encodings of the training pairs that BPE dropout alternates between
    sentinels: Annotated[int, Field(ge=0)] = 0  # of `size`, pieces <extra_id_0> ... that stand for hidden spans
    files: tuple[str, ...] = ()  # kind = "file": one tokenizer.json, or one each for source and target

    @property
    def from_files(self) -> bool:
        """Whether it is read from the files that the recipe names."""
        return self.kind == "file"

    @property
    def from_run(self) -> bool:
        """Whether it is that of the run to start from."""
        return self.kind == "init"

    @property
    def is_words(self) -> bool:
        """Whether each token is a word."""
        return self.kind == "words"

    @property
    def is_spelled(self) -> bool:
        """Whether each token is a character."""
        return self.kind == "characters"

    @property
    def is_learned(self) -> bool:
        """Whether it is learned from the training data."""
        return not (self.from_files or self.from_run)


# ---- the whole


class Recipe(Table):
    schema_version: int = SCHEMA
    name: str = ""
    about: str = ""  # the system, its paper, the lecture rows
    task: Annotated[Task, TaskByName()] = Field(default_factory=lambda: get_task("translate"))
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
    def _task_fits_its_parts(self) -> Recipe:
        if conflict := self.task.find_conflict(self):
            raise ValueError(conflict)
        return self

    @model_validator(mode="after")
    def _tied_vocabularies_are_one(self) -> Recipe:
        if (tie := self.writer.shared_tie) and not self.tokenizer.shared:
            raise ValueError(
                f'writer.tie = "{tie}" needs one vocabulary for source and target; '
                'set tokenizer.shared = true or writer.tie = "output"'
            )
        return self

    @model_validator(mode="after")
    def _writer_learns_what_it_does(self) -> Recipe:
        """A writer that fills is not trained by the next token, nor the other way round."""
        known = self.writer.learns_by
        for objective in () if self.writer.is_custom else self.objectives:
            if not objective.is_custom and objective.kind not in known:
                fitting = " or ".join(f'"{kind}"' for kind in known[:2])
                raise ValueError(
                    f'a writer of kind "{self.writer.kind}" cannot learn by the objective "{objective.kind}"; '
                    f"take {fitting}, or change writer.kind"
                )
        return self

    def find_part_conflict(self) -> str:
        """What reader, writer, objectives and decoding find in the recipe that does not go with them."""
        conflicts = (part.find_conflict(self) for part in (self.reader, self.writer, *self.objectives, self.predict))
        return next(filter(None, conflicts), "")
