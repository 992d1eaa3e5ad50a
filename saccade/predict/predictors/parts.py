"""The parts of a predictor: an input codec, a decoder and a presenter; and the model that they share.

The codec knows what the model reads (text, files, questions about pictures, ...), the decoder knows what it writes
(tokens, labels, actions, ...), and the presenter shows both: as JSON, and as attention maps.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from saccade.config.schema import Decoding, Recipe
from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.lexicon import Entry
from saccade.data.tokenization.tokenizers import UNKNOWN, Tokenizer, Tokenizers
from saccade.errors import SaccadeError
from saccade.model.model import Model
from saccade.predict.decode import decode
from saccade.predict.engines.ctranslate import Translator
from saccade.predict.engines.engine import Decoded, EngineTally
from saccade.predict.outputs import AttentionMaps, Hypothesis
from saccade.predict.search.ensemble import Ensemble
from saccade.predict.search.greedy import Found
from saccade.predict.search.request import Request
from saccade.view.background import Background
from saccade.view.viewing import View
from saccade.view.words import Groups

Report = Callable[[str], None]  # takes one line about a file that is skipped


class Options(NamedTuple):
    """How the outputs for some lines are wanted."""

    decoding: Decoding
    align: bool = False  # also return the attention weights of each token
    scored: bool = True  # without it, scores may be 0
    generator: torch.Generator | None = None  # for sampling
    first: int = 1  # the number of the first line, for messages


@dataclass(eq=False)
class LoadedModel:
    """A model ready for inference, with its recipe, its tokenizers and what else its outputs depend on."""

    model: Model | Ensemble
    recipe: Recipe
    tokenizers: Tokenizers
    members: int = 1  # models of an ensemble
    translator: Translator | None = None  # another engine, which takes over the search
    lexicon: Mapping[str, Entry] = field(default_factory=dict)  # replaces unknown words
    engines: EngineTally = field(default_factory=EngineTally)  # which engines decoded

    @property
    def single(self) -> Model:
        """The model, where it is no ensemble."""
        return cast(Model, self.model)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @contextmanager
    def inference(self) -> Iterator[None]:
        """Disable gradients and dropout; a model in training mode returns to it."""
        training = self.model.training
        if training:  # switching visits hundreds of modules, which takes as long as some of their work
            self.model.eval()
        try:
            with torch.inference_mode():
                yield
        finally:
            if training:
                self.model.train()

    def make_generator(self, decoding: Decoding) -> torch.Generator | None:
        return torch.Generator(self.device).manual_seed(decoding.seed) if decoding.sample else None

    def decode(self, request: Request) -> Decoded:
        """The outputs of one batch, by the first engine that can; it is counted."""
        decoded = decode(self.model, request, translator=self.translator)
        self.engines.add(decoded.decision)
        return decoded

    def encode_prefix(self, decoding: Decoding) -> list[int]:
        """Token ids with which every output must begin."""
        ids = self.tokenizers.target.encode(decoding.prefix)[:-1]  # without END
        if UNKNOWN in ids:
            raise SaccadeError(f"the prefix {decoding.prefix!r} has letters or words that the model does not know")
        return ids

    def encode_target(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of given outputs, END last."""
        return encode_tokens(self.tokenizers.target, texts, "output", limit=self.recipe.data.max_length)


def encode_tokens(
    tokenizer: Tokenizer, texts: Sequence[str], what: str, *, limit: int, numbers: Sequence[int] | None = None
) -> list[list[int]]:
    """Token ids with END; a text of more than `limit` tokens is refused, called `what` and its number."""
    rows = tokenizer.encode_all(texts)
    for number, row in zip(numbers or range(1, len(rows) + 1), rows, strict=True):
        if len(row) > limit:
            raise SaccadeError(
                f"{what} {number} has {len(row)} tokens, but the model was made for at most {limit} "
                f"(data.max_length, <end> included); split or shorten it"
            )
    return rows


class InputCodec:
    """Encodes and validates what a model reads, and says how it is displayed.

    Inputs are lines of text whatever the model reads: text, the name of a file, JSON. A row is one encoded input; its
    length groups inputs into batches.
    """

    noun = "texts"  # what inputs are called in messages
    medium = ""  # kind of the files that are read: "picture" or "sound"; empty where text is read
    fields: tuple[str, ...] = ()  # names of the parts of an input that has several
    names_inputs = False  # whether outputs are listed with the name of their input

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded, self.recipe, self.tokenizers = loaded, loaded.recipe, loaded.tokenizers

    def check_list(self, texts: Sequence[str]) -> None:
        """Refuse a single string, whose letters would be taken for inputs."""
        if isinstance(texts, str):
            raise SaccadeError(f"expected a list of {self.noun}, got the single text {texts[:20]!r}; put it in a list")

    def split(self, texts: Sequence[str]) -> list[Sequence[str]]:
        """Parts that are held in memory at a time."""
        return [texts]

    def expand(self, lines: Iterable[str], *, report: Report | None = None) -> Iterable[str]:
        """The inputs that lines of a command line or file stand for; `report` is told of files that are skipped."""
        return lines

    def prepare(self, text: str) -> str:
        """The text with special tokens under the names that the tokenizer has for them."""
        return text

    def encode(self, texts: Sequence[str], what: str, *, numbers: Sequence[int] | None = None) -> list[Any]:
        """One row per input; one that cannot be read is refused, called `what` and its number."""
        raise NotImplementedError

    def validate(self, texts: Sequence[str], decoding: Decoding) -> None:
        """Raise SaccadeError if one of these cannot be decoded."""
        self.encode(texts, "line")

    def count_valid(self, texts: Sequence[str], decoding: Decoding) -> int:
        """How many inputs precede the first one that is refused."""
        filled = [i for i, text in enumerate(texts) if text.strip()]
        if self._accepts([texts[i] for i in filled], decoding):
            return len(texts)
        return next((i for i in filled if not self._accepts([texts[i]], decoding)), len(texts))

    def _accepts(self, texts: Sequence[str], decoding: Decoding) -> bool:
        try:
            self.validate(texts, decoding)
        except SaccadeError:
            return False
        return True

    def make_fields(self, rows: Sequence[Any]) -> dict[str, Any]:
        """The fields of a batch that the reader is given."""
        raise NotImplementedError

    def collate(self, rows: Sequence[Any], targets: Sequence[list[int]] | None = None) -> Batch:
        """A batch on the device of the model."""
        fields = self.make_fields(rows)
        if targets is not None:
            fields["target"] = pad(targets)
        return Batch(fields).to(self.loaded.device)

    def make_hypothesis(self, item: Found, source: str, length: int, *, align: bool) -> Hypothesis:
        """An output as text; `length` is that of the row of the source."""
        text = self.tokenizers.target.decode(item.ids)
        return Hypothesis(item.ids, text, item.score, item.log_prob, item.alignment if align else None)

    # ---- files

    def hold(self, data: bytes, *, name: str, pixels: int) -> str:
        """Decode a file that is not on the disk; return the name that stands for it until `release`."""
        raise SaccadeError(f"this model reads {self.noun}, so that it cannot be given a file")

    def release(self, key: str) -> None:
        """Forget a file that was held."""

    def find_unreadable(self, names: Iterable[str]) -> dict[str, str]:
        """The inputs that cannot be read, and why."""
        broken = {}
        for name in names:
            try:
                self.encode([name], "file")
            except SaccadeError as error:
                broken[name] = str(error)
        return broken

    # ---- display

    def name_input(self, source: str) -> str:
        """What an input is called where it is displayed."""
        return source

    def label_source(self, row: Any) -> tuple[list[str], Groups]:
        """A label per position of the memory, and which positions make up a word."""
        raise NotImplementedError

    def label_question(self, row: Any) -> tuple[list[str], Groups]:
        """The same for the question that comes with a file."""
        return [], []

    def crop_weights(self, address: str, weights: Tensor, *, cell: int | None = None) -> Tensor:
        """The attention weights (H, T, S) of a layer that are displayed; `cell` chooses one query of a picture."""
        return weights

    def find_cell(self, target: str) -> int:
        """The position of a picture that a user names, of which to show the attention."""
        raise SaccadeError(f"a label is not written word by word, so that there is no target, got {target!r}")

    def make_background(self, row: Any) -> Background | None:
        """The picture behind attention maps over it."""
        return None


class Decoder:
    """Runs the model on inputs and turns its outputs into hypotheses."""

    def __init__(self, loaded: LoadedModel, codec: InputCodec) -> None:
        self.loaded, self.codec = loaded, codec
        self.recipe, self.tokenizers = loaded.recipe, loaded.tokenizers

    def candidates(
        self, texts: Sequence[str], *, decoding: Decoding | None = None, align: bool = False, scored: bool = True
    ) -> list[list[Hypothesis]]:
        """The n_best outputs for each input, best first."""
        self.codec.check_list(texts)
        decoding = decoding or self.recipe.predict
        found: list[list[Hypothesis]] = []
        for part in self.codec.split(texts):
            found += self.decode_lines(part, Options(decoding, align, scored, self.loaded.make_generator(decoding)))
        return found

    def predict(self, texts: Sequence[str], *, decoding: Decoding | None = None) -> list[str]:
        """The best output for each input."""
        return [outputs[0].text for outputs in self.candidates(texts, decoding=decoding, scored=False)]

    def decode_lines(self, texts: Sequence[str], options: Options) -> list[list[Hypothesis]]:
        """The n_best outputs for each input; an empty line has an empty output."""
        raise NotImplementedError

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """The log-probability of each given output."""
        raise NotImplementedError

    def write(self, text: str, decoding: Decoding | None) -> Iterator[str]:
        """The best output for one input, in pieces as they become known; by default in one piece."""
        yield self.predict([text], decoding=decoding)[0]

    def check_writes(self) -> None:
        """Raise SaccadeError where the model has no output but hidden states."""


class Presenter:
    """Shows inputs and outputs: as JSON, as attention maps, as a page."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder, self.codec, self.loaded = decoder, decoder.codec, decoder.loaded

    def describe(self, text: str, found: Sequence[Hypothesis]) -> dict[str, Any]:
        """The outputs for one input, for JSON."""
        raise NotImplementedError

    def attention(self, source: str, target: str | None) -> AttentionMaps:
        """The weights of every layer and head."""
        raise NotImplementedError

    def view(self, source: str, target: str | None, *, decoding: Decoding | None, title: str) -> View:
        """The same with all that a page shows."""
        raise NotImplementedError


class Parts(NamedTuple):
    """What a predictor is composed of; each is made from those before it."""

    codec: Callable[[LoadedModel], InputCodec]
    decoder: Callable[[LoadedModel, Any], Decoder]
    presenter: Callable[[Any], Presenter]
