"""`Predictor`: inference with a trained run: outputs, n-best lists, scores of given outputs, attention."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Unpack, overload

import numpy as np
import torch

from saccade.config.decoding import DecodingSettings
from saccade.config.schema import Decoding, Recipe
from saccade.data.media.pictures import MAX_PICTURE_PIXELS
from saccade.data.tokenization.labels import Labels
from saccade.data.tokenization.lexicon import LexiconEntry, load_lexicon
from saccade.data.tokenization.tokenizers import Tokenizers
from saccade.display import Tabular
from saccade.errors import SaccadeError
from saccade.model.model import Model
from saccade.predict.engines.ctranslate import Translator
from saccade.predict.engines.load import load_for_inference
from saccade.predict.lines import group_available
from saccade.predict.outputs import AttentionMaps, Hypothesis, Outputs
from saccade.predict.predictors.parts import (
    Decoder,
    DecodingOptions,
    LoadedModel,
    PredictorParts,
    Report,
    describe_loaded_run,
)
from saccade.predict.predictors.text import SearchDecoder, TextCodec, TextPresenter
from saccade.predict.search.ensemble import Ensemble, check_same_vocabulary
from saccade.predict.search.mask_predict import is_non_autoregressive
from saccade.predict.terms import choose_decoding
from saccade.view.viewing import View

MAX_LINES_AHEAD = 1024  # lines that stream() decodes together, at most


class Predictor(Tabular):
    """Text in, text out. Decoding settings default to those of the recipe.

    It is composed of a codec for its inputs, a decoder and a presenter (see `saccade.predict.predictors.parts`).
    """

    default_parts: ClassVar[PredictorParts] = PredictorParts(TextCodec, SearchDecoder, TextPresenter)
    continues_prompts = False  # whether outputs continue their input
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
        lexicon: Mapping[str, LexiconEntry] | None = None,
        parts: PredictorParts | None = None,
        path: Path = Path(),
    ) -> None:
        """`translator` is a CTranslate2 engine that takes over the search; `lexicon` translates unknown words.

        `path` is the folder of the run, of an ensemble that of the first one.
        """
        parts, self.path = parts or self.default_parts, path
        self.loaded = LoadedModel(model, recipe, tokenizers, members, translator, lexicon or {})
        self.codec = parts.codec(self.loaded)
        self.decoder = parts.decoder(self.loaded, self.codec)
        self.presenter = parts.presenter(self.decoder)
        self.model, self.recipe, self.tokenizers, self.lexicon = model, recipe, tokenizers, self.loaded.lexicon
        self.engines = self.loaded.engines  # counts which engines decoded
        self.medium = self.codec.medium  # kind of files that it reads, "picture" or "sound"; empty for text
        self.fields = self.codec.fields  # field names of an input with several fields
        self.shows_input_names = self.codec.shows_input_names  # whether outputs are listed with the name of their input

    @staticmethod
    def load(
        paths: str | Path | Sequence[str | Path],
        *,
        kinds: Mapping[str, Any] | None = None,
        device: str = "auto",
        engine: str = "auto",
        precision: str = "auto",
    ) -> "Predictor":
        """Load a run, or several runs with the same vocabulary as an ensemble.

        device: auto ($SACCADE_DEVICE, or CUDA, Apple MPS or the CPU; the CPU for int8), cpu, cuda, cuda:N or mps.
        engine: auto, torch or ctranslate2. precision: auto (fp32), fp32, bf16, or on a CPU int8, whose weights are
        converted once and kept in the run. On a CPU, weights are packed for inference and can no longer be read from
        the model.
        """
        names = [paths] if isinstance(paths, str | Path) else list(paths)
        if not names:
            raise SaccadeError("no run was given; expected the folder of a run, or several; `saccade runs` lists them")
        if engine == "ctranslate2" and len(names) > 1:
            raise SaccadeError(f"engine ctranslate2 takes one run, got {len(names)}; use engine torch for an ensemble")
        loaded = [
            load_for_inference(name, kinds=kinds, device=device, engine=engine, precision=precision) for name in names
        ]
        runs = [run for run, _ in loaded]
        check_same_vocabulary([run.tokenizers for run in runs], [str(run.path) for run in runs])
        if len(runs) > 1 and any(
            is_non_autoregressive(run.model.writer) or not run.recipe.task.writes_stepwise for run in runs
        ):
            raise SaccadeError(
                "an ensemble decodes step by step, but one of these runs outputs everything at once; load it alone"
            )
        model = runs[0].model if len(runs) == 1 else Ensemble([run.model for run in runs]).eval()
        recipe, tokenizers, lexicon = runs[0].recipe, runs[0].tokenizers, load_lexicon(runs[0].path)
        return recipe.task.get_predictor(recipe)(
            model,
            recipe=recipe,
            tokenizers=tokenizers,
            members=len(runs),
            translator=loaded[0][1],
            lexicon=lexicon,
            path=runs[0].path,
        )

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.path.resolve().name if self.path != Path() else self.recipe.name

    def __repr__(self) -> str:
        facts = ", ".join(f"{record['run']} {record['value']}" for record in self.to_records())
        return f"<saccade run {self.name}: {facts}>"

    def to_records(self) -> list[dict[str, Any]]:
        """Return what the run is, a row each: recipe, task, parameters, steps, score, device and folder."""
        return describe_loaded_run(self.loaded, self.path)

    @property
    def device(self) -> torch.device:
        return self.loaded.device

    @property
    def labels(self) -> Labels:
        """The labels or actions that the model chooses from."""
        assert self.tokenizers.labels is not None, "a run of this task has labels"
        return self.tokenizers.labels

    def check_writes(self) -> None:
        """Raise SaccadeError if the model outputs only hidden states; `embed` returns these."""
        self.decoder.check_writes()

    def inference(self) -> AbstractContextManager[None]:
        """Disable gradients and dropout."""
        return self.loaded.inference()

    def expand_inputs(self, lines: Iterable[str], *, report: Report | None = None) -> Iterable[str]:
        """Return the inputs that command-line arguments stand for; `report` receives a line per skipped file."""
        return self.codec.expand(lines, report=report)

    def register_file(self, data: bytes, *, name: str, max_pixels: int = MAX_PICTURE_PIXELS) -> str:
        """Decode a file given as bytes; return a name that stands for it until `release_file`."""
        return self.codec.register_file(data, name=name, max_pixels=max_pixels)

    def register_decoded(self, values: np.ndarray, *, name: str) -> str:
        """Register a file that was decoded elsewhere; return a name that stands for it until `release_file`."""
        return self.codec.register_decoded(values, name=name)

    def release_file(self, key: str) -> None:
        """Forget a registered file."""
        self.codec.release_file(key)

    def find_unreadable(self, names: Iterable[str]) -> dict[str, str]:
        """Return the files that cannot be read, with the reason."""
        return self.codec.find_unreadable(names)

    @overload
    def predict(  # type: ignore[overload-overlap]  # a text is a sequence of texts for Python, not for us
        self, texts: str, *, decoding: Decoding | None = None, **settings: Unpack[DecodingSettings]
    ) -> str | list[str]: ...

    @overload
    def predict(
        self, texts: Sequence[str], *, decoding: Decoding | None = None, **settings: Unpack[DecodingSettings]
    ) -> Outputs: ...

    def predict(
        self, texts: str | Sequence[str], *, decoding: Decoding | None = None, **settings: Unpack[DecodingSettings]
    ) -> str | list[str] | Outputs:
        """Return the best output for each text, in their order: a text for a text, a list for a list.

        Keywords are decoding settings, such as beam=5, sample=True, max_length=50 (see `saccade explain predict`);
        others are those of the run, or of `decoding`. With n_best=3, each text has a list of its 3 best outputs.
        """
        if not isinstance(texts, Iterable):
            raise SaccadeError(f"predict takes a text or a list of texts, got {type(texts).__name__}")
        inputs, many = [texts] if isinstance(texts, str) else list(texts), settings.get("n_best", 1) > 1
        found = self.candidates(inputs, decoding=decoding, scored=many, **settings)
        outputs = [[one.text for one in hypotheses] if many else hypotheses[0].text for hypotheses in found]
        return outputs[0] if isinstance(texts, str) else Outputs(outputs, inputs)

    def candidates(
        self,
        texts: Sequence[str],
        *,
        decoding: Decoding | None = None,
        align: bool = False,
        scored: bool = True,
        **settings: Unpack[DecodingSettings],
    ) -> list[list[Hypothesis]]:
        """Return the n_best outputs for each text, best first; with `align`, also attention weights over the source.

        Without `scored`, scores may be 0, which saves time. Other keywords are decoding settings, as in `predict`.
        `terms` are pairs of a source and a target phrase: where the source phrase occurs in a text, the target phrase
        occurs in its outputs.
        """
        chosen = self.choose_decoding(decoding, settings)
        inputs = [texts] if isinstance(texts, str) else texts
        return self.decoder.candidates(inputs, decoding=chosen, align=align, scored=scored)

    def choose_decoding(self, decoding: Decoding | None, settings: DecodingSettings) -> Decoding:
        """Return the decoding settings of the run, or the given ones, with single settings changed."""
        return choose_decoding(self.recipe, decoding, settings)

    def stream(
        self, lines: Iterable[str], *, decoding: Decoding | None = None, align: bool = False, scored: bool = True
    ) -> Iterator[list[Hypothesis]]:
        """Yield the outputs for each line as soon as they are decoded, in order, while later lines are being read."""
        decoding = decoding or self.recipe.predict
        options = DecodingOptions(decoding, align, scored, self.loaded.make_generator(decoding))
        # Samples depend on the grouping of lines, which depends on timing: one by one, a seed is reproducible.
        for group in group_available(lines, max_lines=1 if decoding.sample else MAX_LINES_AHEAD):
            texts = [line.rstrip("\r\n") for line in group]
            valid = self.codec.count_valid(texts, decoding)  # outputs before a refused line are not lost
            for part in (texts[:valid], texts[valid:]):
                yield from self.decoder.decode_lines(part, options)
                options = options._replace(first_line=options.first_line + len(part))

    def write(self, text: str, *, decoding: Decoding | None = None) -> Iterator[str]:
        """Yield the best output for one text in parts: token by token for language models, in one part otherwise."""
        return self.decoder.write(text, decoding)

    def describe(self, text: str, hypotheses: Sequence[Hypothesis]) -> dict[str, Any]:
        """Return the outputs for one text as a JSON object; truncated outputs are marked."""
        return self.presenter.describe(text, hypotheses)

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return the log-probability of each given output, END included.

        For a non-autoregressive model: the log-probability of the length, and of each token given a fully masked
        canvas.
        """
        return self.decoder.score(pairs)

    def attention(self, source: str, target: str | None = None) -> AttentionMaps:
        """Return the attention weights of every layer and head for `target`, or else for the model's own output."""
        return self.presenter.attention(source, target)

    def view(
        self, source: str, target: str | None = None, *, decoding: Decoding | None = None, title: str = ""
    ) -> View:
        """Return the attention with how the output was found, for display: in a notebook, or as a file with `save`.

        `title` defaults to the name of the recipe.
        """
        return self.presenter.view(source, target, decoding=decoding, title=title)


PredictorFactory = Callable[..., Predictor]  # a predictor class, or a partial of one with other parts
