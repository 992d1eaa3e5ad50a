"""The protocol of a task: one object with everything in which translation, classification, captioning, ... differ.

A recipe names its task; `Recipe.task` is the object of that name, a user's own from `kinds=` or that of the module
`saccade.tasks.NAME`. Other packages call its methods and never compare it with a name. Nothing here imports torch.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from pydantic import GetCoreSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from saccade.config.kinds import get_user_kinds
from saccade.config.plugins import Kinds
from saccade.config.renames import TASKS

if TYPE_CHECKING:
    from saccade.config.schema import Corpus, Data, Decoding, Recipe
    from saccade.data.batching.batches import Rows
    from saccade.data.prepare import PreparedData
    from saccade.data.sources.corpus import CorpusSplit
    from saccade.data.store.arrays import Store
    from saccade.data.tokenization.encode import EncodingSettings
    from saccade.data.tokenization.tokenizers import Tokenizers
    from saccade.model.model import Model
    from saccade.predict.predictors.predictor import Predictor, PredictorFactory
    from saccade.score.compare import ComparisonSettings
    from saccade.score.evaluate import EvaluationOptions
    from saccade.score.result import Result, ScoredResult
    from saccade.train.batches.prefetch import Stream
    from saccade.train.session import Session

PACKAGE = "saccade.tasks"
Pairs = list[tuple[str, str]]  # (input, reference)


@runtime_checkable
class Task(Protocol):
    """The interface of a task. `saccade.tasks.BaseTask` has defaults for everything but the name."""

    name: str  # by which recipes choose the task
    learns_from_texts: bool  # rows have texts, which `data.filter` may test
    learns_from_documents: bool  # trains on documents, not on pairs or inputs with labels
    predicts_labels: bool  # outputs are classes, tags or numbers; their names are saved in the run
    writes_stepwise: bool  # outputs are decoded token by token, so that ensembles are possible
    is_language_model: bool  # its runs can be the language model of shallow fusion, `predict.lm`
    supports_fusion: bool  # outputs can be decoded with shallow fusion
    input_label: str  # what the page of `saccade serve` calls an input
    page_settings: tuple[str, ...] | None  # decoding settings on that page; None: those of a search
    former_names: tuple[str, ...]  # old names, which recipes may still have
    data_table: type[Data] | None  # the table [data] of its recipes, if it has more keys than `Data`
    card_metrics: tuple[str, ...]  # scores of validation that the model card lists, beside the usual ones
    small_recipe: str  # a recipe for small data that trains within minutes on a CPU; empty where there is none
    batches_depend_on_model: bool  # batches are made with the current weights, so not ahead of time, nor packed

    @property
    def transfer_group(self) -> str:
        """Name of the group of tasks whose runs can initialize each other's reader and writer."""
        ...

    def find_conflict(self, recipe: Recipe) -> str:
        """One line about settings of the recipe that are incompatible with the task or each other; empty: none."""
        ...

    # ---- data

    def prepare(
        self, recipe: Recipe, *, tokenizers: Tokenizers | None, cache: Path | None, report: Callable[[str], None]
    ) -> PreparedData:
        """Load and tokenize all data of the recipe."""
        ...

    def build_split(
        self, recipe: Recipe, corpus: Corpus, *, share: float = 0.0, heldout: bool = False, augment: bool = False
    ) -> CorpusSplit:
        """A corpus as rows, or the share of it that is (not) held out; `augment`: with augmented rows."""
        ...

    def get_encoding(self, recipe: Recipe) -> EncodingSettings:
        """The sides of a tokenized row and its maximal length."""
        ...

    def build_rows(self, store: Store, recipe: Recipe, tokenizers: Tokenizers) -> Rows:
        """The rows that batches are sampled from, built from the tokenized rows."""
        ...

    def get_source_texts(self, recipe: Recipe, pairs: Pairs) -> list[str] | None:
        """The texts of these pairs that the model tokenizes as input; None where its input is no text."""
        ...

    def get_data_usage(self, recipe: Recipe) -> str:
        """How training data is given on the command line and in Python, for an error message."""
        ...

    # ---- prediction

    def get_predictor(self, recipe: Recipe) -> PredictorFactory: ...

    # ---- scores

    def read_pairs(self, recipe: Recipe, corpora: Sequence[Corpus], *, synthetic_count: int | None = None) -> Pairs:
        """Inputs and references of test data; at most `synthetic_count` of embedded data without `examples`."""
        ...

    def evaluate(self, predictor: Predictor, corpora: Sequence[Corpus], options: EvaluationOptions) -> Result:
        """Metrics of `saccade evaluate`."""
        ...

    def evaluate_pairs(
        self, predictor: Predictor, pairs: Pairs, *, metrics: Sequence[str], decoding: Decoding | None = None
    ) -> ScoredResult:
        """Metrics and outputs of one run for `saccade compare`."""
        ...

    def get_comparison(self, recipe: Recipe) -> ComparisonSettings | None:
        """Settings of `saccade compare`; None where outputs have no references."""
        ...

    def get_references(self, recipe: Recipe, pairs: Pairs) -> list[Any]:
        """References, in the order of the outputs of `evaluate_pairs`."""
        ...

    # ---- training

    def open_stream(self, recipe: Recipe, data: Any, model: Model, *, rank: int, world: int) -> Stream:
        """The stream of training batches of one of `world` processes; `data` is `train` of what `prepare` returns."""
        ...

    def measure_validation(self, session: Session) -> dict[str, float | str]:
        """Validation loss and scores of the session's model; a `BaseTask` overrides `get_scoring` instead."""
        ...

    def get_forced_target(self, target: str) -> str | None:
        """The target that is forced while attention is recorded (`train.watch`); None: the model's own output."""
        ...

    def adopt_parts(self, recipe: Recipe, old: Recipe) -> dict[str, Any]:
        """Reader and writer for a recipe that is initialized from a run with the recipe `old`; {} to keep its own."""
        ...

    def adopts_writer(self, old: Recipe) -> bool:
        """Whether `init=RUN` of a recipe for images or audio takes over the writer too."""
        ...

    # ---- presentation

    def get_target_ratio(self, recipe: Recipe) -> float:
        """Target tokens per source token, for `saccade plan`."""
        ...

    def get_examples(
        self, predictor: Predictor, corpora: Sequence[Corpus], *, count: int, synthetic_count: int
    ) -> Pairs:
        """Example inputs with references where known, for `saccade demo`."""
        ...

    def make_example(self, text: str) -> tuple[str, str]:
        """An input made from a document, and its reference."""
        ...

    def get_input_title(self, source: str) -> str:
        """Short text for an input in a table."""
        ...

    def get_next_step(self, predictor: Predictor, folder: Path, source: str) -> str:
        """The command that `saccade demo` suggests at its end."""
        ...


def list_tasks() -> list[str]:
    """Names of the tasks that come with saccade."""
    found = importlib.util.find_spec(PACKAGE)
    assert found is not None and found.submodule_search_locations, "saccade is not installed whole"
    modules = pkgutil.iter_modules(found.submodule_search_locations)
    return sorted(module.name.replace("_", "-") for module in modules if not module.name.startswith("_"))


def get_task(name: str, kinds: Kinds | None = None) -> Task:
    """The task of a name, an old one too: the user's own, or the object TASK of the module `saccade.tasks.NAME`."""
    built_in, kinds = list_tasks(), Kinds() if kinds is None else kinds
    name = find_new_name(name, kinds) or name
    if name in built_in:
        if resolve_task(kinds.get(name)) is not None:
            raise ValueError(f"'{name}' is a task of saccade already; give yours another name")
        task: Task = importlib.import_module(f"{PACKAGE}.{name.replace('-', '_')}").TASK
        return task
    own = resolve_task(kinds.find(name))
    if own is None:
        known = [*built_in, *(task.name for task in list_own_tasks(kinds))]
        *others, last = (f"'{task}'" for task in known)
        raise KeyError(f"{', '.join(others)} or {last}")
    if own.name != name:
        raise ValueError(f"kinds={{'{name}': ...}} is a task with the name '{own.name}'; use that name")
    return own


def find_task(name: Any, kinds: Kinds) -> Task | None:
    """The task of a name, or the task itself where it is one; None where it is not known."""
    if isinstance(name, Task):
        return name
    try:
        return get_task(str(name), kinds)
    except (KeyError, ValueError):
        return None


def find_new_name(name: Any, kinds: Kinds) -> str:
    """The new name of a task that was renamed; empty where it was not."""
    if not isinstance(name, str) or name in kinds:
        return ""
    if name in TASKS or name in list_tasks():
        return TASKS.get(name, "")
    return next((task.name for task in list_own_tasks(kinds) if name in task.former_names), "")


def list_own_tasks(kinds: Kinds) -> list[Task]:
    """Tasks that users and installed plugins bring."""
    found = (resolve_task(kinds.peek(name)) for name in kinds.list_names())
    return [task for task in found if task is not None]


def resolve_task(kind: Any) -> Task | None:
    """The task that a kind is, or an instance of it where it is the class of a task; None where it is no task."""
    if not isinstance(kind, Task):  # which a class with all attributes of a task is too
        return None
    return make_task(kind) if isinstance(kind, type) else kind


@functools.cache
def make_task(kind: type[Task]) -> Task:
    """The only instance of the class of a task."""
    return kind()


class TaskByName:
    """Makes pydantic parse a task from its name, and serialize it as its name."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def resolve(value: Any, info: ValidationInfo) -> Task:
            if isinstance(value, Task):
                if value.name not in list_tasks():
                    get_user_kinds(info).find(value.name)  # so that a run remembers the plugin
                return value
            try:
                return get_task(str(value), get_user_kinds(info))
            except KeyError as error:
                raise PydanticCustomError("literal_error", "expected {expected}", {"expected": error.args[0]}) from None

        named = core_schema.plain_serializer_function_ser_schema(
            lambda task: task.name, return_schema=core_schema.str_schema()
        )
        return core_schema.with_info_plain_validator_function(resolve, serialization=named)
