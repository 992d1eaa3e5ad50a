"""Text to ids and back, through the `tokenizers` library.

Ids 0 to 3 mean the same everywhere in saccade: padding, start, end, unknown. A tokenizer.json from elsewhere keeps its
special pieces at other ids, so its ids are renumbered (its specials to 0..3, the rest in their order). It is saved with
its own ids, and with those of the four pieces that it lacked added at the end; the same renumbering follows from the
names when it is loaded again. That way no other part of saccade has to ask a tokenizer which id ends a text.

A tokenizer for chats uses pieces inside of texts that also begin and end them (<|im_start|>). Its file says so itself:
it puts one of them before a text and one behind it, and neither is marked as special.
"""

from __future__ import annotations

import codecs
import json
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import tokenizers

from saccade.data.sources.lines import missing
from saccade.data.tokenization.labels import Labels
from saccade.errors import SaccadeError
from saccade.files import atomic_write

# ---- Which pieces of a text make up one word.

Decode = Callable[[Sequence[int]], str]


def group_words(ids: Sequence[int], decode: Decode, *, alone: Collection[int]) -> list[list[int]]:
    """The places of ids, word by word: what no space stands between, without the punctuation around it.

    How ids are written is asked of `decode`, so that it works for every kind of vocabulary. Those of `alone` are words
    of their own.
    """
    groups: list[list[int]] = []
    for at, number in enumerate(ids):
        before = ids[at - 1 : at]
        apart = not before or before[0] in alone or number in alone
        if apart or not _goes_on(decode(before), decode([*before, number])):
            groups.append([at])
        else:
            groups[-1].append(at)
    texts = [decode([number]).strip() for number in ids]
    return [part for group in groups for part in _split_ends(group, texts)]


def _goes_on(first: str, both: str) -> bool:
    """Whether the second of two pieces belongs to the word of the first, given the first and both as text."""
    added = both[len(first) :] if both.startswith(first) else ""  # bytes of one character are read together
    if added[:1].isspace():
        return False
    return not first.strip() or not first[-1].isspace()  # spaces alone belong to the word behind them


def _split_ends(group: list[int], texts: Sequence[str]) -> Iterator[list[int]]:
    """A word, before it the signs at its beginning and behind it those at its end."""
    letters = [at for at in group if texts[at] and not _is_punctuation(texts[at])] or group
    first, last = letters[0], letters[-1]
    while first > group[0] and not texts[first - 1]:  # the space before a word
        first -= 1
    parts = (range(group[0], first), range(first, last + 1), range(last + 1, group[-1] + 1))
    yield from (list(part) for part in parts if part)


def _is_punctuation(text: str) -> bool:
    return all(unicodedata.category(sign).startswith("P") for sign in text)


# ----


PAD, START, END, UNKNOWN = 0, 1, 2, 3
PIECES = ("<pad>", "<start>", "<end>", "<unknown>")

# What others call them, the more telling names first.
NAMES = (
    (PIECES[PAD], "[PAD]", "<PAD>", "<|pad|>"),
    (
        PIECES[START],
        "<s>",
        "<bos>",
        "[BOS]",
        "<BOS>",
        "[CLS]",
        "<sos>",
        "<|startoftext|>",
        "<|begin_of_text|>",
        "<|startoftranscript|>",
    ),
    (PIECES[END], "</s>", "<eos>", "[EOS]", "<EOS>", "[SEP]", "<|endoftext|>", "<|end_of_text|>"),
    (PIECES[UNKNOWN], "<unk>", "[UNK]", "<UNK>"),
)
SHARED, SOURCE, TARGET = "tokenizer.json", "tokenizer.source.json", "tokenizer.target.json"
VISIBLE = str.maketrans({" ": "␣", "\n": "⏎", "\r": "␍", "\t": "⇥"})


class Tokenizer:
    """Text to ids, always with END last, and back.

    `begin` stands before every text: what the file itself puts there, unless it is the START that writers begin with.
    `after` is what it puts behind END, where a text is read as a whole (<cls> of XLNet).
    """

    pad, start, end, unknown = PAD, START, END, UNKNOWN

    def __init__(self, core: tokenizers.Tokenizer, *, origin: str = "tokenizer") -> None:
        # The file may cut, fill up or add pieces of its own; batches do this here.
        core.no_truncation()
        core.no_padding()
        self._core = core
        self.settings: dict[str, Any] = json.loads(core.to_str())  # of the file, as it says them
        said = _said_around_texts(self.settings)
        self.said = tuple(said)  # of 0 to 3, what texts may hold
        found = _find_specials(core, self.settings, said, origin)
        core.encode_special_tokens = True  # "<end>" in a user's text is five letters; not stored in the file
        theirs = [*found, *sorted(set(range(max(core.get_vocab().values()) + 1)) - set(found))]
        self._theirs = theirs  # our id -> id in the file
        self._ours = None if theirs == sorted(theirs) else {number: ours for ours, number in enumerate(theirs)}
        self.begin, self.after = _around_texts(core, found, theirs)
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
        return [self.number(encoding.ids) for encoding in self.encodings(texts)]

    def knows(self, text: str) -> bool:
        """Every text has ids; of labels only those that were learned have."""
        return True

    def encodings(self, texts: Sequence[str], *, places: bool = False) -> list[tokenizers.Encoding]:
        """What the library makes of texts; with `places` also where in them each piece stands."""
        encode = self._core.encode_batch if places else self._core.encode_batch_fast
        try:
            return encode(list(texts), add_special_tokens=False)
        except TypeError:
            raise SaccadeError("text holds half a character (a lone surrogate); give valid Unicode") from None

    def number(self, theirs: list[int]) -> list[int]:
        """Ids of the file as ours, between what begins a text and END; what looks like a special piece is unknown.

        Where texts may hold START, one at their beginning is left out: everything that is written has it.
        """
        ids = theirs if self._ours is None else [self._ours[number] for number in theirs]
        if ids and min(ids) < UNKNOWN:
            ids = [number if number > END or number in self.said else UNKNOWN for number in ids]
        return [*self.begin, *ids[ids[:1] == [START] :], END]

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

    def words(self, ids: Sequence[int]) -> list[list[int]]:
        """The places of ids, word by word: what no space stands between, without the punctuation around it.

        Special ids stand for themselves.
        """
        return group_words(ids, self.decode, alone={*range(UNKNOWN + 1), *self.begin, *self.after})

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
    """The tokenizers of both sides; the same object where the vocabulary is shared. Or of a text, and its labels."""

    source: Tokenizer
    target: Tokenizer
    labels: Labels | None = None

    @property
    def shared(self) -> bool:
        return self.source is self.target

    @property
    def target_size(self) -> int:
        """How many numbers a writer gives at each place."""
        return self.target.size if self.labels is None else self.labels.size

    def vocabulary(self) -> str:
        """A hash of which piece every id stands for, on both sides: what weights depend on."""
        source = [self.source.core.id_to_token(number) for number in self.source.order]
        pieces = [source, source if self.shared else list(map(self.target.core.id_to_token, self.target.order))]
        pieces += [] if self.labels is None else [list(self.labels.names)]
        return sha256(json.dumps(pieces).encode()).hexdigest()

    def save(self, folder: Path) -> None:
        if self.shared:
            texts = {SHARED: self.source}
        else:
            texts = {SOURCE: self.source, TARGET: self.target}
        for name, tokenizer in texts.items():
            atomic_write(folder / name, tokenizer.to_json().encode())
        if self.labels is not None:
            self.labels.save(folder)

    @staticmethod
    def load(folder: Path) -> Tokenizers:
        if (folder / SOURCE).is_file() and (folder / TARGET).is_file():
            return Tokenizers(Tokenizer.load(folder / SOURCE), Tokenizer.load(folder / TARGET))
        both = Tokenizer.load(folder / SHARED)
        return Tokenizers(both, both, Labels.load(folder))


def byte_letters() -> list[str]:
    """The letter that stands for each byte in byte-level vocabularies (GPT-2): itself where it can be seen."""
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = iter(range(256, 512))
    return [chr(byte if byte in seen else next(hidden)) for byte in range(256)]


def _said_around_texts(settings: Mapping[str, Any]) -> dict[int, str]:
    """The pieces for START and END that a tokenizer for chats puts around texts and also reads inside of them."""
    around: list[Any] = (settings["post_processor"] or {}).get("single") or []
    at = [number for number, part in enumerate(around) if "Sequence" in part] if isinstance(around, list) else []
    if len(at) != 1 or at[0] > 1 or len(around) - at[0] > 2:
        return {}
    plain = [token["content"] for token in settings["added_tokens"] if not token["special"]]
    parts = {START: around[: at[0]], END: around[at[0] + 1 :]}
    pieces = {role: part[0]["SpecialToken"]["id"] for role, part in parts.items() if part}
    return {role: piece for role, piece in pieces.items() if piece in plain}


def _find_specials(
    core: tokenizers.Tokenizer, settings: Mapping[str, Any], said: Mapping[int, str], origin: str
) -> list[int]:
    """The ids of padding, start, end and unknown in a tokenizer; those that it lacks are added to it."""
    pieces = [next((name for name in names if core.token_to_id(name) is not None), names[0]) for names in NAMES]
    for role, piece in {**_several_behind_texts(settings), **said}.items():
        pieces[role] = piece
    model = settings["model"]
    unknown = model.get("unk_token")
    if model.get("unk_id") is not None:  # unigram
        unknown = core.id_to_token(model["unk_id"])
    if unknown is not None and core.token_to_id(unknown) is not None:
        pieces[UNKNOWN] = unknown
    if len(set(pieces)) < len(pieces):
        roles = ", ".join(f"{ours[1:-1]} {piece!r}" for ours, piece in zip(PIECES, pieces, strict=True))
        raise SaccadeError(f"{origin} uses one piece for two purposes ({roles}); they must differ")
    special = [piece for piece in pieces if piece not in said.values()]
    core.add_special_tokens([tokenizers.AddedToken(piece, special=True, normalized=False) for piece in special])
    numbers: list[Any] = [core.token_to_id(piece) for piece in pieces]  # all of them are there now
    return numbers


def _several_behind_texts(settings: Mapping[str, Any]) -> dict[int, str]:
    """The piece for END where the file puts more than one behind a text, as that of XLNet does: the first of them."""
    around: Any = (settings["post_processor"] or {}).get("single")
    texts = [number for number, part in enumerate(around) if "Sequence" in part] if isinstance(around, list) else []
    behind = around[texts[-1] + 1 :] if texts else []
    return {END: behind[0]["SpecialToken"]["id"]} if len(behind) > 1 else {}


def _around_texts(
    core: tokenizers.Tokenizer, found: Sequence[int], theirs: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Our ids of what the file's own rules put before a text, and behind its END."""
    put: list[int] = core.encode("").ids
    end = put.index(found[END]) if found[END] in put else len(put)
    before, after = ([theirs.index(number) for number in part] for part in (put[:end], put[end + 1 :]))
    return tuple(number for number in before if number != START), tuple(after)


def _hex_bytes(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "".join(f"<0x{byte:02X}>" for byte in error.object[error.start : error.end]), error.end


codecs.register_error("saccade-hex", _hex_bytes)
