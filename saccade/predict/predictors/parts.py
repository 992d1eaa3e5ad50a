"""The parts of a predictor: an input codec, a decoder and a presenter; and the loaded model that they share.

The codec encodes what the model reads (text, files, questions about pictures, ...), the decoder computes what it
outputs (tokens, labels, actions, ...), and the presenter displays both: as JSON, and as attention maps.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from saccade.config.schema import Decoding, Recipe
from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.lexicon import LexiconEntry
from saccade.data.tokenization.tokenizers import UNKNOWN, Tokenizer, Tokenizers
from saccade.errors import MemoryExhausted, SaccadeError
from saccade.kernels.memory import find_widest, guard_memory, is_out_of_memory
from saccade.model.model import Model
from saccade.model.run import count_parameters
from saccade.predict.decode import decode
from saccade.predict.engines.ctranslate import Translator
from saccade.predict.engines.engine import DecodingResult, EngineTally
from saccade.predict.outputs import AttentionMaps, Hypothesis
from saccade.predict.search.ensemble import Ensemble
from saccade.predict.search.greedy import SearchHypothesis
from saccade.predict.search.request import Request
from saccade.runs import WEIGHTS, describe_run
from saccade.view.background import Background
from saccade.view.viewing import View
from saccade.view.words import Groups

Report = Callable[[str], None]  # receives one line about each skipped file


class DecodingOptions(NamedTuple):
    """How some lines are decoded."""

    decoding: Decoding
    align: bool = False  # also return the attention weights of each token
    scored: bool = True  # if False, scores may be 0
    generator: torch.Generator | None = None  # for sampling
    first_line: int = 1  # number of the first line, for messages


@dataclass(eq=False)
class LoadedModel:
    """A model ready for inference, with its recipe, its tokenizers and what else decoding needs."""

    model: Model | Ensemble
    recipe: Recipe
    tokenizers: Tokenizers
    members: int = 1  # number of models in the ensemble
    translator: Translator | None = None  # CTranslate2 engine that takes over the search
    lexicon: Mapping[str, LexiconEntry] = field(default_factory=dict)  # replaces unknown words
    engines: EngineTally = field(default_factory=EngineTally)  # counts which engines decoded

    @property
    def single(self) -> Model:
        """The model, which must not be an ensemble."""
        return cast(Model, self.model)

    @property
    def device(self) -> torch.device:
        """That of its weights; the CPU where all of them are packed for it, which are no parameters."""
        return next(self.model.parameters(), torch.empty(0)).device

    @cached_property
    def widest_layer(self) -> int:
        return find_widest(self.model)

    @contextmanager
    def inference(self) -> Iterator[None]:
        """Disable gradients and dropout; a model in training mode returns to it afterwards.

        A batch that does not fit into memory becomes a SaccadeError.
        """
        training = self.model.training
        if training:  # switching to eval mode visits every module, which takes noticeable time
            self.model.eval()
        try:
            with guard_memory(self.widest_layer), torch.inference_mode():
                yield
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise MemoryExhausted(
                f"out of memory with predict.batch_tokens = {self.recipe.predict.batch_tokens}; lower batch_tokens, "
                "max_length or beam, or give shorter inputs"
            ) from None
        finally:
            if training:
                self.model.train()

    def make_generator(self, decoding: Decoding) -> torch.Generator | None:
        return torch.Generator(self.device).manual_seed(decoding.seed) if decoding.sample else None

    def decode(self, request: Request) -> DecodingResult:
        """Decode one batch with the first engine that supports it, and count that engine."""
        decoded = decode(self.model, request, translator=self.translator)
        self.engines.add(decoded.decision)
        return decoded

    def encode_prefix(self, decoding: Decoding) -> list[int]:
        """Return the token ids that every output must begin with."""
        ids = self.tokenizers.target.encode(decoding.prefix)[:-1]  # without END
        if UNKNOWN in ids:
            raise SaccadeError(f"the prefix {decoding.prefix!r} has letters or words that the model does not know")
        return ids

    def encode_target(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of given outputs, END last."""
        return encode_tokens(self.tokenizers.target, texts, "output", limit=self.recipe.data.max_length)


def describe_loaded_run(loaded: LoadedModel, path: Path) -> list[dict[str, str]]:
    """Return what a loaded run is, a row each: recipe, task, parameters, steps, score, device and folder."""
    facts = {"recipe": loaded.recipe.name, "task": loaded.recipe.task.name}
    if (path / WEIGHTS).is_file():
        entry = describe_run(path)
        facts["parameters"] = f"{count_parameters(path / WEIGHTS):,}"
        facts |= {"steps": f"{entry.step:,}"} if entry.step else {}
        facts |= {"score": entry.score} if entry.score != "-" else {}
    facts |= {"models": str(loaded.members)} if loaded.members > 1 else {}
    facts |= {"device": str(loaded.device), "folder": str(path)}
    return [{"run": name, "value": value} for name, value in facts.items()]


def encode_tokens(
    tokenizer: Tokenizer, texts: Sequence[str], what: str, *, limit: int, numbers: Sequence[int] | None = None
) -> list[list[int]]:
    """Encode texts to token ids with END; refuse a text of more than `limit` tokens, named by `what` and its number."""
    rows = tokenizer.encode_all(texts)
    for number, row in zip(numbers or range(1, len(rows) + 1), rows, strict=True):
        if len(row) > limit:
            raise SaccadeError(
                f"{what} {number} has {len(row)} tokens, but the model was made for at most {limit} "
                f"(data.max_length, <end> included); split or shorten it"
            )
    return rows


class InputCodec:
    """Encodes and validates inputs of a model, and defines how they are displayed.

    Inputs are always strings: text, file names or JSON. A row is one encoded input; its length decides how inputs are
    grouped into batches.
    """

    input_noun = "texts"  # plural noun for inputs in messages
    medium = ""  # kind of files that are read: "picture" or "sound"; empty for text
    fields: tuple[str, ...] = ()  # field names of an input with several fields
    shows_input_names = False  # whether outputs are listed with the name of their input

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded, self.recipe, self.tokenizers = loaded, loaded.recipe, loaded.tokenizers

    def check_list(self, texts: Sequence[str]) -> None:
        """Refuse a single string, whose characters would be taken for inputs."""
        if isinstance(texts, str):
            raise SaccadeError(
                f"expected a list of {self.input_noun}, got the single text {texts[:20]!r}; put it in a list"
            )

    def split(self, texts: Sequence[str]) -> list[Sequence[str]]:
        """Split inputs into parts that are held in memory one at a time."""
        return [texts]

    def expand(self, lines: Iterable[str], *, report: Report | None = None) -> Iterable[str]:
        """Return the inputs that command-line arguments or lines stand for; `report` receives skipped files."""
        return lines

    def prepare(self, text: str) -> str:
        """Replace special tokens such as [MASK] by the names that the tokenizer has for them."""
        return text

    def encode(self, texts: Sequence[str], what: str, *, numbers: Sequence[int] | None = None) -> list[Any]:
        """Return one row per input; refuse an unreadable one, named by `what` and its number."""
        raise NotImplementedError

    def validate(self, texts: Sequence[str], decoding: Decoding) -> None:
        """Raise SaccadeError if one of the inputs cannot be decoded."""
        self.encode(texts, "line")

    def count_valid(self, texts: Sequence[str], decoding: Decoding) -> int:
        """Return how many inputs precede the first invalid one."""
        non_empty = [i for i, text in enumerate(texts) if text.strip()]
        if self._accepts([texts[i] for i in non_empty], decoding):
            return len(texts)
        return next((i for i in non_empty if not self._accepts([texts[i]], decoding)), len(texts))

    def _accepts(self, texts: Sequence[str], decoding: Decoding) -> bool:
        try:
            self.validate(texts, decoding)
        except SaccadeError:
            return False
        return True

    def make_fields(self, rows: Sequence[Any]) -> dict[str, Any]:
        """Return the batch fields that the reader needs."""
        raise NotImplementedError

    def collate(self, rows: Sequence[Any], targets: Sequence[list[int]] | None = None) -> Batch:
        """Build a batch on the model's device."""
        fields = self.make_fields(rows)
        if targets is not None:
            fields["target"] = pad(targets)
        return Batch(fields).to(self.loaded.device)

    def make_hypothesis(self, item: SearchHypothesis, source: str, length: int, *, align: bool) -> Hypothesis:
        """Convert a search result to a hypothesis with text; `length` is that of the source row."""
        text = self.tokenizers.target.decode(item.ids)
        return Hypothesis(item.ids, text, item.score, item.log_prob, item.alignment if align else None)

    # ---- files

    def register_file(self, data: bytes, *, name: str, max_pixels: int) -> str:
        """Decode a file given as bytes; return a name that stands for it until `release_file`."""
        raise SaccadeError(f"this model reads {self.input_noun}, so it cannot be given a file")

    def register_decoded(self, values: np.ndarray, *, name: str) -> str:
        """Register a file that was decoded elsewhere; return a name that stands for it until `release_file`."""
        raise SaccadeError(f"this model reads {self.input_noun}, so it cannot be given a file")

    def release_file(self, key: str) -> None:
        """Forget a registered file."""

    def find_unreadable(self, names: Iterable[str]) -> dict[str, str]:
        """Return the inputs that cannot be read, with the reason."""
        broken = {}
        for name in names:
            try:
                self.encode([name], "file")
            except SaccadeError as error:
                broken[name] = str(error)
        return broken

    # ---- display

    def name_input(self, source: str) -> str:
        """Return the name under which an input is displayed."""
        return source

    def label_source(self, row: Any) -> tuple[list[str], Groups]:
        """Return a label per memory position, and the positions of each word."""
        raise NotImplementedError

    def label_question(self, row: Any) -> tuple[list[str], Groups]:
        """Return the same for the tokens of a question about a file."""
        return [], []

    def crop_weights(self, address: str, weights: Tensor, *, cell: int | None = None) -> Tensor:
        """Select the attention weights (H, T, S) of a layer for display; `cell` selects one query of a picture."""
        return weights

    def find_cell(self, target: str) -> int:
        """Parse the picture position whose attention a user wants to see."""
        raise SaccadeError(f"a label is not written word by word, so there is no target, got {target!r}; leave it out")

    def make_background(self, row: Any) -> Background | None:
        """Return the picture behind attention maps, if there is one."""
        return None


class Decoder:
    """Runs the model on inputs and converts its outputs to hypotheses."""

    def __init__(self, loaded: LoadedModel, codec: InputCodec) -> None:
        self.loaded, self.codec = loaded, codec
        self.recipe, self.tokenizers = loaded.recipe, loaded.tokenizers

    def candidates(
        self, texts: Sequence[str], *, decoding: Decoding | None = None, align: bool = False, scored: bool = True
    ) -> list[list[Hypothesis]]:
        """Return the n_best outputs for each input, best first."""
        self.codec.check_list(texts)
        decoding = decoding or self.recipe.predict
        hypotheses: list[list[Hypothesis]] = []
        for part in self.codec.split(texts):
            hypotheses += self.decode_lines(
                part, DecodingOptions(decoding, align, scored, self.loaded.make_generator(decoding))
            )
        return hypotheses

    def predict(self, texts: Sequence[str], *, decoding: Decoding | None = None) -> list[str]:
        """Return the best output for each input."""
        return [outputs[0].text for outputs in self.candidates(texts, decoding=decoding, scored=False)]

    def decode_lines(self, texts: Sequence[str], options: DecodingOptions) -> list[list[Hypothesis]]:
        """Return the n_best outputs for each input; an empty line has an empty output."""
        raise NotImplementedError

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return the log-probability of each given output."""
        raise NotImplementedError

    def write(self, text: str, decoding: Decoding | None) -> Iterator[str]:
        """Yield the best output for one input in parts as they become known; by default in one part."""
        yield self.predict([text], decoding=decoding)[0]

    def check_writes(self) -> None:
        """Raise SaccadeError if the model outputs only hidden states."""


class Presenter:
    """Displays inputs and outputs: as JSON, as attention maps, as a page."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder, self.codec, self.loaded = decoder, decoder.codec, decoder.loaded

    def describe(self, text: str, hypotheses: Sequence[Hypothesis]) -> dict[str, Any]:
        """Return the outputs for one input as a JSON object."""
        raise NotImplementedError

    def attention(self, source: str, target: str | None) -> AttentionMaps:
        """Return the attention weights of every layer and head."""
        raise NotImplementedError

    def view(self, source: str, target: str | None, *, decoding: Decoding | None, title: str) -> View:
        """Return attention and all else that a page displays."""
        raise NotImplementedError


class PredictorParts(NamedTuple):
    """The three parts of a predictor, as factories; each receives those before it."""

    codec: Callable[[LoadedModel], InputCodec]
    decoder: Callable[[LoadedModel, Any], Decoder]
    presenter: Callable[[Any], Presenter]
