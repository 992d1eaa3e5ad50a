"""The tokenizer of a foreign folder, filled up so that every row of its tables has a piece; and the way back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from saccade.data.tokenization.tokenizer import (
    END,
    NAMES,
    PAD,
    PIECES,
    SHARED,
    START,
    TARGET,
    Tokenizer,
    Tokenizers,
    read_core,
)
from saccade.errors import SaccadeError
from saccade.exchange.families.family import Config, Family, Numbering
from saccade.exchange.formats.read import read_json
from saccade.exchange.formats.sentencepiece import CONTROL, UNKNOWN, read_sentencepiece, to_tokenizer

MODELS = ("spiece.model", "tokenizer.model", "sentencepiece.model", "sentencepiece.bpe.model")
MARIAN = ("source.spm", "target.spm", "vocab.json")
SETTINGS, ADDED = "tokenizer_config.json", "added_tokens.json"
FILLER = "<no piece {}>"  # of a row that no piece of the vocabulary has
ROLES = {"pad_token_id": PAD, "eos_token_id": END}


def read_tokenizers(folder: Path, family: Family, size: int) -> list[tokenizers.Tokenizer]:
    """One tokenizer, or those of source and target, from whichever files there are; `size` rows have a number."""
    if (folder / SHARED).is_file():
        paths = [folder / name for name in (SHARED, TARGET) if (folder / name).is_file()]
        return [read_core(path) for path in paths]
    if all((folder / name).is_file() for name in MARIAN):
        return _marian(folder, size)
    for name in MODELS:
        if (folder / name).is_file():
            core = to_tokenizer(read_sentencepiece(folder / name))
            settings = read_json(folder / SETTINGS)
            extra = settings.get("extra_ids", len(family.added))
            if family.added and not 0 <= extra <= len(family.added):
                raise SaccadeError(f"{folder / SETTINGS}: extra_ids = {extra} is not supported; at most 100 can be")
            core.add_tokens(
                [AddedToken(piece, normalized=False) for piece in family.added[len(family.added) - extra :]]
            )
            if family.dress is not None:
                family.dress(core, settings)
            return [_with_added(folder, core)]
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return [_with_added(folder, _byte_pairs(folder))]
    if (folder / "vocab.txt").is_file():
        return [_with_added(folder, read_word_pieces(folder))]
    raise SaccadeError(
        f"{folder} has no tokenizer: expected tokenizer.json, a SentencePiece file ({', '.join(MODELS)}, or "
        f"{' + '.join(MARIAN)}), vocab.json + merges.txt, or vocab.txt"
    )


def _with_added(folder: Path, core: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """With the pieces that somebody added to the files: they stand in one more, each with its number."""
    added = read_json(folder / ADDED)
    for piece in sorted(added, key=added.__getitem__):
        core.add_tokens([AddedToken(piece, normalized=False)])
        if core.token_to_id(piece) != added[piece]:
            raise SaccadeError(
                f"{folder / ADDED}: {piece!r} would be {core.token_to_id(piece)}, not {added[piece]}; "
                "take a tokenizer.json of the model"
            )
    return core


def _marian(folder: Path, size: int) -> list[tokenizers.Tokenizer]:
    """Two models, and one numbering of the pieces of both."""
    sides = [read_sentencepiece(folder / name) for name in MARIAN[:2]]
    numbers = {piece: int(number) for piece, number in read_json(folder / MARIAN[2]).items()}
    if sorted(numbers.values()) != list(range(len(numbers))) or "<unk>" not in numbers:
        raise SaccadeError(f"{folder / MARIAN[2]} does not number its pieces from 0 on, <unk> among them; is it whole?")
    numbers |= {FILLER.format(number): number for number in range(len(numbers), size)}
    for side in sides:  # a piece without a number is read as unknown text; it gets a row of its own that says so
        for piece, _, kind in side.pieces:
            if piece not in numbers and kind not in (UNKNOWN, CONTROL):
                numbers[piece] = len(numbers)
    codes = [
        AddedToken(piece, normalized=False) for piece in numbers if piece.startswith(">>") and piece.endswith("<<")
    ]
    cores = [to_tokenizer(side, numbers) for side in sides]
    for core in cores:
        core.add_tokens(codes)
        core.add_special_tokens([piece for piece in ("<pad>", "</s>") if piece in numbers])
    return cores


def _byte_pairs(folder: Path) -> tokenizers.Tokenizer:
    """The files of GPT-2 and BART before there was tokenizer.json; the latter puts <s> before texts."""
    core = tokenizers.Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    spaced = bool(read_json(folder / SETTINGS).get("add_prefix_space"))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    core.decoder = decoders.ByteLevel()
    vocabulary = core.get_vocab()
    special = [piece for piece in ("<s>", "<pad>", "</s>", "<unk>", "<|endoftext|>") if piece in vocabulary]
    core.add_special_tokens(special)
    if "<mask>" in vocabulary:
        core.add_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
    if {"<s>", "</s>"} <= set(special):
        core.post_processor = processors.RobertaProcessing(
            ("</s>", vocabulary["</s>"]), ("<s>", vocabulary["<s>"]), trim_offsets=True, add_prefix_space=spaced
        )
    return core


# ---- from theirs to ours


def for_chats(config: Config, cores: Sequence[tokenizers.Tokenizer], family: Family) -> list[tokenizers.Tokenizer]:
    """Where another piece ends texts than its name tells, as in a chat, the tokenizer itself puts it there.

    Such pieces are read in texts as well.
    """
    roles = _chat_roles(config, cores[0], family)
    if not roles:
        return list(cores)
    pieces = {role: cores[0].id_to_token(number) for role, number in roles.items()}
    values = json.loads(cores[0].to_str())
    core = tokenizers.Tokenizer.from_str(
        json.dumps({**values, "added_tokens": [{**token, "special": False} for token in values["added_tokens"]]})
    )
    core.post_processor = processors.TemplateProcessing(
        single=[*([pieces[START]] if START in pieces else []), "$A", pieces[END]],
        special_tokens=[(pieces[role], number) for role, number in roles.items()],
    )
    return [core]


def with_prompt(core: tokenizers.Tokenizer, pieces: Sequence[str]) -> None:
    """The tokenizer puts these pieces between the start and every text."""
    first, last = _named(core, START), _named(core, END)
    if first is None or last is None:  # told where a model is asked for them
        return
    start, end = str(core.id_to_token(first)), str(core.id_to_token(last))
    numbers: list[tuple[str, Any]] = [(piece, core.token_to_id(piece)) for piece in dict.fromkeys(pieces)]
    core.post_processor = processors.TemplateProcessing(
        single=[start, *pieces, "$A", end], special_tokens=[(start, first), *numbers, (end, last)]
    )


def _chat_roles(config: Config, core: tokenizers.Tokenizer, family: Family) -> dict[int, int]:
    """Which pieces of a chat begin and end texts; none where names tell it, or one does both."""
    start, end = config.values.get("bos_token_id"), config.values.get("eos_token_id")
    roles = {**({} if start in (end, None) else {START: start}), END: end}
    added = core.get_added_tokens_decoder()
    several = any(isinstance(number, list) for number in roles.values())
    if several or family.reads or end == _named(core, END) or any(number not in added for number in roles.values()):
        return {}
    return roles


def _named(core: tokenizers.Tokenizer, role: int) -> int | None:
    """The number of the piece that a role has by its name; none where there is no such piece."""
    numbers = (core.token_to_id(name) for name in NAMES[role])
    return next((number for number in numbers if number is not None), None)


def adopt(cores: Sequence[tokenizers.Tokenizer], *, size: int, start: str) -> Tokenizers:
    """Tokenizers of ours for tables of `size` rows; START is a piece of its own unless theirs has one."""
    made = []
    for core in cores:
        pieces = core.get_vocab()
        if len(cores) == 1 and max(pieces.values()) >= size:
            raise SaccadeError(
                f"the tokenizer has {max(pieces.values()) + 1} pieces, but the tables of weights {size} rows; "
                "is it the tokenizer of these weights?"
            )
        fillers = [FILLER.format(number) for number in range(max(pieces.values()) + 1, size)]
        core.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in fillers])
        if start != "own":
            core.add_special_tokens([AddedToken(PIECES[START], special=True, normalized=False)])
        made.append(Tokenizer(_said_in_texts(core)))
    return Tokenizers(made[0], made[-1])


def _said_in_texts(core: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Pieces such as <mask> and <extra_id_0> mean something in a text, so that they are read there."""
    around = {*core.encode("").tokens, *PIECES, "<s>", "</s>", "<unk>", "<|endoftext|>"}
    added = [token.content for token in core.get_added_tokens_decoder().values() if token.special]
    said = {piece for piece in added if piece not in around and not piece.startswith(FILLER[:9])}
    if not said:  # to read a vocabulary again takes a while
        return core
    values = json.loads(core.to_str())
    for token in values["added_tokens"]:
        token["special"] = token["special"] and token["content"] not in said
    return tokenizers.Tokenizer.from_str(json.dumps(values))


def numbering(tokenizer: Tokenizer, size: int) -> Numbering:
    """Which of `size` rows each of our ids has; text without a row of its own has that of unknown text."""
    unknown = tokenizer.order[tokenizer.unknown]
    said = [piece for piece in tokenizer.settings["added_tokens"] if piece["special"]]
    special = {piece["id"] for piece in said} | set(tokenizer.order[:4])
    order = [number if number < size else (-1 if number in special else unknown) for number in tokenizer.order]
    dead = [ours for ours, number in enumerate(tokenizer.order) if number >= size]
    return Numbering(order, dead, size)


def start_of(config: Config, cores: Sequence[tokenizers.Tokenizer], family: Family) -> str:
    """What the writer reads first, by its role: that of padding, that of the end, or a piece of its own."""
    core = cores[0]
    named = {role: _named(core, role) for role in (PAD, START, END)} | _chat_roles(config, core, family)
    if family.reads:
        first = config.take("decoder_start_token_id", None)
        first = config.take("pad_token_id") if first is None else first
    else:
        first = config.take("bos_token_id", None)
        first = config.take("eos_token_id", None) if first is None else first  # a text begins where another has ended
    for key, role in ROLES.items():
        there = named[role]
        alone = not family.reads or config.values.get(key) == config.values.get("eos_token_id")
        padding = key == "pad_token_id" and alone  # nobody looks at it there, whatever it is
        if (there is None or config.take(key, None) != there) and not padding:
            its = " has none" if there is None else f"'s is {core.id_to_token(there)!r}, {there}"
            raise config.refusal(key, f"the tokenizer{its}; do they belong together?")
        config.take(key, None)
    starts = {named[role]: how for role, how in ((START, "own"), (PAD, "pad"), (END, "end")) if named[role] is not None}
    if first not in starts:
        key = "decoder_start_token_id" if family.reads else "bos_token_id"
        raise config.refusal(key, "expected the piece of padding, of the end or of the start")
    return starts[first]


def start_of_encoder(cores: Sequence[tokenizers.Tokenizer]) -> str:
    """The same where nothing is written: a piece that stands before texts is not the one that begins an output."""
    named = Tokenizer(tokenizers.Tokenizer.from_str(cores[0].to_str()))
    return "begin" if named.order[START] in cores[0].encode("").ids else "own"


# ---- and back


def release(tokenizer: Tokenizer, size: int, *, ends: bool, parts: bool = False) -> str:
    """The tokenizer.json of theirs: without what was added for us; where it `ends`, with the end behind every text.

    With `parts`, pieces of the second text of a pair are told from those of the first.
    """
    values: dict[str, Any] = json.loads(tokenizer.to_json())
    if tokenizer.said:
        values["post_processor"] = None
    values["added_tokens"] = [
        token for token in values["added_tokens"]
        if token["id"] < size and not token["content"].startswith(FILLER[:9])
    ]  # fmt: skip
    core = tokenizers.Tokenizer.from_str(json.dumps(values))
    if ends and core.post_processor is None:
        end = core.id_to_token(tokenizer.order[END])
        core.post_processor = processors.TemplateProcessing(
            single=["$A", end], pair=["$A", end, "$B", end], special_tokens=[(end, tokenizer.order[END])]
        )
    return str((_with_parts(core) if parts else core).to_str(pretty=True))


def _with_parts(core: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """All from the second text on is part 1, where the rules for a pair do not tell parts themselves."""
    values = json.loads(core.to_str())
    pair = [item for piece in (values["post_processor"] or {}).get("pair", []) for item in piece.values()]
    if not any(item["type_id"] for item in pair):
        second = next((at for at, item in enumerate(pair) if item["id"] == "B"), len(pair))
        for item in pair[second:]:
            item["type_id"] = 1
    return tokenizers.Tokenizer.from_str(json.dumps(values))


# ---- files of BERT before there was tokenizer.json: vocab.txt, a piece in each line, and tokenizer_config.json


SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def read_word_pieces(folder: Path) -> tokenizers.Tokenizer:
    """Pieces of words, with [CLS] before and [SEP] behind every text."""
    path = folder / "vocab.txt"
    try:
        pieces = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")  # other ends of lines are pieces
    except UnicodeDecodeError as error:
        raise SaccadeError(f"{path} is not UTF-8 text ({error}); download it again") from None
    numbers = {piece: number for number, piece in enumerate(pieces)}
    lacking = [piece for piece in SPECIAL[1:4] if piece not in numbers]
    if lacking or len(numbers) < len(pieces):
        why = f"it lacks {lacking[0]}" if lacking else "a piece stands in it twice"
        raise SaccadeError(f"{path} is no vocabulary of word pieces ({why}); expected one piece in each line")
    settings = read_json(folder / "tokenizer_config.json")
    core = tokenizers.Tokenizer(models.WordPiece(numbers, unk_token="[UNK]", max_input_chars_per_word=100))
    core.normalizer = normalizers.BertNormalizer(
        lowercase=settings.get("do_lower_case", True), strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
    )  # fmt: skip
    core.pre_tokenizer, core.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    core.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(piece, numbers[piece]) for piece in ("[CLS]", "[SEP]")],
    )  # fmt: skip
    core.add_special_tokens([piece for piece in SPECIAL if piece in numbers])
    return core
