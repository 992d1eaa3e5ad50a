"""A trained run put to use: predictions, n-best lists, scores of given outputs, attention."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from saccade.config.schema import Decoding, Recipe
from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.labels import Labels
from saccade.data.tokenization.lexicon import Entry, load_lexicon
from saccade.data.tokenization.tokenizers import END, UNKNOWN, Tokenizers
from saccade.errors import SaccadeError
from saccade.model.model import Model
from saccade.predict.decode import copies, decode, length_limits
from saccade.predict.engines.ctranslate import Translator
from saccade.predict.engines.engine import Decoded, EngineTally
from saccade.predict.engines.load import load_for
from saccade.predict.inputs import Asked, Inputs
from saccade.predict.lines import available, groups_by_length
from saccade.predict.looking import Given, attention, view
from saccade.predict.outputs import AttentionMaps, Hypothesis
from saccade.predict.search.ensemble import Ensemble, check_same_vocabulary
from saccade.predict.search.fill import fills
from saccade.predict.search.fused import load_fusion
from saccade.predict.search.greedy import Found
from saccade.predict.search.likelihood import token_log_probs
from saccade.predict.search.request import Request
from saccade.predict.search.trace import listening
from saccade.predict.unknown import replaced, replacing
from saccade.view.viewing import View

AHEAD = 1024  # lines that stream() takes at once, at most


class Predictor(Inputs):
    """Text in, text out; decoding settings are those of the recipe where none are given."""

    goes_on = False  # whether outputs go on from what is given, and are shown behind it
    medium = ""  # kind of the files that it reads: "picture" or "sound"; empty where it reads text
    asks_questions = False  # whether a question comes with each file
    gives_labels = False  # whether it gives classes, tags or numbers: `labels`
    supports_embedding = False  # whether it has `embed`
    supports_likelihood = False  # whether it has `fit` and `token_scores`
    plays_episodes = False  # whether it has `play` and `world`
    hides = False  # whether `fit` measures each token with all others given (pseudo-likelihood)

    def __init__(
        self,
        model: Model | Ensemble,
        *,
        recipe: Recipe,
        tokenizers: Tokenizers,
        members: int = 1,
        translator: Translator | None = None,
        lexicon: Mapping[str, Entry] | None = None,
    ) -> None:
        """`translator` is another engine, which takes over the search; `lexicon` is for unknown words."""
        self.model, self.recipe, self.tokenizers, self.members = model, recipe, tokenizers, members
        self.translator, self.lexicon = translator, lexicon or {}
        self.engines = EngineTally()  # which engines decoded

    @staticmethod
    def load(
        paths: str | Path | Sequence[str | Path],
        *,
        kinds: Mapping[str, Any] | None = None,
        device: str = "auto",
        engine: str = "auto",
        precision: str = "auto",
    ) -> "Predictor":
        """Reads one run, or several runs with the same vocabulary, which then predict together.

        engine: auto, torch or ctranslate2. precision: auto (fp32), fp32, bf16, or on a CPU int8, whose weights are made
        once and kept in the run. On a CPU weights are laid out for inference and can no longer be read.
        """
        names = [paths] if isinstance(paths, str | Path) else list(paths)
        if not names:
            raise SaccadeError("no run was given; expected the folder of a run, or several; `saccade runs` lists them")
        if engine == "ctranslate2" and len(names) > 1:
            raise SaccadeError(f"engine ctranslate2 takes one run, got {len(names)}; use engine torch for an ensemble")
        loaded = [load_for(name, kinds=kinds, device=device, engine=engine, precision=precision) for name in names]
        runs = [run for run, _ in loaded]
        check_same_vocabulary([run.tokenizers for run in runs], [str(run.path) for run in runs])
        if len(runs) > 1 and any(fills(run.model.writer) or not run.recipe.task.writes_stepwise for run in runs):
            raise SaccadeError(
                "runs predict together step by step, but one of these gives all of its output at once; give it alone"
            )
        model = runs[0].model if len(runs) == 1 else Ensemble([run.model for run in runs]).eval()
        recipe, tokenizers, lexicon = runs[0].recipe, runs[0].tokenizers, load_lexicon(runs[0].path)
        return recipe.task.get_predictor(recipe)(
            model, recipe=recipe, tokenizers=tokenizers, members=len(runs), translator=loaded[0][1], lexicon=lexicon
        )

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def labels(self) -> Labels:
        """The labels or actions that the model chooses from."""
        assert self.tokenizers.labels is not None, "a run of this task has labels"
        return self.tokenizers.labels

    def check_writes(self) -> None:
        """Raise SaccadeError where the model has no output but hidden states; `embed` gives these."""

    def predict(self, texts: Sequence[str], *, decoding: Decoding | None = None) -> list[str]:
        """The best output for each text, in the order of the texts."""
        return [outputs[0].text for outputs in self.candidates(texts, decoding=decoding, scored=False)]

    def candidates(
        self, texts: Sequence[str], *, decoding: Decoding | None = None, align: bool = False, scored: bool = True
    ) -> list[list[Hypothesis]]:
        """The n_best outputs for each text, best first; with `align`, also what each token looked at.

        Whoever does not ask for scores may get 0 in their place.
        """
        if isinstance(texts, str):  # its letters would be taken for texts
            raise SaccadeError(f"expected a list of texts, got the single text {texts[:20]!r}; put it in a list")
        decoding = decoding or self.recipe.predict
        return self._decode_lines(texts, Asked(decoding, align, scored, self._generator(decoding)))

    def stream(
        self, lines: Iterable[str], *, decoding: Decoding | None = None, align: bool = False, scored: bool = True
    ) -> Iterator[list[Hypothesis]]:
        """The outputs for each line as soon as they are known, in order, while later lines are still being read."""
        decoding = decoding or self.recipe.predict
        asked = Asked(decoding, align, scored, self._generator(decoding))
        # Samples depend on how lines are grouped, and groups on the clock: one by one, a seed means something.
        for group in available(lines, most=1 if decoding.sample else AHEAD):
            texts = [line.rstrip("\r\n") for line in group]
            fitting = self._fitting(texts, decoding)  # what stands before a line that is too long is not lost
            for part in (texts[:fitting], texts[fitting:]):
                yield from self._decode_lines(part, asked)
                asked = asked._replace(first=asked.first + len(part))

    def write(self, text: str, *, decoding: Decoding | None = None) -> Iterator[str]:
        """The best output for one text, in pieces, as soon as they are known: here, all of it at the end."""
        yield self.predict([text], decoding=decoding)[0]

    def described(self, text: str, found: Sequence[Hypothesis]) -> dict[str, Any]:
        """The outputs of one text, for JSON; those that were cut are marked."""
        candidates = [
            {"output": item.text, "score": item.score, "log_prob": item.log_prob}
            | ({"finish": item.finish} if item.finish else {})
            for item in found
        ]
        return {"input": text, **candidates[0], "candidates": candidates}

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """The log-probability of each given output, END included.

        Of a model that writes all tokens at once: that of its length, and of each token when nothing is written yet.
        """
        sources = self._read([source for source, _ in pairs], "source")
        targets = self._encode(self.tokenizers.target, [target for _, target in pairs], "output")
        longest = [max(len(source), len(target)) for source, target in zip(sources, targets, strict=True)]
        scores = [0.0] * len(pairs)
        with self._inference():
            for group in groups_by_length(longest, budget=self.recipe.predict.batch_tokens):
                batch = self._batch(source=[sources[i] for i in group], target=[targets[i] for i in group])
                for i, value in zip(group, token_log_probs(self.model, batch).sum(1).tolist(), strict=True):
                    scores[i] = value
        return scores

    def attention(self, source: str, target: str | None = None) -> AttentionMaps:
        """The weights of every layer and head while `target`, or else what the model predicts, is written."""
        return attention(self, source, target)

    def view(
        self, source: str, target: str | None = None, *, decoding: Decoding | None = None, title: str = ""
    ) -> View:
        """The same to be shown, with how the output was found: a notebook shows a page, `save` writes a file.

        `title` is the name of the recipe where none is given.
        """
        return view(self, source, target, decoding=decoding, title=title)

    # ---- inside

    def _given(self, source: str, target: str | None, decoding: Decoding | None) -> Given:
        """What is read and written where attention is looked at."""
        if not source.strip():
            raise SaccadeError("attention needs a text to look at, got an empty one")
        [read] = self._read([source], "source")
        if target is not None:
            [written] = self._encode(self.tokenizers.target, [target], "output")
            return Given(read, written, target)
        with listening() as tree:
            [[best, *_]] = self.candidates([source], decoding=decoding)
        return Given(read, [*best.ids, END], best.text, tree)

    def _decode_lines(self, texts: Sequence[str], asked: Asked) -> list[list[Hypothesis]]:
        """Sorted by length and decoded in batches."""
        _, align, scored, generator, first = asked
        decoding = replacing(asked.decoding, self.tokenizers.target)
        rows = self._read(texts, "line", first=first)
        full = [i for i, text in enumerate(texts) if text.strip()]
        prefix = self._prefix(decoding)
        limits = length_limits(
            [len(row) for row in rows], decoding=decoding, longest=self.recipe.data.max_length, prefix=prefix
        )
        outputs = [[Hypothesis([], "", 0.0, 0.0, [] if align else None)] for _ in texts]  # an empty line stays empty
        with self._inference():
            room = decoding.batch_tokens // copies(self.model, decoding)
            groups = groups_by_length([len(rows[i]) for i in full], budget=room)
            for group in ([full[j] for j in part] for part in groups):
                sources, most = [rows[i] for i in group], [limits[i] for i in group]
                found, decision = self._search(
                    sources, most, decoding, prefix=prefix, generator=generator, scored=scored,
                    align=align or decoding.replace_unknown,
                )  # fmt: skip
                for i, candidates in zip(group, found, strict=True):
                    check_finite(candidates, line=first + i)
                    made = (self._hypothesis(item, texts[i], len(rows[i]), align=align) for item in candidates)
                    outputs[i] = [one.limited(limits[i], decision.engine, least=decoding.min_length) for one in made]
        return outputs

    def _search(
        self,
        sources: Sequence[list[int]],
        limits: Sequence[int],
        decoding: Decoding,
        *,
        prefix: Sequence[int],
        generator: torch.Generator | None,
        align: bool,
        scored: bool,
    ) -> Decoded:
        """The outputs of one batch."""
        target, longest = self.tokenizers.target, max(limits) + 1
        request = Request(
            limits, decoding, self._batch(source=sources), prefix=prefix, generator=generator, align=align,
            scored=scored, fusion=load_fusion(decoding, target=target, device=str(self.device), longest=longest),
        )  # fmt: skip
        decoded = decode(self.model, request, translator=self.translator)
        self.engines.add(decoded.decision)
        return decoded

    def _hypothesis(self, item: Found, source: str, length: int, *, align: bool) -> Hypothesis:
        """An output as text; it was aligned where unknown words are to be replaced, or where that is asked for."""
        looks = None if item.alignment is None else [row[:length] for row in item.alignment]
        if looks is None:
            text = self.tokenizers.target.decode(item.ids)
        else:
            text = replaced(item.ids, looks, source=source, tokenizers=self.tokenizers, lexicon=self.lexicon)
        return Hypothesis(item.ids, text, item.score, item.log_prob, looks if align else None)

    def _prefix(self, decoding: Decoding) -> list[int]:
        ids = self.tokenizers.target.encode(decoding.prefix)[:-1]  # END is not yet due
        if UNKNOWN in ids:
            raise SaccadeError(f"the prefix {decoding.prefix!r} has letters or words that the model does not know")
        return ids

    def _fitting(self, texts: Sequence[str], decoding: Decoding) -> int:
        """How many texts stand before the first one that is too long."""
        long = (len(row) > self.recipe.data.max_length for row in self.tokenizers.source.encode_all(texts))
        return next((index for index, found in enumerate(long) if found), len(texts))

    def _batch(self, *, source: Sequence[Any], target: Sequence[list[int]] | None = None) -> Batch:
        fields = {"source": pad(source)} if target is None else {"source": pad(source), "target": pad(target)}
        return Batch(fields).to(self.device)

    def _generator(self, decoding: Decoding) -> torch.Generator | None:
        return torch.Generator(self.device).manual_seed(decoding.seed) if decoding.sample else None

    @contextmanager
    def _inference(self) -> Iterator[None]:
        """No gradients, no dropout; a model that is being trained goes on as it was."""
        training = self.model.training
        if training:  # asking each of some hundred modules takes as long as some of their work
            self.model.eval()
        try:
            with torch.inference_mode():
                yield
        finally:
            if training:
                self.model.train()


def check_finite(found: Sequence[Found], *, line: int) -> None:
    if not found or found[0].log_prob != found[0].log_prob:
        raise SaccadeError(
            f"the model has no finite probabilities for line {line}; its weights are not usable, train again"
        )
