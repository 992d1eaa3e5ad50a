"""The recipe: every setting of saccade with its type, default and description.

Every table is frozen and rejects unknown keys. Where a table comes in several kinds, its key `kind` chooses one.
Readers are in readers.py, media.py and sound.py, writers in writers.py, stacks in stacks.py, positions in positions.py,
objectives and training in training.py, decoding in decoding.py; all of them can be imported from here. The docstring
below a field is the description of the key, see descriptions.py.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Discriminator,
    Field,
    PrivateAttr,
    SerializeAsAny,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)
from pydantic import Tag as TagOf

from saccade.config.decoding import Decoding
from saccade.config.filter import Filter
from saccade.config.kinds import TAG_PREFIX, ByKind, OwnKind, format_unknown_kind, get_user_kinds, is_table_class
from saccade.config.media import (
    CellReader,
    ConcatJoin,
    GlimpsesJoin,
    GridReader,
    HopsJoin,
    ImageAugmentation,
    MediaReader,
    PatchReader,
    PictureReader,
    QuestionJoin,
    TimmReader,
)
from saccade.config.metric import Metric, get_metric
from saccade.config.plugins import Kinds
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
from saccade.config.readers import JoinedReader, NoReader, Reader, SecondPass, TokenReader
from saccade.config.sound import AudioAugmentation, FrameReader, Sound
from saccade.config.stacks import (
    ConvolutionStack,
    Experts,
    ReaderStack,
    RecurrentReaderStack,
    RecurrentWriterStack,
    TransformerStack,
    WriterStack,
)
from saccade.config.table import Count, Share, ShortList, Table
from saccade.config.task import Task, TaskByName, get_task
from saccade.config.training import (
    Average,
    Fertility,
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
    Tag,
    Train,
    WeightInit,
)
from saccade.config.writers import (
    FertilityWriter,
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
    "Alibi",
    "AudioAugmentation",
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
    "Fertility",
    "FertilityWriter",
    "Fill",
    "FillWriter",
    "Filter",
    "FrameReader",
    "GlimpsesJoin",
    "GridReader",
    "Head",
    "HopsJoin",
    "ImageAugmentation",
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
    "OwnTokenizer",
    "PatchReader",
    "PatchWriter",
    "Patches",
    "Permuted",
    "PermutedWriter",
    "PictureReader",
    "Positions",
    "QuestionJoin",
    "RDrop",
    "Reader",
    "ReaderStack",
    "Recipe",
    "RecurrentReaderStack",
    "RecurrentWriterStack",
    "Regress",
    "Reinforce",
    "Reward",
    "Rotary",
    "Schedule",
    "Scheduled",
    "SecondPass",
    "Shaw",
    "Sinusoidal",
    "Sound",
    "StatesWriter",
    "Table",
    "Tag",
    "TagWriter",
    "TimmReader",
    "TokenReader",
    "TokenWriter",
    "Tokenizer",
    "Train",
    "TransformerStack",
    "TransformerXL",
    "Valid",
    "WeightInit",
    "Writer",
    "WriterStack",
]

SCHEMA = 1  # increased when recipes of older versions can no longer be read, not even by renames.py


# ---- data


class OwnFormat(OwnKind):
    """A file format of the user's own: a function from the path of a file to records, {column: value}."""

    @model_validator(mode="before")
    @classmethod
    def _is_known(cls, value: Any, info: ValidationInfo) -> Any:
        """`format = "tmx"` is short for `format = { kind = "tmx" }`."""
        value = {"kind": value} if isinstance(value, str) else value
        if isinstance(value, dict):
            kind, kinds = str(value.get("kind", "")), get_user_kinds(info)
            if kinds.find(kind) is None:
                known = [
                    name
                    for name in kinds.list_names()
                    if callable(kinds.peek(name)) and not is_table_class(kinds.peek(name))
                ]
                raise ValueError(f"unknown format '{kind}'{format_unknown_kind(kind, known, kinds)}")
        return value


class Corpus(Table):
    """A data set: two line-aligned files, one file with columns, a Hub data set, `embedded:NAME`, or text in files or
    folders.

    Images and audio are a folder or .tar archive, with labels or texts inside or in a second file.
    """

    files: Annotated[tuple[str, ...], Field(min_length=1, max_length=2)]
    """Path of the data, or of source and target as two line-aligned files; OWNER/NAME is a data set of the Hugging
    Face Hub, `embedded:NAME` is generated data."""
    columns: Annotated[Annotated[tuple[str, ...], Field(min_length=1, max_length=3)] | None, ShortList] = None
    """Names of the columns to use: source and target, text and label, or file, question and answer; "source,target" is
    short for a list. None: chosen by their usual names."""
    split: str = "train"
    """Split of a Hub data set, such as train or validation."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Passes over this corpus in one epoch, to mix corpora of different sizes. 0.5 uses half of it, 2 all of it twice.
    """
    examples: Count | None = None
    """Maximal number of examples to read, or number to generate of embedded data. None: all of them, or its default."""
    format: OwnFormat | None = None
    """A file format of your own, by its `kind`. None: by the end of the file name (.tsv, .csv, .jsonl, .parquet, text).
    """

    def dump_key(self) -> str:
        """The corpus as JSON, for keys by which runs resume; as before there was `format`, where it has none."""
        return self.model_dump_json(exclude=None if self.format else {"format"}) + self.format_version

    @property
    def format_version(self) -> str:
        """Identifies the code of a format of the user's own in keys of the cache; empty where there is none."""
        return self.format.fingerprint if self.format is not None else ""


def _get_valid_tag(value: Any) -> str:
    return TAG_PREFIX + ("corpora" if isinstance(value, tuple) else "share")


Corpora = tuple[Corpus, ...]
Valid = Annotated[
    Annotated[Corpora, TagOf(TAG_PREFIX + "corpora")] | Annotated[Share, TagOf(TAG_PREFIX + "share")],
    Discriminator(_get_valid_tag),
]


class Data(Table):
    """The data of a recipe, and how it is cut into training sequences."""

    train: Corpora = ()
    """Corpora to train on, mixed by their weights."""
    valid: Valid = ()
    """Corpora to validate on, or the share of training examples that is held out for it, such as 0.01."""
    max_length: Count = 256
    """Maximal length of a sequence in tokens, the end token included. Longer pairs are skipped and counted, longer
    documents are split. Memory grows with it."""
    on_error: Literal["stop", "skip"] = "stop"
    """What is done with a row that cannot be used: a missing field, an empty side, bytes that are not UTF-8, another
    number of columns, a picture or recording that cannot be read. "stop": training does not begin, and the message
    names file and row. "skip": such rows are counted and listed in skipped.jsonl of the run; more than half of a corpus
    is still an error."""
    filter: Filter = Filter()
    """Corpus cleaning: which examples are dropped before training. The defaults drop none."""
    documents: Literal["lines", "blank", "file"] = "lines"
    """What one document of a text file is: each line, the lines between "blank" ones, or the whole file."""
    truncate: bool = False
    """Task "classify": truncate texts that are too long, the longer one of a pair first. False: they are skipped and
    counted."""
    cross_document: bool = False
    """Fill rows of max_length tokens across document boundaries, with attention across them too (as RoBERTa and GPT-2
    do). False: a document starts a new row."""
    stream: bool = False
    """Tokenize documents while they are read, and store nothing on disk; for data that does not fit there."""
    buffer: Count = 10_000
    """Documents in the shuffle buffer of `stream`, of which the first ones also train the tokenizer."""
    corruption_rate: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Task "denoise": share of tokens in masked spans (T5, Raffel et al. 2020). 0.15 is usual."""
    mean_span_length: Annotated[float, Field(ge=1)] = 3.0
    """Task "denoise": mean length of a masked span in tokens. 3 is usual."""

    @property
    def valid_share(self) -> float:
        """Share of the training examples that is held out for validation; 0 where `valid` names files."""
        return self.valid if isinstance(self.valid, float) else 0.0

    @property
    def valid_corpora(self) -> Corpora:
        """Corpora that `valid` names."""
        return () if isinstance(self.valid, float) else self.valid

    @field_validator("train", "valid", mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        """`["a.en", "a.de"]` is short for a corpus of two files, `"a.tsv"` for one of one file; lists of them too."""
        if isinstance(value, str):
            value = (value,)
        if not isinstance(value, list | tuple):
            return value
        if value and all(isinstance(item, str) for item in value):
            value = (tuple(value),)
        return tuple({"files": tuple(item)} if isinstance(item, list | tuple) else item for item in value)


class Tokenizer(Table):
    """How text becomes tokens."""

    kind: Literal["bpe", "unigram", "wordpiece", "characters", "bytes", "words", "file", "init"] = "bpe"
    """Algorithm: subwords by "bpe" (Sennrich et al. 2016), "unigram" (Kudo 2018) or "wordpiece"; "characters", "bytes"
    or "words"; "file" reads `files`, "init" takes the tokenizer of the run in `init`. Or one of your own."""
    size: Annotated[int, Field(ge=4)] = 8000
    """Maximal vocabulary size, special tokens included. Characters and words may need less. 8,000 to 50,000 are usual
    for subwords."""
    shared: bool = True
    """One vocabulary for source and target, which tied embeddings need. False: one for each side."""
    lowercase: bool = False
    """Lowercase all text before tokenization, outputs too."""
    cls_token: bool = False
    """Prepend a [CLS] token to every text, whose state can represent the whole text (BERT)."""
    mask_token: bool = False
    """Reserve a [MASK] token, which masked language modelling needs."""
    dropout: Share = 0.0
    """BPE dropout: probability that a merge is skipped in training pairs (Provilkov et al. 2020). 0 disables it; 0.1
    regularizes small data."""
    variants: Count = 8
    """Number of different encodings of the training pairs between which BPE dropout alternates. More need more disk."""
    sentinels: Annotated[int, Field(ge=0)] = 0
    """Number of sentinel tokens <extra_id_0> ... within `size`, which mark masked spans of the task "denoise". T5 has
    100."""
    files: tuple[str, ...] = ()
    """With kind = "file": one tokenizer.json, or one each for source and target."""

    @property
    def from_files(self) -> bool:
        """Whether it is loaded from `files`."""
        return self.kind == "file"

    @property
    def from_run(self) -> bool:
        """Whether it is the tokenizer of the run that training starts from."""
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

    @property
    def code_version(self) -> str:
        """Identifies the code of a user's own tokenizer in keys of the cache; empty for a kind of saccade."""
        return ""

    def adopt_init(self, *, shared: bool) -> Tokenizer:
        """The table of the same keys that takes the tokenizer of the run in `init`."""
        values = {key: getattr(self, key) for key in Tokenizer.model_fields}
        return Tokenizer.model_validate({**values, "kind": "init", "shared": shared, "files": ()})


class OwnTokenizer(OwnKind, Tokenizer):
    """A tokenizer of the user's own: a function that learns one of the package `tokenizers` from texts."""

    model_config = ConfigDict(extra="allow")
    kind: str  # type: ignore[assignment]  # any name

    @property
    def code_version(self) -> str:
        return self.fingerprint


# ---- the whole recipe


class Recipe(Table):
    """A whole recipe: task, data, model, training and decoding."""

    schema_version: int = SCHEMA
    """Version of the format of recipes, written into the recipe of each run."""
    name: str = ""
    """Name of the recipe, from which runs are named. Empty: the name of its file."""
    about: str = ""
    """The system that the recipe describes and its paper; free text."""
    task: Annotated[Task, TaskByName()] = Field(default_factory=lambda: get_task("translate"))
    """What the model does: "translate" (any text to text), "language-model", "classify" (also regression and tagging),
    "denoise" (T5 span corruption), "encode" (encoder pretraining and embeddings), "media-to-text" (captions,
    transcripts, answers), or a task of a plugin."""
    data: SerializeAsAny[Data] = Field(default=Data(), validate_default=True)
    """Training and validation data."""
    tokenizer: Annotated[Tokenizer | OwnTokenizer, ByKind()] = Tokenizer()
    """The tokenizer: how text becomes tokens."""
    reader: Reader = TokenReader()
    """The reader (encoder), and its layers."""
    writer: Writer = TokenWriter()
    """The writer (decoder or head)."""
    objectives: Annotated[tuple[Objective, ...], Field(min_length=1)] = (NextToken(),)
    """Losses, whose weighted sum is minimized."""
    train: Train = Train()
    """How the model is trained."""
    predict: Decoding = Decoding()
    """How outputs are decoded, unless a command says otherwise."""
    init: str = ""
    """Run whose weights training starts from, as far as names and shapes agree. Empty: random initialization."""
    freeze: tuple[Literal["reader", "writer"], ...] = ()
    """Parts whose weights are not trained: "reader", "writer" or both. Empty: all parts are trained."""

    _kinds: Kinds = PrivateAttr(default_factory=Kinds)

    def model_post_init(self, context: Any) -> None:
        if context:
            self._kinds = context["kinds"]

    @property
    def kinds(self) -> Kinds:
        """The user's own kinds that the recipe was loaded with."""
        return self._kinds

    @field_validator("data", mode="wrap")
    @classmethod
    def _choose_data_table(cls, value: Any, validate: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        """A task may have a table [data] with more keys."""
        task = info.data.get("task")
        if task is None or task.data_table is None or isinstance(value, task.data_table):
            return validate(value)
        return task.data_table.model_validate(dict(value) if isinstance(value, Data) else value, context=info.context)

    @property
    def task_code(self) -> str:
        """Identifies the code of a user's own task, which makes the rows, in keys of the cache; empty for other tasks.

        That of an installed package is not a part of them: runs must be resumed after an update.
        """
        source = self._kinds.used.get(self.task.name)
        return "" if source is None or source.installed else f"{source.hash_code(type(self.task))} "

    @property
    def metric(self) -> Metric:
        """The metric by which the best checkpoint is chosen, `train.metric`."""
        return get_metric(self.train.metric, self._kinds)

    @field_validator("freeze", mode="before")
    @classmethod
    def _expand_part(cls, value: Any) -> Any:
        """`freeze = "reader"` is short for `freeze = ["reader"]`."""
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_task(self) -> Recipe:
        if conflict := self.task.find_conflict(self):
            raise ValueError(conflict)
        return self

    @model_validator(mode="after")
    def _check_filter(self) -> Recipe:
        if conflict := self.data.filter.find_conflict(self):
            raise ValueError(conflict)
        return self

    @model_validator(mode="after")
    def _check_tied_vocabularies(self) -> Recipe:
        if (tie := self.writer.shared_tie) and not self.tokenizer.shared:
            raise ValueError(
                f'writer.tie = "{tie}" needs one vocabulary for source and target; '
                'set tokenizer.shared = true or writer.tie = "output"'
            )
        return self

    @model_validator(mode="after")
    def _check_objectives(self) -> Recipe:
        """Every objective must be able to train the writer."""
        known = self.writer.objective_kinds
        for objective in () if self.writer.is_custom else self.objectives:
            if not objective.is_custom and objective.kind not in known:
                suitable = " or ".join(f'"{kind}"' for kind in known[:2])
                raise ValueError(
                    f'a writer of kind "{self.writer.kind}" cannot be trained by the objective "{objective.kind}"; '
                    f"use {suitable}, or change writer.kind"
                )
        return self

    def find_part_conflict(self) -> str:
        """One line about a setting that is incompatible with reader, writer, objectives or decoding; empty: none."""
        parts = (self.reader, self.writer, *self.objectives, *self.train.augment, self.predict)
        conflicts = (part.find_conflict(self) for part in parts)
        return next(filter(None, conflicts), "")
