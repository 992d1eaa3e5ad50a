"""Tokenizers: text to ids and back, through the `tokenizers` library.

The ids 0 to 3 are padding, start, end and unknown everywhere in saccade. A tokenizer.json from elsewhere has its
special tokens at other ids, so its ids (library ids) are renumbered (model ids): its special tokens to 0..3, the others
in their order. It is saved with its own ids, after adding those of the four special tokens that it lacks; the same
renumbering follows from the names of the tokens when it is loaded again.

The START and END tokens of chat models (<|im_start|>) may also occur inside of a text. They are recognized by the file:
its post-processor puts them around a text, and they are not marked as special.
"""

from __future__ import annotations

import codecs
import json
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import tokenizers

from saccade.allocation import check_allocation
from saccade.data.sources.lines import build_missing_file_error
from saccade.data.tokenization.labels import Labels
from saccade.errors import SaccadeError
from saccade.files import atomic_write

MIN_CHECKED_CHARACTERS = 2**20  # encodings of shorter texts are not worth a look at the memory
CHARACTER_BYTES = 200  # that the library takes at most for a character of a text while it encodes it

# ---- Tokens of one word

Decode = Callable[[Sequence[int]], str]


def group_words(ids: Sequence[int], decode: Decode, *, alone: Collection[int]) -> list[list[int]]:
    """Group the indices of tokens by words, which spaces separate; punctuation around a word is a group of its own.

    `decode` converts ids to text, so that it works for every kind of vocabulary. Ids of `alone` are groups by
    themselves.
    """
    groups: list[list[int]] = []
    for index, token in enumerate(ids):
        before = ids[index - 1 : index]
        starts_group = not before or before[0] in alone or token in alone
        if starts_group or not _continues_word(decode(before), decode([*before, token])):
            groups.append([index])
        else:
            groups[-1].append(index)
    texts = [decode([token]).strip() for token in ids]
    return [part for group in groups for part in _split_punctuation(group, texts)]


def _continues_word(first: str, both: str) -> bool:
    """Whether the second of two tokens continues the word of the first, given the text of the first and of both."""
    added = both[len(first) :] if both.startswith(first) else ""  # the bytes of one character are decoded together
    if added[:1].isspace():
        return False
    return not first.strip() or not first[-1].isspace()  # a token of spaces belongs to the word behind it


def _split_punctuation(group: list[int], texts: Sequence[str]) -> Iterator[list[int]]:
    """Split a group into leading punctuation, word and trailing punctuation."""
    letters = [index for index in group if texts[index] and not _is_punctuation(texts[index])] or group
    first, last = letters[0], letters[-1]
    while first > group[0] and not texts[first - 1]:  # include a token of spaces before the word
        first -= 1
    parts = (range(group[0], first), range(first, last + 1), range(last + 1, group[-1] + 1))
    yield from (list(part) for part in parts if part)


def _is_punctuation(text: str) -> bool:
    return all(unicodedata.category(character).startswith("P") for character in text)


# ---- Tokenizers


PAD, START, END, UNKNOWN = 0, 1, 2, 3
SPECIAL_TOKENS = ("<pad>", "<start>", "<end>", "<unknown>")

# Names of these roles in other tokenizers, the most specific ones first.
SPECIAL_TOKEN_NAMES = (
    (SPECIAL_TOKENS[PAD], "[PAD]", "<PAD>", "<|pad|>"),
    (
        SPECIAL_TOKENS[START],
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
    (SPECIAL_TOKENS[END], "</s>", "<eos>", "[EOS]", "<EOS>", "[SEP]", "<|endoftext|>", "<|end_of_text|>"),
    (SPECIAL_TOKENS[UNKNOWN], "<unk>", "[UNK]", "<UNK>"),
)
SHARED_FILE, SOURCE_FILE, TARGET_FILE = "tokenizer.json", "tokenizer.source.json", "tokenizer.target.json"
MAX_IDS_PER_TOKEN, MAX_UNUSED_IDS = 4, 100_000  # gaps between ids are usual, but a damaged file can have any id
VISIBLE_SPACES = str.maketrans({" ": "␣", "\n": "⏎", "\r": "␍", "\t": "⇥"})


class Tokenizer:
    """Encodes texts to ids, always with END last, and decodes ids.

    `prefix_ids` are put before every text, as the post-processor of the file does; START, which decoding starts with,
    is not one of them. `suffix_ids` follow END in encoders (<cls> of XLNet).
    """

    pad, start, end, unknown = PAD, START, END, UNKNOWN

    def __init__(self, backend: tokenizers.Tokenizer, *, origin: str = "tokenizer") -> None:
        check_ids(backend, origin)  # before the library writes all ids up to the largest
        # Our batches do this.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.settings: dict[str, Any] = json.loads(backend.to_str())  # content of tokenizer.json
        chat_specials = _find_chat_specials(self.settings)
        self.text_specials = tuple(chat_specials)  # those of the ids 0 to 3 that may occur inside of a text
        special_ids = _find_specials(backend, self.settings, chat_specials, origin)
        backend.encode_special_tokens = True  # "<end>" in a text of a user is not END; not stored in the file
        library_ids = [*special_ids, *sorted(set(range(max(backend.get_vocab().values()) + 1)) - set(special_ids))]
        self._library_ids = library_ids  # by model id
        self._model_ids = (
            None if library_ids == sorted(library_ids) else {number: ours for ours, number in enumerate(library_ids)}
        )
        self.prefix_ids, self.suffix_ids = _find_affixes(backend, special_ids, library_ids, origin)
        decoder = json.dumps(self.settings["decoder"], ensure_ascii=False)
        self._bytes = (
            {letter: byte for byte, letter in enumerate(build_byte_alphabet())} if "ByteLevel" in decoder else {}
        )
        self._space = "▁" if "▁" in decoder else " "
        try:
            self.covers_all_text = UNKNOWN not in self.encode("\U0010fffd")  # such as a vocabulary with all bytes
        except Exception as error:  # the library raises Exception itself
            raise SaccadeError(f"{origin} cannot encode unknown text ({error}); it needs a token like <unk>") from None

    @property
    def size(self) -> int:
        return len(self._library_ids)

    @property
    def library_ids(self) -> list[int]:
        """The id in the `tokenizers` library of each model id."""
        return list(self._library_ids)

    @property
    def backend(self) -> tokenizers.Tokenizer:
        """The object of the `tokenizers` library, whose ids are not renumbered."""
        return self._backend

    def encode(self, text: str) -> list[int]:
        """Encode a text; END is last."""
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode texts in parallel."""
        return [self.to_model_ids(encoding.ids) for encoding in self.encode_batch(texts)]

    def can_encode(self, text: str) -> bool:
        """Whether a text can be encoded: always (unlike labels, which may be unknown)."""
        return True

    def encode_batch(self, texts: Sequence[str], *, with_offsets: bool = False) -> list[tokenizers.Encoding]:
        """Encode texts with the library, without special tokens; offsets of the tokens in the text take longer."""
        encode = self._backend.encode_batch if with_offsets else self._backend.encode_batch_fast
        try:
            if (count := sum(map(len, texts))) >= MIN_CHECKED_CHARACTERS:
                needed = count * CHARACTER_BYTES
                check_allocation(needed, f"the encoding of {count:,} characters", "split long texts into lines")
            return encode(list(texts), add_special_tokens=False)
        except TypeError:
            if wrong := [text for text in texts if not isinstance(text, str)]:
                raise SaccadeError(f"expected texts, got {type(wrong[0]).__name__}") from None
            raise SaccadeError("text holds half a character (a lone surrogate); give valid Unicode") from None

    def to_model_ids(self, library_ids: list[int]) -> list[int]:
        """Convert ids of the library to ours, and add prefix and END; special tokens in the text become UNKNOWN.

        If a text may contain START, one at its start is removed: decoding adds it.
        """
        ids = library_ids if self._model_ids is None else [self._model_ids[token] for token in library_ids]
        if ids and min(ids) < UNKNOWN:
            ids = [token if token > END or token in self.text_specials else UNKNOWN for token in ids]
        return [*self.prefix_ids, *ids[ids[:1] == [START] :], END]

    def decode(self, ids: Iterable[int], *, unknown: Iterable[str] = ()) -> str:
        """Decode ids up to END without special tokens; the words of `unknown` replace unknown ids, in their order.

        A word of `unknown` that starts with a space is separated from the token before it.
        """
        words, tokens = iter(unknown), []
        for token in ids:
            if token == END:
                break
            if UNKNOWN < token < self.size and token not in self.prefix_ids:
                tokens.append(self._backend.id_to_token(self._library_ids[token]))
            elif token == UNKNOWN and (word := next(words, "")):
                tokens.append(word.replace(" ", self._space) if self._space != " " else word.strip())
        known, decoder = [token for token in tokens if token], self._backend.decoder
        return " ".join(known) if decoder is None else str(decoder.decode(known))

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Return a readable token for each id: spaces as ␣, incomplete characters as <0xE2>."""
        return [self._convert_id_to_token(int(token)) for token in ids]

    def group_words(self, ids: Sequence[int]) -> list[list[int]]:
        """Group the indices of tokens by words; special tokens are groups by themselves."""
        return group_words(ids, self.decode, alone={*range(UNKNOWN + 1), *self.prefix_ids, *self.suffix_ids})

    def _convert_id_to_token(self, token_id: int) -> str:
        if token_id <= UNKNOWN:
            return SPECIAL_TOKENS[token_id]
        token = self._backend.id_to_token(self._library_ids[token_id]) or SPECIAL_TOKENS[UNKNOWN]
        if self._bytes and all(letter in self._bytes for letter in token):
            token = bytes(self._bytes[letter] for letter in token).decode("utf-8", errors="saccade-hex")
        return token.replace(self._space, " ").translate(VISIBLE_SPACES)

    def to_json(self) -> str:
        return self._backend.to_str()

    def fingerprint(self) -> str:
        """Hash everything that the ids depend on."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:  # a search with a teacher or language model compares it for each batch
        return sha256(self.to_json().encode()).hexdigest()

    @staticmethod
    def load(path: Path) -> Tokenizer:
        return Tokenizer(load_backend(path), origin=str(path))


def load_backend(path: Path) -> tokenizers.Tokenizer:
    """Load tokenizer.json with the `tokenizers` library."""
    if not path.is_file():
        raise build_missing_file_error(path)
    try:
        backend = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
        for texts in (("",), ("", "")):
            backend.encode(*texts)  # with a damaged template the library panics, which is a BaseException
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises Exception itself
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise SaccadeError(f"{path} is not a tokenizer of the `tokenizers` library ({reason})") from None
    return backend


@dataclass(frozen=True)
class Tokenizers:
    """The tokenizers of source and target, the same object if the vocabulary is shared; and the labels, if any."""

    source: Tokenizer
    target: Tokenizer
    labels: Labels | None = None

    @property
    def is_shared(self) -> bool:
        return self.source is self.target

    @property
    def target_size(self) -> int:
        """Number of outputs of the writer at each position."""
        return self.target.size if self.labels is None else self.labels.size

    def hash_vocabulary(self) -> str:
        """Hash the token of each id on both sides, which the rows of embedding matrices belong to."""
        source = [self.source.backend.id_to_token(number) for number in self.source.library_ids]
        target = source if self.is_shared else list(map(self.target.backend.id_to_token, self.target.library_ids))
        labels = [] if self.labels is None else [list(self.labels.names)]
        return sha256(json.dumps([source, target, *labels]).encode()).hexdigest()

    def save(self, folder: Path) -> None:
        if self.is_shared:
            files = {SHARED_FILE: self.source}
        else:
            files = {SOURCE_FILE: self.source, TARGET_FILE: self.target}
        for name, tokenizer in files.items():
            atomic_write(folder / name, tokenizer.to_json().encode())
        if self.labels is not None:
            self.labels.save(folder)

    @staticmethod
    def load(folder: Path) -> Tokenizers:
        if (folder / SOURCE_FILE).is_file() and (folder / TARGET_FILE).is_file():
            return Tokenizers(Tokenizer.load(folder / SOURCE_FILE), Tokenizer.load(folder / TARGET_FILE))
        if not (folder / SHARED_FILE).is_file():
            raise SaccadeError(
                f"{folder / SHARED_FILE} not found; put it back: a run needs its tokenizer beside recipe and weights"
            )
        both = Tokenizer.load(folder / SHARED_FILE)
        return Tokenizers(both, both, Labels.load(folder))


def build_byte_alphabet() -> list[str]:
    """Return the character for each byte in byte-level vocabularies (GPT-2): itself if it is printable."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _find_chat_specials(settings: Mapping[str, Any]) -> dict[int, str]:
    """Return the START and END tokens of a chat model: around every text, and not special, so allowed inside of it."""
    template: list[Any] = (settings["post_processor"] or {}).get("single") or []
    texts = [i for i, part in enumerate(template) if "Sequence" in part] if isinstance(template, list) else []
    if len(texts) != 1 or texts[0] > 1 or len(template) - texts[0] > 2:
        return {}
    plain = [token["content"] for token in settings["added_tokens"] if not token["special"]]
    parts = {START: template[: texts[0]], END: template[texts[0] + 1 :]}
    tokens = {role: part[0]["SpecialToken"]["id"] for role, part in parts.items() if part}
    return {role: token for role, token in tokens.items() if token in plain}


def _find_specials(
    backend: tokenizers.Tokenizer, settings: Mapping[str, Any], chat_specials: Mapping[int, str], origin: str
) -> list[int]:
    """Return the library ids of the tokens for padding, start, end and unknown; add those that are missing."""
    tokens = [
        next((name for name in names if backend.token_to_id(name) is not None), names[0])
        for names in SPECIAL_TOKEN_NAMES
    ]
    for role, token in {**_find_first_suffix(settings), **chat_specials}.items():
        tokens[role] = token
    model = settings["model"]
    unknown = model.get("unk_token")
    if model.get("unk_id") is not None:  # unigram
        unknown = backend.id_to_token(model["unk_id"])
    if unknown is not None and backend.token_to_id(unknown) is not None:
        tokens[UNKNOWN] = unknown
    if len(set(tokens)) < len(tokens):
        roles = ", ".join(f"{ours[1:-1]} {token!r}" for ours, token in zip(SPECIAL_TOKENS, tokens, strict=True))
        raise SaccadeError(f"{origin} uses one token for two purposes ({roles}); they must differ")
    special = [token for token in tokens if token not in chat_specials.values()]
    backend.add_special_tokens([tokenizers.AddedToken(token, special=True, normalized=False) for token in special])
    ids: list[Any] = [backend.token_to_id(token) for token in tokens]  # none is missing any more
    return ids


def _find_first_suffix(settings: Mapping[str, Any]) -> dict[int, str]:
    """Return the END token if the file puts several tokens behind a text, as for XLNet: the first of them."""
    template: Any = (settings["post_processor"] or {}).get("single")
    texts = [i for i, part in enumerate(template) if "Sequence" in part] if isinstance(template, list) else []
    suffix = template[texts[-1] + 1 :] if texts else []
    return {END: suffix[0]["SpecialToken"]["id"]} if len(suffix) > 1 else {}


def check_ids(backend: tokenizers.Tokenizer, origin: str) -> None:
    """Raise where an id is far beyond the number of tokens: each id gets a row of the embedding, used or not."""
    vocabulary = backend.get_vocab()
    count, limit = max(vocabulary.values(), default=-1) + 1, MAX_IDS_PER_TOKEN * len(vocabulary) + MAX_UNUSED_IDS
    if count > limit:
        raise SaccadeError(
            f"{origin} has {len(vocabulary):,} tokens, but an id of {count - 1:,}; expected ids below {limit:,}: "
            "is the file damaged?"
        )


def _find_affixes(
    backend: tokenizers.Tokenizer, special_ids: Sequence[int], library_ids: Sequence[int], origin: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the model ids of the tokens that the file puts before a text, and behind its END."""
    affixes: list[int] = backend.encode("").ids
    if unknown := sorted({*affixes} - {*library_ids}):
        raise SaccadeError(f"{origin} puts a token of the id {unknown[0]} around texts, but has none; is it damaged?")
    end = affixes.index(special_ids[END]) if special_ids[END] in affixes else len(affixes)
    before, after = ([library_ids.index(token) for token in part] for part in (affixes[:end], affixes[end + 1 :]))
    return tuple(token for token in before if token != START), tuple(after)


def _hex_bytes(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "".join(f"<0x{byte:02X}>" for byte in error.object[error.start : error.end]), error.end


codecs.register_error("saccade-hex", _hex_bytes)
