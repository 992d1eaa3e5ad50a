"""Text in, tokens out: what a sequence-to-sequence model reads, how it is decoded, and how that is shown."""

from collections.abc import Sequence
from typing import Any

from saccade.config.schema import Decoding
from saccade.data.batching.batch import pad
from saccade.data.tokenization.tokenizers import END
from saccade.errors import SaccadeError
from saccade.predict.decode import copies, length_limits
from saccade.predict.engines.engine import Decoded
from saccade.predict.lines import groups_by_length
from saccade.predict.looking import Given, make_view, record_writing
from saccade.predict.outputs import AttentionMaps, Hypothesis
from saccade.predict.predictors.parts import Decoder, InputCodec, Options, Presenter, encode_tokens
from saccade.predict.search.fill import fills
from saccade.predict.search.fused import load_fusion
from saccade.predict.search.greedy import Found
from saccade.predict.search.likelihood import token_log_probs
from saccade.predict.search.request import Request
from saccade.predict.search.trace import described, listening
from saccade.predict.unknown import replaced, replacing
from saccade.view.viewing import View
from saccade.view.words import Groups


class TextCodec(InputCodec):
    """Reads text: a row is its token ids, END last."""

    def encode(self, texts: Sequence[str], what: str, *, numbers: Sequence[int] | None = None) -> list[Any]:
        limit = self.recipe.data.max_length
        return encode_tokens(self.tokenizers.source, texts, what, limit=limit, numbers=numbers)

    def make_fields(self, rows: Sequence[Any]) -> dict[str, Any]:
        return {"source": pad(rows)}

    def make_hypothesis(self, item: Found, source: str, length: int, *, align: bool) -> Hypothesis:
        """Unknown words are replaced where there is an alignment."""
        if item.alignment is None:
            return super().make_hypothesis(item, source, length, align=align)
        looks, loaded = [row[:length] for row in item.alignment], self.loaded
        text = replaced(item.ids, looks, source=source, tokenizers=self.tokenizers, lexicon=loaded.lexicon)
        return Hypothesis(item.ids, text, item.score, item.log_prob, looks if align else None)

    def label_source(self, row: Any) -> tuple[list[str], Groups]:
        return self.tokenizers.source.labels(row), self.tokenizers.source.words(row)


class SearchDecoder(Decoder):
    """Greedy search, beam search or sampling; or all tokens at once, by a writer that does that."""

    def decode_lines(self, texts: Sequence[str], options: Options) -> list[list[Hypothesis]]:
        """Sorted by length and decoded in batches."""
        decoding, align, first = replacing(options.decoding, self.tokenizers.target), options.align, options.first
        rows = self.codec.encode(texts, "line", numbers=range(first, first + len(texts)))
        full = [i for i, text in enumerate(texts) if text.strip()]
        prefix = self.loaded.encode_prefix(decoding)
        limits = length_limits(
            [len(row) for row in rows], decoding=decoding, longest=self.recipe.data.max_length, prefix=prefix
        )
        outputs = [[Hypothesis([], "", 0.0, 0.0, [] if align else None)] for _ in texts]
        with self.loaded.inference():
            room = decoding.batch_tokens // copies(self.loaded.model, decoding)
            groups = groups_by_length([len(rows[i]) for i in full], budget=room)
            for group in ([full[j] for j in part] for part in groups):
                found, decision = self._search(
                    [rows[i] for i in group], [limits[i] for i in group], prefix,
                    options._replace(decoding=decoding, align=align or decoding.replace_unknown),
                )  # fmt: skip
                for i, candidates in zip(group, found, strict=True):
                    check_finite(candidates, line=first + i)
                    made = (
                        self.codec.make_hypothesis(item, texts[i], len(rows[i]), align=align) for item in candidates
                    )
                    outputs[i] = [one.limited(limits[i], decision.engine, least=decoding.min_length) for one in made]
        return outputs

    def _search(
        self, sources: Sequence[Any], limits: Sequence[int], prefix: Sequence[int], options: Options
    ) -> Decoded:
        """The outputs of one batch."""
        decoding, align, scored, generator, _ = options
        target, device, longest = self.tokenizers.target, str(self.loaded.device), max(limits) + 1
        request = Request(
            limits, decoding, self.codec.collate(sources), prefix=prefix, generator=generator, align=align,
            scored=scored, fusion=load_fusion(decoding, target=target, device=device, longest=longest),
        )  # fmt: skip
        return self.loaded.decode(request)

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        sources = self.codec.encode([source for source, _ in pairs], "source")
        targets = self.loaded.encode_target([target for _, target in pairs])
        longest = [max(len(source), len(target)) for source, target in zip(sources, targets, strict=True)]
        scores = [0.0] * len(pairs)
        with self.loaded.inference():
            for group in groups_by_length(longest, budget=self.recipe.predict.batch_tokens):
                batch = self.codec.collate([sources[i] for i in group], [targets[i] for i in group])
                for i, value in zip(group, token_log_probs(self.loaded.model, batch).sum(1).tolist(), strict=True):
                    scores[i] = value
        return scores


class TextPresenter(Presenter):
    """Outputs that are written token by token, and the attention of each token."""

    def describe(self, text: str, found: Sequence[Hypothesis]) -> dict[str, Any]:
        candidates = [
            {"output": item.text, "score": item.score, "log_prob": item.log_prob}
            | ({"finish": item.finish} if item.finish else {})
            for item in found
        ]
        return {"input": text, **candidates[0], "candidates": candidates}

    def attention(self, source: str, target: str | None) -> AttentionMaps:
        given = self._find(source, target, None)
        return record_writing(self.codec, given, given.text if given.source is not None else source + given.text)[0]

    def view(self, source: str, target: str | None, *, decoding: Decoding | None, title: str) -> View:
        given, loaded = self._find(source, target, decoding), self.loaded
        seen, hidden = record_writing(self.codec, given, given.text)
        steps = []
        if not fills(loaded.model.writer):  # which has no steps
            with loaded.inference():
                log_probs = loaded.model.writer.head(hidden[0]).float().log_softmax(-1).cpu()
            steps = described(log_probs, given.target, loaded.tokenizers.target, given.tree, first=given.first)
        return make_view(self.codec, seen, source, given.source, output=given.text, title=title, steps=steps)

    def _find(self, source: str, target: str | None, decoding: Decoding | None) -> Given:
        """What is read and written where attention is recorded: a given target, or the model's own output."""
        self._check_single()
        if not source.strip():
            raise SaccadeError("attention needs a text to look at, got an empty one")
        [read] = self.codec.encode([source], "source")
        if target is not None:
            [written] = self.loaded.encode_target([target])
            return Given(read, written, target)
        with listening() as tree:
            [[best, *_]] = self.decoder.candidates([source], decoding=decoding)
        return Given(read, [*best.ids, END], best.text, tree)

    def _check_single(self) -> None:
        if self.loaded.members > 1:
            raise SaccadeError(f"attention is shown for one run at a time, got {self.loaded.members}; give one")


def check_finite(found: Sequence[Found], *, line: int) -> None:
    if not found or found[0].log_prob != found[0].log_prob:
        raise SaccadeError(
            f"the model has no finite probabilities for line {line}; its weights are not usable, train again"
        )
