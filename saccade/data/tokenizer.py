"""Text to ids and back, through the `tokenizers` library.

Ids 0 to 3 mean the same everywhere in saccade: padding, start, end, unknown. A tokenizer.json from elsewhere keeps its
special pieces at other ids, so its ids are renumbered (its specials to 0..3, the rest in their order). It is saved with
its own ids, and with those of the four pieces that it lacked added at the end; the same renumbering follows from the
names when it is loaded again. That way no other part of saccade has to ask a tokenizer which id ends a text.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import tokenizers

from saccade.data.lines import missing
from saccade.errors import SaccadeError
from saccade.files import atomic_write

PAD, START, END, UNKNOWN = 0, 1, 2, 3
PIECES = ("<pad>", "<start>", "<end>", "<unknown>")

# What others call them, the more telling names first.
NAMES = (
    (PIECES[PAD], "[PAD]", "<PAD>", "<|pad|>"),
    (PIECES[START], "<s>", "<bos>", "[BOS]", "<BOS>", "[CLS]", "<sos>", "<|startoftext|>", "<|begin_of_text|>"),
    (PIECES[END], "</s>", "<eos>", "[EOS]", "<EOS>", "[SEP]", "<|endoftext|>", "<|end_of_text|>"),
    (PIECES[UNKNOWN], "<unk>", "[UNK]", "<UNK>"),
)
SHARED, SOURCE, TARGET = "tokenizer.json", "tokenizer.source.json", "tokenizer.target.json"
VISIBLE = str.maketrans({" ": "␣", "\n": "⏎", "\r": "␍", "\t": "⇥"})


class Tokenizer:
    """Text to ids, always with END last, and back.

    `begin` stands before every text: what the file itself puts there, unless it is the START that writers begin with.
    """

    pad, start, end, unknown = PAD, START, END, UNKNOWN

    def __init__(self, core: tokenizers.Tokenizer, *, origin: str = "tokenizer") -> None:
        # The file may cut, fill up or add pieces of its own; batches do this here.
        core.no_truncation()
        core.no_padding()
        self._core = core
        self.settings: dict[str, Any] = json.loads(core.to_str())  # of the file, as it says them
        found = _find_specials(core, self.settings["model"], origin)
        core.encode_special_tokens = True  # "<end>" in a user's text is five letters; not stored in the file
        theirs = [*found, *sorted(set(range(max(core.get_vocab().values()) + 1)) - set(found))]
        self._theirs = theirs  # our id -> id in the file
        self._ours = None if theirs == sorted(theirs) else {number: ours for ours, number in enumerate(theirs)}
        self.begin = _before_texts(core, found, theirs)
        decoder = json.dumps(self.settings["decoder"], ensure_ascii=False)
        self._bytes = {letter: byte for byte, letter in enumerate(byte_letters())} if "ByteLevel" in decoder else {}
        self._space = "▁" if "▁" in decoder else " "
        try:
            self.complete = UNKNOWN not in self.encode("\U0010fffd")  # no text is unknown, as with pieces for all bytes
        except Exception as error:  # the library raises Exception itself
            raise SaccadeError(f"{origin} cannot encode unknown text ({error}); it needs a piece like <unk>") from None

    @property
    def size(self) -> int:
        return len(self._theirs)

    @property
    def order(self) -> list[int]:
        """The library's id of each of our ids."""
        return list(self._theirs)

    @property
    def core(self) -> tokenizers.Tokenizer:
        """The library's object, whose ids are not renumbered."""
        return self._core

    def encode(self, text: str) -> list[int]:
        """The ids of a text, END last."""
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of many texts, on all cores."""
        try:
            encodings = self._core.encode_batch_fast(list(texts), add_special_tokens=False)
        except TypeError:
            raise SaccadeError("text holds half a character (a lone surrogate); give valid Unicode") from None
        return [self.number(encoding.ids) for encoding in encodings]

    def number(self, theirs: list[int]) -> list[int]:
        """Ids of the file as ours, between what begins a text and END; what looks like a special piece is unknown."""
        ids = theirs if self._ours is None else [self._ours[number] for number in theirs]
        if ids and min(ids) < UNKNOWN:
            ids = [number if number > END else UNKNOWN for number in ids]
        return [*self.begin, *ids, END]

    def decode(self, ids: Iterable[int], *, unknown: Iterable[str] = ()) -> str:
        """The text of ids up to END, special ids left out; or with a word for each unknown id, one after the other.

        A word that begins with a space stands apart from the piece before it.
        """
        words, pieces = iter(unknown), []
        for number in ids:
            if number == END:
                break
            if UNKNOWN < number < self.size and number not in self.begin:
                pieces.append(self._core.id_to_token(self._theirs[number]))
            elif number == UNKNOWN and (word := next(words, "")):
                pieces.append(word.replace(" ", self._space) if self._space != " " else word.strip())
        known, decoder = [piece for piece in pieces if piece], self._core.decoder
        return " ".join(known) if decoder is None else str(decoder.decode(known))

    def labels(self, ids: Iterable[int]) -> list[str]:
        """A readable name for every id: spaces as ␣, half characters as <0xE2>."""
        return [self._label(int(number)) for number in ids]

    def _label(self, number: int) -> str:
        if number <= UNKNOWN:
            return PIECES[number]
        piece = self._core.id_to_token(self._theirs[number]) or PIECES[UNKNOWN]
        if self._bytes and all(letter in self._bytes for letter in piece):
            piece = bytes(self._bytes[letter] for letter in piece).decode("utf-8", errors="saccade-hex")
        return piece.replace(self._space, " ").translate(VISIBLE)

    def to_json(self) -> str:
        return self._core.to_str()

    def fingerprint(self) -> str:
        """A hash of everything that decides the ids."""
        return sha256(self.to_json().encode()).hexdigest()

    @staticmethod
    def load(path: Path) -> Tokenizer:
        return Tokenizer(read_core(path), origin=str(path))


def read_core(path: Path) -> tokenizers.Tokenizer:
    """The library's object, as the file has it."""
    if not path.is_file():
        raise missing(path)
    try:
        return tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises Exception itself
        first = str(error).splitlines()[0]
        raise SaccadeError(f"{path} is not a tokenizer of the `tokenizers` library ({first})") from None


@dataclass(frozen=True)
class Tokenizers:
    """The tokenizers of both sides; the same object where the vocabulary is shared."""

    source: Tokenizer
    target: Tokenizer

    @property
    def shared(self) -> bool:
        return self.source is self.target

    def vocabulary(self) -> str:
        """A hash of which piece every id stands for, on both sides: what weights depend on."""
        pieces = [[side.core.id_to_token(number) for number in side.order] for side in (self.source, self.target)]
        return sha256(json.dumps(pieces).encode()).hexdigest()

    def save(self, folder: Path) -> None:
        if self.shared:
            texts = {SHARED: self.source}
        else:
            texts = {SOURCE: self.source, TARGET: self.target}
        for name, tokenizer in texts.items():
            atomic_write(folder / name, tokenizer.to_json().encode())

    @staticmethod
    def load(folder: Path) -> Tokenizers:
        if (folder / SOURCE).is_file() and (folder / TARGET).is_file():
            return Tokenizers(Tokenizer.load(folder / SOURCE), Tokenizer.load(folder / TARGET))
        both = Tokenizer.load(folder / SHARED)
        return Tokenizers(both, both)


def byte_letters() -> list[str]:
    """The letter that stands for each byte in byte-level vocabularies (GPT-2): itself where it can be seen."""
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = iter(range(256, 512))
    return [chr(byte if byte in seen else next(hidden)) for byte in range(256)]


def _find_specials(core: tokenizers.Tokenizer, model: dict[str, Any], origin: str) -> list[int]:
    """The ids of padding, start, end and unknown in a tokenizer; those that it lacks are added to it."""
    vocabulary = core.get_vocab()
    pieces = [next((name for name in names if name in vocabulary), names[0]) for names in NAMES]
    unknown = model.get("unk_token")
    if model.get("unk_id") is not None:  # unigram
        unknown = core.id_to_token(model["unk_id"])
    if unknown is not None and unknown in vocabulary:
        pieces[UNKNOWN] = unknown
    if len(set(pieces)) < len(pieces):
        roles = ", ".join(f"{ours[1:-1]} {piece!r}" for ours, piece in zip(PIECES, pieces, strict=True))
        raise SaccadeError(f"{origin} uses one piece for two purposes ({roles}); they must differ")
    core.add_special_tokens([tokenizers.AddedToken(piece, special=True, normalized=False) for piece in pieces])
    vocabulary = core.get_vocab()
    return [vocabulary[piece] for piece in pieces]


def _before_texts(core: tokenizers.Tokenizer, found: Sequence[int], theirs: Sequence[int]) -> tuple[int, ...]:
    """Our ids of what the file's own rules put before a text."""
    put: list[int] = core.encode("").ids
    before = put[: put.index(found[END])] if found[END] in put else put
    return tuple(theirs.index(number) for number in before if number != found[START])


def _hex_bytes(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "".join(f"<0x{byte:02X}>" for byte in error.object[error.start : error.end]), error.end


codecs.register_error("saccade-hex", _hex_bytes)
