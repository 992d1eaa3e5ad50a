"""A trained run put to use: predictions, n-best lists, scores of given outputs, attention."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

import torch

from saccade.config.schema import Decoding, Recipe
from saccade.data.media.pictures import MOST_PIXELS
from saccade.data.tokenization.labels import Labels
from saccade.data.tokenization.lexicon import Entry, load_lexicon
from saccade.data.tokenization.tokenizers import Tokenizers
from saccade.errors import SaccadeError
from saccade.model.model import Model
from saccade.predict.engines.ctranslate import Translator
from saccade.predict.engines.load import load_for
from saccade.predict.lines import available
from saccade.predict.outputs import AttentionMaps, Hypothesis
from saccade.predict.predictors.parts import Decoder, LoadedModel, Options, Parts, Report
from saccade.predict.predictors.text import SearchDecoder, TextCodec, TextPresenter
from saccade.predict.search.ensemble import Ensemble, check_same_vocabulary
from saccade.predict.search.fill import fills
from saccade.view.viewing import View

AHEAD = 1024  # lines that stream() takes at once, at most


class Predictor:
    """Text in, text out; decoding settings are those of the recipe where none are given.

    It is composed of a codec for its inputs, a decoder and a presenter (see `saccade.predict.predictors.parts`).
    """

    default_parts: ClassVar[Parts] = Parts(TextCodec, SearchDecoder, TextPresenter)
    goes_on = False  # whether outputs go on from what is given, and are shown behind it
    supports_embedding = False  # whether it has `embed`
    decoder: Decoder

    def __init__(
        self,
        model: Model | Ensemble,
        *,
        recipe: Recipe,
        tokenizers: Tokenizers,
        members: int = 1,
        translator: Translator | None = None,
        lexicon: Mapping[str, Entry] | None = None,
        parts: Parts | None = None,
    ) -> None:
        """`translator` is another engine, which takes over the search; `lexicon` is for unknown words."""
        parts = parts or self.default_parts
        self.loaded = LoadedModel(model, recipe, tokenizers, members, translator, lexicon or {})
        self.codec = parts.codec(self.loaded)
        self.decoder = parts.decoder(self.loaded, self.codec)
        self.presenter = parts.presenter(self.decoder)
        self.model, self.recipe, self.tokenizers, self.lexicon = model, recipe, tokenizers, self.loaded.lexicon
        self.engines = self.loaded.engines  # which engines decoded
        self.medium = self.codec.medium  # kind of the files that it reads, "picture" or "sound"; empty: it reads text
        self.fields = self.codec.fields  # names of the parts of an input that has several
        self.names_inputs = self.codec.names_inputs  # whether outputs are listed with the name of their input

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
        return self.loaded.device

    @property
    def labels(self) -> Labels:
        """The labels or actions that the model chooses from."""
        assert self.tokenizers.labels is not None, "a run of this task has labels"
        return self.tokenizers.labels

    def check_writes(self) -> None:
        """Raise SaccadeError where the model has no output but hidden states; `embed` gives these."""
        self.decoder.check_writes()

    def inference(self) -> AbstractContextManager[None]:
        """Disable gradients and dropout."""
        return self.loaded.inference()

    def inputs(self, lines: Iterable[str], *, tell: Report | None = None) -> Iterable[str]:
        """What is to be predicted, of what is given on a command line; `tell` is for files of folders."""
        return self.codec.expand(lines, report=tell)

    def hold(self, data: bytes, *, name: str, pixels: int = MOST_PIXELS) -> str:
        """Decodes a file that is not on the disk, and gives what stands for it where a file is named; see release()."""
        return self.codec.hold(data, name=name, pixels=pixels)

    def release(self, key: str) -> None:
        """Forgets what was held."""
        self.codec.release(key)

    def unreadable(self, names: Iterable[str]) -> dict[str, str]:
        """Those files that cannot be read, and why."""
        return self.codec.find_unreadable(names)

    def predict(self, texts: Sequence[str], *, decoding: Decoding | None = None) -> list[str]:
        """The best output for each text, in the order of the texts."""
        return [outputs[0].text for outputs in self.candidates(texts, decoding=decoding, scored=False)]

    def candidates(
        self, texts: Sequence[str], *, decoding: Decoding | None = None, align: bool = False, scored: bool = True
    ) -> list[list[Hypothesis]]:
        """The n_best outputs for each text, best first; with `align`, also what each token looked at.

        Whoever does not ask for scores may get 0 in their place.
        """
        return self.decoder.candidates(texts, decoding=decoding, align=align, scored=scored)

    def stream(
        self, lines: Iterable[str], *, decoding: Decoding | None = None, align: bool = False, scored: bool = True
    ) -> Iterator[list[Hypothesis]]:
        """The outputs for each line as soon as they are known, in order, while later lines are still being read."""
        decoding = decoding or self.recipe.predict
        options = Options(decoding, align, scored, self.loaded.make_generator(decoding))
        # Samples depend on how lines are grouped, and groups on the clock: one by one, a seed means something.
        for group in available(lines, most=1 if decoding.sample else AHEAD):
            texts = [line.rstrip("\r\n") for line in group]
            valid = self.codec.count_valid(texts, decoding)  # the outputs before a line that is refused are not lost
            for part in (texts[:valid], texts[valid:]):
                yield from self.decoder.decode_lines(part, options)
                options = options._replace(first=options.first + len(part))

    def write(self, text: str, *, decoding: Decoding | None = None) -> Iterator[str]:
        """The best output for one text, in pieces, as they become known; all but language models have one piece."""
        return self.decoder.write(text, decoding)

    def described(self, text: str, found: Sequence[Hypothesis]) -> dict[str, Any]:
        """The outputs of one text, for JSON; those that were cut are marked."""
        return self.presenter.describe(text, found)

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """The log-probability of each given output, END included.

        Of a model that writes all tokens at once: that of its length, and of each token when nothing is written yet.
        """
        return self.decoder.score(pairs)

    def attention(self, source: str, target: str | None = None) -> AttentionMaps:
        """The weights of every layer and head while `target`, or else what the model predicts, is written."""
        return self.presenter.attention(source, target)

    def view(
        self, source: str, target: str | None = None, *, decoding: Decoding | None = None, title: str = ""
    ) -> View:
        """The same to be shown, with how the output was found: a notebook shows a page, `save` writes a file.

        `title` is the name of the recipe where none is given.
        """
        return self.presenter.view(source, target, decoding=decoding, title=title)


PredictorFactory = Callable[..., Predictor]  # a predictor class, or one with other parts; called as the class is
