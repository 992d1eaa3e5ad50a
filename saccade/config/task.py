"""What a task is: one object that knows everything in which translating, labelling, captioning, ... differ.

A recipe names its task; `Recipe.task` is the object of that name, a user's own of `kinds=` or that of the module
`saccade.tasks.NAME`. Other packages call its methods and never compare it with a name. Nothing here imports torch.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from pydantic import GetCoreSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from saccade.config.kinds import user_kinds

if TYPE_CHECKING:
    from saccade.config.schema import Corpus, Decoding, Recipe
    from saccade.data.batching.batches import Rows
    from saccade.data.prepare import Prepared
    from saccade.data.sources.corpus import Part
    from saccade.data.store.arrays import Store
    from saccade.data.tokenization.encode import Settings
    from saccade.data.tokenization.tokenizers import Tokenizers
    from saccade.predict.predictors.predictor import Predictor, PredictorFactory
    from saccade.score.compare import ComparisonSettings
    from saccade.score.evaluate import EvaluationOptions
    from saccade.score.result import Result, ScoredResult
    from saccade.train.session import Session

PACKAGE = "saccade.tasks"
Pairs = list[tuple[str, str]]  # an input and its reference


@runtime_checkable
class Task(Protocol):
    """The interface of a task. `saccade.tasks.BaseTask` has defaults for everything but the name."""

    name: str  # by which recipes choose it
    learns_from_documents: bool  # the training data are documents; otherwise they are pairs, or inputs with labels
    predicts_labels: bool  # outputs are classes, tags or numbers, whose names are kept in the run
    writes_stepwise: bool  # outputs are decoded token by token, so that several models can decode together
    is_language_model: bool  # a run of it can be the language model of shallow fusion, `predict.lm`
    supports_fusion: bool  # outputs can be decoded together with such a language model

    @property
    def transfer_group(self) -> str:
        """Tasks of one group can continue from each other's reader and writer."""
        ...

    def find_conflict(self, recipe: Recipe) -> str:
        """What of the recipe does not go with its task or does not go together, in one line; empty where all does."""
        ...

    # ---- data

    def prepare(
        self, recipe: Recipe, *, tokenizers: Tokenizers | None, cache: Path | None, report: Callable[[str], None]
    ) -> Prepared:
        """Everything of the recipe's data, tokenized."""
        ...

    def build_part(
        self, recipe: Recipe, corpus: Corpus, *, share: float = 0.0, heldout: bool = False, varied: bool = False
    ) -> Part:
        """A corpus, or the share of it that is (not) held out, as rows; `varied`: with the variants to train on."""
        ...

    def get_encoding(self, recipe: Recipe) -> Settings:
        """Which sides a tokenized row has, and how long it may be."""
        ...

    def build_rows(self, store: Store, recipe: Recipe, tokenizers: Tokenizers) -> Rows:
        """What batches are made of, from the tokenized rows."""
        ...

    def get_source_texts(self, recipe: Recipe, pairs: Pairs) -> list[str] | None:
        """The texts that the model tokenizes for these pairs; None where it tokenizes none."""
        ...

    def get_data_usage(self, recipe: Recipe) -> str:
        """How training data are given on the command line and in Python, for a message."""
        ...

    # ---- prediction

    def get_predictor(self, recipe: Recipe) -> PredictorFactory: ...

    # ---- scores

    def read_pairs(self, recipe: Recipe, corpora: Sequence[Corpus], *, made: int | None = None) -> Pairs:
        """Inputs and references of test data; `made` is how many are taken of embedded data that does not say it."""
        ...

    def evaluate(self, predictor: Predictor, corpora: Sequence[Corpus], options: EvaluationOptions) -> Result:
        """What `saccade evaluate` measures."""
        ...

    def evaluate_pairs(
        self, predictor: Predictor, pairs: Pairs, *, metrics: Sequence[str], decoding: Decoding | None = None
    ) -> ScoredResult:
        """What `saccade compare` measures of one run."""
        ...

    def get_comparison(self, recipe: Recipe) -> ComparisonSettings | None:
        """By what runs are compared; None where they have no outputs with references."""
        ...

    def get_references(self, recipe: Recipe, pairs: Pairs) -> list[Any]:
        """What outputs are compared with, in the order of the outputs that `evaluate_pairs` gives."""
        ...

    # ---- training

    def measure_validation(self, session: Session) -> dict[str, float | str]:
        """Loss and scores of the session's model on its validation data."""
        ...

    def get_forced_target(self, target: str) -> str | None:
        """The target that is forced while attention is recorded during training (`train.watch`); None: none."""
        ...

    def adopt_parts(self, recipe: Recipe, old: Recipe) -> dict[str, Any]:
        """Reader and writer for a recipe that continues from a run with the recipe `old`; {} to keep its own."""
        ...

    def adopts_writer(self, old: Recipe) -> bool:
        """Whether `init=RUN` of a recipe that reads pictures or sound takes over the writer too."""
        ...

    # ---- presentation

    def get_target_ratio(self, recipe: Recipe) -> float:
        """Target tokens for each source token, for `saccade plan`."""
        ...

    def get_examples(self, predictor: Predictor, corpora: Sequence[Corpus], *, count: int, made: int) -> Pairs:
        """Inputs to try a model with, and what it should say where that is known, for `saccade demo`."""
        ...

    def get_input_title(self, source: str) -> str:
        """What to show of an input in a table."""
        ...

    def get_next_step(self, predictor: Predictor, folder: Path, source: str) -> str:
        """The command that a demonstration ends with."""
        ...


def list_tasks() -> list[str]:
    """The names of the tasks that come with saccade."""
    found = importlib.util.find_spec(PACKAGE)
    assert found is not None and found.submodule_search_locations, "saccade is not installed whole"
    modules = pkgutil.iter_modules(found.submodule_search_locations)
    return sorted(module.name for module in modules if not module.name.startswith("_"))


def get_task(name: str, kinds: dict[str, Any] | None = None) -> Task:
    """The task of that name: the user's own, or the object TASK of the module `saccade.tasks.NAME`."""
    built_in, own = list_tasks(), (kinds or {}).get(name)
    if name in built_in:
        if isinstance(own, Task):
            raise ValueError(f"'{name}' is a task of saccade already; give yours another name")
        task: Task = importlib.import_module(f"{PACKAGE}.{name}").TASK
        return task
    if not isinstance(own, Task):
        known = [*built_in, *(key for key, kind in (kinds or {}).items() if isinstance(kind, Task))]
        *others, last = (f"'{task}'" for task in known)
        raise KeyError(f"{', '.join(others)} or {last}")
    if own.name != name:
        raise ValueError(f"kinds={{'{name}': ...}} is a task with the name '{own.name}'; use that name")
    return own


class TaskByName:
    """Lets pydantic read a task from its name, and write it as its name."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def resolve(value: Any, info: ValidationInfo) -> Task:
            if isinstance(value, Task):
                return value
            try:
                return get_task(str(value), dict(user_kinds(info)))
            except KeyError as error:
                raise PydanticCustomError("literal_error", "expected {expected}", {"expected": error.args[0]}) from None

        named = core_schema.plain_serializer_function_ser_schema(
            lambda task: task.name, return_schema=core_schema.str_schema()
        )
        return core_schema.with_info_plain_validator_function(resolve, serialization=named)
