"""Encoders: masked or permuted language modelling, masked image modelling, or embeddings without training."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from saccade.config.task import Pairs, Task
from saccade.tasks import DocumentTask, mask_word

if TYPE_CHECKING:
    from saccade.config.schema import Corpus, Recipe
    from saccade.data.batching.batches import Rows
    from saccade.data.store.arrays import Store
    from saccade.data.tokenization.encode import EncodingSettings
    from saccade.data.tokenization.tokenizers import Tokenizers
    from saccade.predict.predictors.encoder import Encoder
    from saccade.predict.predictors.predictor import Predictor, PredictorFactory
    from saccade.score.evaluate import EvaluationOptions
    from saccade.score.result import Result


class Encode(DocumentTask):
    name = "encode"
    input_label = "Text with [MASK] where a word is missing"
    page_settings: tuple[str, ...] | None = ("n_best",)
    writes_stepwise = False
    supports_fusion = False
    reads_media = True
    writer_kinds = '"masked", "permuted" or "states"'

    def find_mismatch(self, recipe: Recipe) -> str:
        reader, writer = recipe.reader, recipe.writer
        if reader.medium and not (writer.gives_states or writer.reconstructs_patches or writer.is_custom):
            what, kinds = f"a reader of {reader.medium_plural}", '"states" or "patches"'
            return f'{what} goes with writer.kind = {kinds} here, got "{writer.kind}"; change it, or the task'
        return super().find_mismatch(recipe)

    def supports_writer(self, recipe: Recipe) -> bool:
        return recipe.writer.is_encoding

    def find_setting_conflict(self, recipe: Recipe) -> str:
        metric = recipe.train.metric
        if not recipe.tokenizer.shared:
            return 'task = "encode" has one vocabulary; set tokenizer.shared = true'
        if metric != "loss":
            return f'task = "encode" has no references for train.metric = "{metric}"; set train.metric = "loss"'
        return ""

    def get_encoding(self, recipe: Recipe) -> EncodingSettings:
        from dataclasses import replace

        from saccade.data.batching.segments import needs_sentence_pairs
        from saccade.data.tokenization.encode import EncodingSettings

        if recipe.reader.medium:
            return EncodingSettings(None, sides=("source",))
        return replace(super().get_encoding(recipe), mark_sentences=needs_sentence_pairs(recipe))

    def build_rows(self, store: Store, recipe: Recipe, tokenizers: Tokenizers) -> Rows:
        from saccade.data.batching.segments import build_segments

        return store if recipe.reader.medium else build_segments(store, recipe, tokenizers.target)

    def get_predictor(self, recipe: Recipe) -> PredictorFactory:
        if recipe.reader.medium:
            from saccade.predict.predictors.media import MediaEncoder

            return MediaEncoder
        if recipe.writer.is_permuted:
            from saccade.predict.predictors.permuted import PermutedEncoder

            return PermutedEncoder
        from saccade.predict.predictors.encoder import Encoder

        return Encoder

    def evaluate(self, predictor: Predictor, corpora: Sequence[Corpus], options: EvaluationOptions) -> Result:
        from saccade.score.pairs import iterate_documents
        from saccade.score.patches import measure_patches
        from saccade.score.perplexity import measure_perplexity, refuse_metrics

        if options.metrics is not None or options.lowercase:
            refuse_metrics()
        if predictor.medium:
            return measure_patches(predictor, corpora, synthetic_count=options.synthetic_count)
        documents = iterate_documents(predictor.recipe, corpora, synthetic_count=options.synthetic_count)
        return measure_perplexity(cast("Encoder", predictor), documents, keep_token_scores=options.keep_token_scores)

    def get_forced_target(self, target: str) -> str | None:
        return None

    def adopt_parts(self, recipe: Recipe, old: Recipe) -> dict[str, Any]:
        from saccade.train.transfer.adopt import adopt_encoder

        return adopt_encoder(recipe, old) or super().adopt_parts(recipe, old)

    def get_examples(
        self, predictor: Predictor, corpora: Sequence[Corpus], *, count: int, synthetic_count: int
    ) -> Pairs:
        if (media := predictor.recipe.reader.media) is None:
            return super().get_examples(predictor, corpora, count=count, synthetic_count=synthetic_count)
        from saccade.score.media import read_media_pairs

        return read_media_pairs(corpora, media, target_column="label", synthetic_count=synthetic_count)[:count]

    def make_example(self, text: str) -> tuple[str, str]:
        from saccade.data.tokenization.special_tokens import MASK_TOKEN

        return mask_word(text, MASK_TOKEN)

    def get_next_step(self, predictor: Predictor, folder: Path, source: str) -> str:
        if predictor.medium:
            return f"predict {folder} {shlex.quote(source)} --embed mean"
        return super().get_next_step(predictor, folder, source)


TASK: Task = Encode()
