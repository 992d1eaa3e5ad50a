"""What tasks have in common: pairs of texts as the default, and documents without targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saccade.config.task import Pairs

if TYPE_CHECKING:
    from saccade.config.schema import Corpus, Decoding, Recipe
    from saccade.data.batching.batches import Rows
    from saccade.data.prepare import Prepared
    from saccade.data.sources.corpus import Part
    from saccade.data.store.arrays import Store
    from saccade.data.tokenization.encode import Settings
    from saccade.data.tokenization.labels import Labels
    from saccade.data.tokenization.tokenizers import Tokenizers
    from saccade.predict.predictors.predictor import Predictor, PredictorFactory
    from saccade.score.compare import ComparisonSettings
    from saccade.score.evaluate import EvaluationOptions
    from saccade.score.result import Result, ScoredResult
    from saccade.train.session import Session
    from saccade.train.validate import Scoring


class BaseTask:
    """A task with all its defaults: learn from pairs of texts to write the second one given the first."""

    name: str
    learns_from_documents = False
    predicts_labels = False
    writes_stepwise = True
    is_language_model = False
    supports_fusion = True
    reads = True  # whether there is a reader
    reads_media = False  # whether a reader of pictures or sound is allowed
    writer_kinds = '"tokens" or "fill"'  # that are allowed, for a message
    metrics: tuple[str, ...] = ("loss", "bleu", "gleu", "accuracy", "wer", "cer")  # allowed as train.metric

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
        """Why reader or writer are of a kind that this task does not have, in one line."""
        reader, writer, name = recipe.reader, recipe.writer, f'task = "{self.name}"'
        if reader.medium and not self.reads_media:
            return f'{name} reads texts, got a reader of {reader.medium}s; set task = "describe" or "label"'
        if writer.actions is not None:
            return f'{name} goes with writer.kind = another kind, got "actions"; change one of them'
        if reader.is_none == self.reads:
            wanted = "tokens" if self.reads else "none"
            return f'{name} goes with reader.kind = "{wanted}", got "{reader.kind}"; change one of them'
        if not (writer.is_custom or self.fits_writer(recipe)):
            return f'{name} goes with writer.kind = {self.writer_kinds}, got "{writer.kind}"; change one of them'
        return ""

    def fits_writer(self, recipe: Recipe) -> bool:
        return recipe.writer.tokens is not None or recipe.writer.is_filling

    def find_setting_conflict(self, recipe: Recipe) -> str:
        """Which setting does not go with this task, in one line."""
        if recipe.train.metric not in self.metrics:
            metric, known = recipe.train.metric, ", ".join(self.metrics)
            return f'train.metric = "{metric}" is of labels; for outputs it is one of {known}'
        return ""

    # ---- data

    def prepare(
        self, recipe: Recipe, *, tokenizers: Tokenizers | None, cache: Path | None, report: Callable[[str], None]
    ) -> Prepared:
        from saccade.data.prepare import prepare_rows

        return prepare_rows(recipe, tokenizers=tokenizers, cache=cache, report=report)

    def build_part(
        self, recipe: Recipe, corpus: Corpus, *, share: float = 0.0, heldout: bool = False, varied: bool = False
    ) -> Part:
        from saccade.data.sources.corpus import Part

        return Part(corpus, share, heldout, media=recipe.reader.media, varied=varied)

    def get_encoding(self, recipe: Recipe) -> Settings:
        from saccade.data.tokenization.encode import Settings

        return Settings(recipe.data.max_length, recipe.tokenizer.dropout, recipe.tokenizer.variants)

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

    def read_pairs(self, recipe: Recipe, corpora: Sequence[Corpus], *, made: int | None = None) -> Pairs:
        from saccade.score.pairs import pairs_of

        return pairs_of(corpora, made=made)

    def evaluate(self, predictor: Predictor, corpora: Sequence[Corpus], options: EvaluationOptions) -> Result:
        from saccade.score.evaluate import ALL, evaluate

        pairs = self.read_pairs(predictor.recipe, corpora, made=options.made)
        metrics = options.metrics or ALL
        return evaluate(predictor, pairs, metrics=metrics, lowercase=options.lowercase, decoding=options.decoding)

    def evaluate_pairs(
        self, predictor: Predictor, pairs: Pairs, *, metrics: Sequence[str], decoding: Decoding | None = None
    ) -> ScoredResult:
        from saccade.score.evaluate import evaluate

        return evaluate(predictor, pairs, metrics=metrics, decoding=decoding)

    def get_comparison(self, recipe: Recipe) -> ComparisonSettings | None:
        from saccade.score.compare import TEXTS

        return TEXTS

    def get_references(self, recipe: Recipe, pairs: Pairs) -> list[Any]:
        return [target for _, target in pairs]

    # ---- training

    def get_scoring(self, recipe: Recipe, labels: Labels | None) -> Scoring:
        """How outputs for validation pairs are decoded and scored; error rates where the best step is chosen by one."""
        from saccade.score.errors import ERRORS
        from saccade.score.evaluate import score_texts
        from saccade.train.validate import Scoring, greedy

        errors = recipe.train.metric in ERRORS or recipe.reader.medium == "sound"
        names = ("bleu", "gleu", "accuracy", *(ERRORS if errors else ()))
        return Scoring(names, greedy(recipe), lambda _, outputs, right: score_texts(outputs, right, metrics=names))

    def measure_validation(self, session: Session) -> dict[str, float | str]:
        from saccade.train.validate import decode_scores, measure_loss

        values: dict[str, float | str] = dict(measure_loss(session).values)
        if session.valid_pairs:
            values.update(decode_scores(session, self.get_scoring(session.recipe, session.tokenizers.labels)))
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

    def get_examples(self, predictor: Predictor, corpora: Sequence[Corpus], *, count: int, made: int) -> Pairs:
        return self.read_pairs(predictor.recipe, corpora, made=made)[:count]

    def get_input_title(self, source: str) -> str:
        return source

    def get_next_step(self, predictor: Predictor, folder: Path, source: str) -> str:
        return f"serve {folder}"


class DocumentTask(BaseTask):
    """A task that learns from documents: they are stored whole, and cut into rows later."""

    learns_from_documents = True

    def build_part(
        self, recipe: Recipe, corpus: Corpus, *, share: float = 0.0, heldout: bool = False, varied: bool = False
    ) -> Part:
        from dataclasses import replace

        part = super().build_part(recipe, corpus, share=share, heldout=heldout, varied=varied)
        return replace(part, documents=recipe.data.documents)

    def get_encoding(self, recipe: Recipe) -> Settings:
        from saccade.data.tokenization.encode import Settings

        return Settings(None, recipe.tokenizer.dropout, recipe.tokenizer.variants, sides=("target",))

    def get_comparison(self, recipe: Recipe) -> ComparisonSettings | None:
        return None

    def get_examples(self, predictor: Predictor, corpora: Sequence[Corpus], *, count: int, made: int) -> Pairs:
        from saccade.score.pairs import documents_of

        return [self.hide_part(text) for text in islice(documents_of(predictor.recipe, corpora, made=made), count)]

    def hide_part(self, text: str) -> tuple[str, str]:
        """An input made of a document, and what a model should say."""
        raise NotImplementedError


def hide_word(text: str, gap: str) -> tuple[str, str]:
    """A text with its last word but one replaced by `gap`, and that word."""
    words = text.split()
    place = max(0, len(words) - 2)
    return " ".join([*words[:place], gap, *words[place + 1 :]]), words[place]
