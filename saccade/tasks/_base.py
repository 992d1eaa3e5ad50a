"""Base classes of tasks: pairs of texts, the default, and documents without targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saccade.config.metric import ERROR_RATES, LOSS, TEXT, find_metric, list_metrics, list_names
from saccade.config.task import Pairs

if TYPE_CHECKING:
    from saccade.config.metric import Score
    from saccade.config.schema import Corpus, Data, Decoding, Recipe
    from saccade.data.batching.batches import Rows
    from saccade.data.prepare import PreparedData
    from saccade.data.sources.corpus import CorpusSplit
    from saccade.data.store.arrays import Store
    from saccade.data.tokenization.encode import EncodingSettings
    from saccade.data.tokenization.labels import Labels
    from saccade.data.tokenization.tokenizers import Tokenizers
    from saccade.model.model import Model
    from saccade.predict.predictors.predictor import Predictor, PredictorFactory
    from saccade.score.compare import ComparisonSettings
    from saccade.score.evaluate import EvaluationOptions
    from saccade.score.result import Result, ScoredResult
    from saccade.train.batches.prefetch import Stream
    from saccade.train.session import Session
    from saccade.train.validate import Scoring


class BaseTask:
    """A task with defaults for everything but the name: write the second text of a pair given the first."""

    name: str
    learns_from_texts = True
    learns_from_documents = False
    predicts_labels = False
    writes_stepwise = True
    is_language_model = False
    supports_fusion = True
    former_names: tuple[str, ...] = ()
    data_table: type[Data] | None = None
    card_metrics: tuple[str, ...] = ()
    small_recipe = ""
    batches_depend_on_model = False
    has_reader = True
    input_label = "Text"
    page_settings: tuple[str, ...] | None = None
    reads_media = False  # whether readers of images or audio are supported
    writer_kinds = '"tokens", "fill" or "fertility"'  # supported kinds, for an error message
    outputs = TEXT  # kind of outputs, which decides about the metrics

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BaseTask) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"<task {self.name}>"

    @property
    def transfer_group(self) -> str:
        return self.name

    # ---- constraints

    def find_conflict(self, recipe: Recipe) -> str:
        return self.find_mismatch(recipe) or recipe.find_part_conflict() or self.find_setting_conflict(recipe)

    def find_mismatch(self, recipe: Recipe) -> str:
        """One line about why the kind of reader or writer is not supported by the task; empty where it is."""
        reader, writer, name = recipe.reader, recipe.writer, f'task = "{self.name}"'
        if reader.medium and not self.reads_media:
            got = f"a reader of {reader.medium_plural}"
            return f'{name} reads texts, got {got}; set task = "media-to-text" or "classify"'
        if writer.only_tasks and self.name not in writer.only_tasks:
            return f'{name} goes with writer.kind = another kind, got "{writer.kind}"; change one of them'
        if reader.is_none == self.has_reader:
            wanted = "tokens" if self.has_reader else "none"
            return f'{name} goes with reader.kind = "{wanted}", got "{reader.kind}"; change one of them'
        if not (writer.is_custom or self.supports_writer(recipe)):
            return f'{name} goes with writer.kind = {self.writer_kinds}, got "{writer.kind}"; change one of them'
        return ""

    def supports_writer(self, recipe: Recipe) -> bool:
        return recipe.writer.tokens is not None or recipe.writer.is_non_autoregressive

    def find_setting_conflict(self, recipe: Recipe) -> str:
        """One line about a setting that is incompatible with the task; empty where there is none."""
        metric, kinds = recipe.train.metric, recipe.kinds
        if metric != LOSS.name and find_metric(metric, self.outputs, kinds) is None:
            known = ", ".join((LOSS.name, *list_names(self.outputs, kinds)))
            return f'train.metric = "{metric}" is not measured for task = "{self.name}"; it is one of {known}'
        return ""

    # ---- data

    def prepare(
        self, recipe: Recipe, *, tokenizers: Tokenizers | None, cache: Path | None, report: Callable[[str], None]
    ) -> PreparedData:
        from saccade.data.prepare import prepare_rows

        return prepare_rows(recipe, tokenizers=tokenizers, cache=cache, report=report)

    def build_split(
        self, recipe: Recipe, corpus: Corpus, *, share: float = 0.0, heldout: bool = False, augment: bool = False
    ) -> CorpusSplit:
        from saccade.data.sources.corpus import CorpusSplit

        return CorpusSplit(corpus, share, heldout, media_reader=recipe.reader.media, augment=augment)

    def get_encoding(self, recipe: Recipe) -> EncodingSettings:
        from saccade.data.tokenization.encode import EncodingSettings

        return EncodingSettings(recipe.data.max_length, recipe.tokenizer.dropout, recipe.tokenizer.variants)

    def build_rows(self, store: Store, recipe: Recipe, tokenizers: Tokenizers) -> Rows:
        return store

    def get_source_texts(self, recipe: Recipe, pairs: Pairs) -> list[str] | None:
        return [source for source, _ in pairs]

    def get_data_usage(self, recipe: Recipe) -> str:
        return "--data FILE (data=FILE"

    # ---- prediction

    def get_predictor(self, recipe: Recipe) -> PredictorFactory:
        from saccade.predict.predictors.predictor import Predictor

        return Predictor

    # ---- scores

    def read_pairs(self, recipe: Recipe, corpora: Sequence[Corpus], *, synthetic_count: int | None = None) -> Pairs:
        from saccade.score.pairs import read_text_pairs

        return read_text_pairs(corpora, synthetic_count=synthetic_count)

    def evaluate(self, predictor: Predictor, corpora: Sequence[Corpus], options: EvaluationOptions) -> Result:
        from saccade.score.evaluate import evaluate

        return evaluate(
            predictor,
            self.read_pairs(predictor.recipe, corpora, synthetic_count=options.synthetic_count),
            metrics=options.metrics,
            lowercase=options.lowercase,
            decoding=options.decoding,
            kinds=predictor.recipe.kinds,
        )

    def evaluate_pairs(
        self, predictor: Predictor, pairs: Pairs, *, metrics: Sequence[str], decoding: Decoding | None = None
    ) -> ScoredResult:
        from saccade.score.evaluate import evaluate

        return evaluate(predictor, pairs, metrics=metrics, decoding=decoding, kinds=predictor.recipe.kinds)

    def get_comparison(self, recipe: Recipe) -> ComparisonSettings | None:
        from saccade.score.compare import TEXT_COMPARISON

        return TEXT_COMPARISON

    def get_references(self, recipe: Recipe, pairs: Pairs) -> list[Any]:
        return [target for _, target in pairs]

    # ---- training

    def open_stream(self, recipe: Recipe, data: Any, model: Model, *, rank: int, world: int) -> Stream:
        settings = recipe.train
        stream: Stream = data.open_batches(
            batch_tokens=settings.batch_tokens, seed=settings.seed, rank=rank, world=world,
            micro_batches=settings.accumulate,
        )  # fmt: skip
        return stream

    def get_scoring(self, recipe: Recipe, labels: Labels | None) -> Scoring:
        """How validation outputs are decoded and scored: by the metrics that are always measured, and by train.metric.

        Of audio, or where train.metric is an error rate, both error rates are measured.
        """
        from saccade.score.evaluate import score_texts
        from saccade.train.validate import Scoring, get_greedy_decoding

        metric, kinds = recipe.train.metric, recipe.kinds
        errors = ERROR_RATES if metric in ERROR_RATES or recipe.reader.medium == "sound" else ()
        always = [found.name for found in list_metrics(TEXT, kinds) if found.is_validated]
        names = tuple(name for name in dict.fromkeys((*always, *errors, metric)) if name != LOSS.name)

        def score(sources: Sequence[str], outputs: Sequence[str], references: Sequence[str]) -> dict[str, Score]:
            return score_texts(outputs, references, metrics=names, sources=sources, kinds=kinds)

        return Scoring(names, get_greedy_decoding(recipe), score)

    def measure_validation(self, session: Session) -> dict[str, float | str]:
        from saccade.train.validate import compute_validation_loss, decode_and_score

        values: dict[str, float | str] = dict(compute_validation_loss(session).values)
        if session.valid_pairs:
            values.update(decode_and_score(session, self.get_scoring(session.recipe, session.tokenizers.labels)))
        return values

    def get_forced_target(self, target: str) -> str | None:
        return target

    def adopt_parts(self, recipe: Recipe, old: Recipe) -> dict[str, Any]:
        from saccade.train.transfer.adopt import adopt_same_parts

        return adopt_same_parts(recipe, old)

    def adopts_writer(self, old: Recipe) -> bool:
        return False

    # ---- presentation

    def get_target_ratio(self, recipe: Recipe) -> float:
        return 1.0

    def get_examples(
        self, predictor: Predictor, corpora: Sequence[Corpus], *, count: int, synthetic_count: int
    ) -> Pairs:
        return self.read_pairs(predictor.recipe, corpora, synthetic_count=synthetic_count)[:count]

    def make_example(self, text: str) -> tuple[str, str]:
        return text, ""

    def get_input_title(self, source: str) -> str:
        return source

    def get_next_step(self, predictor: Predictor, folder: Path, source: str) -> str:
        return f"serve {folder}"


class DocumentTask(BaseTask):
    """A task that trains on documents, which are stored whole and split into rows later."""

    learns_from_documents = True

    def build_split(
        self, recipe: Recipe, corpus: Corpus, *, share: float = 0.0, heldout: bool = False, augment: bool = False
    ) -> CorpusSplit:
        from dataclasses import replace

        split = super().build_split(recipe, corpus, share=share, heldout=heldout, augment=augment)
        return replace(split, document_unit=recipe.data.documents)

    def get_encoding(self, recipe: Recipe) -> EncodingSettings:
        from saccade.data.tokenization.encode import EncodingSettings

        return EncodingSettings(None, recipe.tokenizer.dropout, recipe.tokenizer.variants, sides=("target",))

    def get_comparison(self, recipe: Recipe) -> ComparisonSettings | None:
        return None

    def get_examples(
        self, predictor: Predictor, corpora: Sequence[Corpus], *, count: int, synthetic_count: int
    ) -> Pairs:
        from saccade.score.pairs import iterate_documents

        return [
            self.make_example(text)
            for text in islice(iterate_documents(predictor.recipe, corpora, synthetic_count=synthetic_count), count)
        ]


def mask_word(text: str, gap: str) -> tuple[str, str]:
    """Replace the last word but one of a text by `gap`; return the text and that word."""
    words = text.split()
    place = max(0, len(words) - 2)
    return " ".join([*words[:place], gap, *words[place + 1 :]]), words[place]
