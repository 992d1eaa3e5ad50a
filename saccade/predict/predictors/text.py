"""Sequence-to-sequence inference: text in, tokens out, and the attention of each token."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from saccade.config.schema import Decoding
from saccade.data.batching.batch import pad
from saccade.data.tokenization.tokenizers import END
from saccade.errors import SaccadeError
from saccade.predict.attention_maps import AttentionExample, make_view, record_writer_attention
from saccade.predict.decode import compute_length_limits, count_rows_per_input
from saccade.predict.engines.engine import DecodingResult
from saccade.predict.lines import group_by_length
from saccade.predict.outputs import AttentionMaps, Hypothesis
from saccade.predict.predictors.parts import Decoder, DecodingOptions, InputCodec, Presenter, encode_tokens
from saccade.predict.search.greedy import SearchHypothesis
from saccade.predict.search.likelihood import compute_token_log_probs
from saccade.predict.search.mask_predict import is_non_autoregressive
from saccade.predict.search.request import Request
from saccade.predict.search.teacher import load_other_models
from saccade.predict.search.trace import describe_steps, restart_trace, trace_search
from saccade.predict.terms import PhraseCheck, encode_phrases, merge_hypotheses, select_terms
from saccade.predict.unknown import disable_if_complete, replace_unknown_words
from saccade.view.viewing import View
from saccade.view.words import Groups


class TextCodec(InputCodec):
    """Reads text: a row is its token ids, END last."""

    def encode(self, texts: Sequence[str], what: str, *, numbers: Sequence[int] | None = None) -> list[Any]:
        limit = self.recipe.data.max_length
        return encode_tokens(self.tokenizers.source, texts, what, limit=limit, numbers=numbers)

    def make_fields(self, rows: Sequence[Any]) -> dict[str, Any]:
        return {"source": pad(rows)}

    def make_hypothesis(self, item: SearchHypothesis, source: str, length: int, *, align: bool) -> Hypothesis:
        """Convert a search result; with an alignment, unknown words are replaced."""
        if item.alignment is None:
            return super().make_hypothesis(item, source, length, align=align)
        alignment, loaded = [row[:length] for row in item.alignment], self.loaded
        text = replace_unknown_words(
            item.ids, alignment, source=source, tokenizers=self.tokenizers, lexicon=loaded.lexicon
        )
        return Hypothesis(item.ids, text, item.score, item.log_prob, alignment if align else None)

    def label_source(self, row: Any) -> tuple[list[str], Groups]:
        return self.tokenizers.source.convert_ids_to_tokens(row), self.tokenizers.source.group_words(row)


class EncodedInput(NamedTuple):
    """An input as text and as a row, the maximum number of tokens of its output, and the phrases it must contain."""

    text: str
    row: Any
    limit: int
    required: PhraseCheck | None = None


class SearchDecoder(Decoder):
    """Greedy search, beam search, sampling, or mask-predict for a non-autoregressive writer."""

    def decode_lines(self, texts: Sequence[str], options: DecodingOptions) -> list[list[Hypothesis]]:
        """Decode in batches of similar length; outputs without a phrase that they must contain are searched again."""
        decoding = disable_if_complete(options.decoding, self.tokenizers.target)
        options, first = options._replace(decoding=decoding), options.first_line
        rows = self.codec.encode(texts, "line", numbers=range(first, first + len(texts)))
        non_empty = [i for i, text in enumerate(texts) if text.strip()]
        prefix = self.loaded.encode_prefix(decoding)
        limits = compute_length_limits(
            [len(row) for row in rows], decoding=decoding, max_length=self.recipe.data.max_length, prefix=prefix
        )
        inputs = [EncodedInput(text, row, limit) for text, row, limit in zip(texts, rows, limits, strict=True)]
        encoded = encode_phrases(self.tokenizers.target, [target for _, target in decoding.terms])
        outputs = [[Hypothesis([], "", 0.0, 0.0, [] if options.align else None)] for _ in texts]
        self._decode_inputs(inputs, non_empty, outputs, options, prefix)
        if not decoding.terms:
            return outputs
        checks = {i: PhraseCheck(select_terms(decoding.terms, texts[i]), encoded) for i in non_empty}
        unconstrained = {i: [checks[i].mark(item) for item in outputs[i]] for i in non_empty}
        incomplete = [i for i, items in unconstrained.items() if any(item.missing_terms for item in items)]
        if incomplete:
            restart_trace()
        for i in incomplete:
            inputs[i] = inputs[i]._replace(required=checks[i])
        self._decode_inputs(inputs, incomplete, outputs, options, prefix)
        for i in incomplete:
            found = merge_hypotheses([*unconstrained[i], *(checks[i].mark(item) for item in outputs[i])])
            outputs[i] = found[: decoding.n_best]
        return outputs

    def _decode_inputs(
        self,
        inputs: Sequence[EncodedInput],
        chosen: Sequence[int],
        outputs: list[list[Hypothesis]],
        options: DecodingOptions,
        prefix: Sequence[int],
    ) -> None:
        """Decode the inputs with these indices, and store what is found in `outputs`."""
        decoding, align = options.decoding, options.align
        with self.loaded.inference():
            budget = decoding.batch_tokens // count_rows_per_input(self.loaded.model, decoding)
            groups = group_by_length([len(inputs[i].row) for i in chosen], budget=budget)
            for group in ([chosen[j] for j in part] for part in groups):
                hypotheses, decision = self._search(
                    [inputs[i] for i in group], prefix, options._replace(align=align or decoding.replace_unknown)
                )
                for i, candidates in zip(group, hypotheses, strict=True):
                    check_finite(candidates, line=options.first_line + i)
                    text, row, limit, _ = inputs[i]
                    outputs_of_line = (
                        self.codec.make_hypothesis(item, text, len(row), align=align) for item in candidates
                    )
                    outputs[i] = [
                        one.with_engine(limit, decision.engine, min_length=decoding.min_length)
                        for one in outputs_of_line
                    ]

    def _search(
        self, inputs: Sequence[EncodedInput], prefix: Sequence[int], options: DecodingOptions
    ) -> DecodingResult:
        """Decode one batch."""
        decoding, align, scored, generator, _ = options
        limits, loaded = [item.limit for item in inputs], self.loaded
        fusion, teacher = load_other_models(
            decoding, loaded.model, tokenizers=self.tokenizers, device=str(loaded.device), max_length=max(limits) + 1,
            kinds=loaded.recipe.kinds,
        )  # fmt: skip
        request = Request(
            limits, decoding, self.codec.collate([item.row for item in inputs]), align=align, scored=scored,
            prefix=prefix, generator=generator,
            phrases=[item.required.token_sequences for item in inputs if item.required is not None],
            fusion=fusion, teacher=teacher,
        )  # fmt: skip
        return self.loaded.decode(request)

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        sources = self.codec.encode([source for source, _ in pairs], "source")
        targets = self.loaded.encode_target([target for _, target in pairs])
        longest = [max(len(source), len(target)) for source, target in zip(sources, targets, strict=True)]
        scores = [0.0] * len(pairs)
        with self.loaded.inference():
            for group in group_by_length(longest, budget=self.recipe.predict.batch_tokens):
                batch = self.codec.collate([sources[i] for i in group], [targets[i] for i in group])
                for i, value in zip(
                    group, compute_token_log_probs(self.loaded.model, batch).sum(1).tolist(), strict=True
                ):
                    scores[i] = value
        return scores


class TextPresenter(Presenter):
    """Outputs that are decoded token by token, and the attention of each token."""

    def describe(self, text: str, hypotheses: Sequence[Hypothesis]) -> dict[str, Any]:
        candidates = [
            {"output": item.text, "score": item.score, "log_prob": item.log_prob}
            | ({"finish": item.finish} if item.finish else {})
            | ({"missing_terms": [*item.missing_terms]} if item.missing_terms else {})
            for item in hypotheses
        ]
        return {"input": text, **candidates[0], "candidates": candidates}

    def attention(self, source: str, target: str | None) -> AttentionMaps:
        example = self._find_example(source, target, None)
        return record_writer_attention(
            self.codec, example, example.text if example.source is not None else source + example.text
        )[0]

    def view(self, source: str, target: str | None, *, decoding: Decoding | None, title: str) -> View:
        example, loaded = self._find_example(source, target, decoding), self.loaded
        maps, hidden = record_writer_attention(self.codec, example, example.text)
        steps = []
        if not is_non_autoregressive(loaded.model.writer):  # which decodes in steps
            with loaded.inference():
                log_probs = loaded.model.writer.head(hidden[0]).float().log_softmax(-1).cpu()
            steps = describe_steps(
                log_probs, example.target, loaded.tokenizers.target, example.tree, search_start=example.search_start
            )
        return make_view(self.codec, maps, source, example.source, output=example.text, title=title, steps=steps)

    def _find_example(self, source: str, target: str | None, decoding: Decoding | None) -> AttentionExample:
        """Return the source with a given target, or with the model's own output and its search tree."""
        self._check_single()
        if not source.strip():
            raise SaccadeError("attention needs a text, got an empty one")
        [row] = self.codec.encode([source], "source")
        if target is not None:
            [ids] = self.loaded.encode_target([target])
            return AttentionExample(row, ids, target)
        with trace_search() as tree:
            [[best, *_]] = self.decoder.candidates([source], decoding=decoding)
        return AttentionExample(row, [*best.ids, END], best.text, tree)

    def _check_single(self) -> None:
        if self.loaded.members > 1:
            raise SaccadeError(f"attention is shown for one run at a time, got {self.loaded.members}; give one")


def check_finite(found: Sequence[SearchHypothesis], *, line: int) -> None:
    """Refuse hypotheses without a finite log-probability, as a diverged model gives them."""
    if not found or found[0].log_prob != found[0].log_prob:
        raise SaccadeError(
            f"the model has no finite probabilities for line {line}; its weights are not usable, train again"
        )
