"""Read the tokenizer of a foreign folder, with a placeholder token for each unused row of its tables; export ours."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from saccade.data.tokenization.tokenizer import (
    END,
    PAD,
    SHARED_FILE,
    SPECIAL_TOKEN_NAMES,
    SPECIAL_TOKENS,
    START,
    TARGET_FILE,
    Tokenizer,
    Tokenizers,
    check_ids,
    load_backend,
)
from saccade.errors import SaccadeError
from saccade.exchange.families.family import Config, Family, VocabularyMapping
from saccade.exchange.formats.hugging_face import read_json
from saccade.exchange.formats.sentencepiece import CONTROL, UNKNOWN, read_sentencepiece, to_tokenizer

SENTENCEPIECE_FILES = ("spiece.model", "tokenizer.model", "sentencepiece.model", "sentencepiece.bpe.model")
MARIAN_FILES = ("source.spm", "target.spm", "vocab.json")
TOKENIZER_CONFIG_FILE, ADDED_TOKENS_FILE = "tokenizer_config.json", "added_tokens.json"
# Token of an embedding row that the vocabulary does not use. Tokenizers of imported runs contain it: do not change it.
PLACEHOLDER_TOKEN = "<no piece {}>"
MASK_TOKENS = ("<mask>",)  # may be without a row: bart-large-cnn has none
ROLE_KEYS = {"pad_token_id": PAD, "eos_token_id": END}


def read_tokenizers(folder: Path, family: Family, size: int) -> list[tokenizers.Tokenizer]:
    """Read one tokenizer, or those of source and target, from whichever files exist; `size` is the number of rows."""
    found = _read_tokenizers(folder, family, size)
    for core in found:
        check_ids(core, str(folder))
    return found


def _read_tokenizers(folder: Path, family: Family, size: int) -> list[tokenizers.Tokenizer]:
    if (folder / SHARED_FILE).is_file():
        paths = [folder / name for name in (SHARED_FILE, TARGET_FILE) if (folder / name).is_file()]
        return [load_backend(path) for path in paths]
    if all((folder / name).is_file() for name in MARIAN_FILES):
        return _read_marian(folder, size)
    for name in SENTENCEPIECE_FILES:
        if (folder / name).is_file():
            core = to_tokenizer(read_sentencepiece(folder / name))
            settings = read_json(folder / TOKENIZER_CONFIG_FILE)
            extra = settings.get("extra_ids", len(family.added_tokens))
            if family.added_tokens and not 0 <= extra <= len(family.added_tokens):
                raise SaccadeError(
                    f"{folder / TOKENIZER_CONFIG_FILE}: extra_ids = {extra} is not supported; expected 0 to 100"
                )
            core.add_tokens(
                [
                    AddedToken(token, normalized=False)
                    for token in family.added_tokens[len(family.added_tokens) - extra :]
                ]
            )
            if family.complete_tokenizer is not None:
                family.complete_tokenizer(core, settings)
            return [_add_extra_tokens(folder, core)]
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return [_add_extra_tokens(folder, _read_byte_pairs(folder))]
    if (folder / "vocab.txt").is_file():
        return [_add_extra_tokens(folder, read_wordpiece(folder))]
    raise SaccadeError(
        f"{folder} has no tokenizer: expected tokenizer.json, a SentencePiece file "
        f"({', '.join(SENTENCEPIECE_FILES)}, or {' + '.join(MARIAN_FILES)}), vocab.json + merges.txt, or vocab.txt"
    )


def _add_extra_tokens(folder: Path, core: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Add the tokens of added_tokens.json, each with the id that it has there."""
    added = read_json(folder / ADDED_TOKENS_FILE)
    for token in sorted(added, key=added.__getitem__):
        core.add_tokens([AddedToken(token, normalized=False)])
        if core.token_to_id(token) != added[token]:
            raise SaccadeError(
                f"{folder / ADDED_TOKENS_FILE}: {token!r} would be {core.token_to_id(token)}, not {added[token]}; "
                "use the tokenizer.json of the model"
            )
    return core


def _read_marian(folder: Path, size: int) -> list[tokenizers.Tokenizer]:
    """Read Marian's two SentencePiece models, whose tokens share the ids of vocab.json."""
    sides = [read_sentencepiece(folder / name) for name in MARIAN_FILES[:2]]
    ids = {token: int(value) for token, value in read_json(folder / MARIAN_FILES[2]).items()}
    if sorted(ids.values()) != list(range(len(ids))) or "<unk>" not in ids:
        raise SaccadeError(
            f"{folder / MARIAN_FILES[2]} does not number its tokens from 0 on, <unk> among them; is it complete?"
        )
    ids |= {PLACEHOLDER_TOKEN.format(row): row for row in range(len(ids), size)}
    for side in sides:  # tokens without an id in vocab.json are encoded as unknown; they get ids behind all others
        for token, _, kind in side.pieces:
            if token not in ids and kind not in (UNKNOWN, CONTROL):
                ids[token] = len(ids)
    codes = [AddedToken(token, normalized=False) for token in ids if token.startswith(">>") and token.endswith("<<")]
    cores = [to_tokenizer(side, ids) for side in sides]
    for core in cores:
        core.add_tokens(codes)
        core.add_special_tokens([token for token in ("<pad>", "</s>") if token in ids])
    return cores


def _read_byte_pairs(folder: Path) -> tokenizers.Tokenizer:
    """Read vocab.json and merges.txt, the older format of GPT-2 and BART; BART adds <s> and </s>."""
    core = tokenizers.Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    spaced = bool(read_json(folder / TOKENIZER_CONFIG_FILE).get("add_prefix_space"))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    core.decoder = decoders.ByteLevel()
    vocabulary = core.get_vocab()
    special = [token for token in ("<s>", "<pad>", "</s>", "<unk>", "<|endoftext|>") if token in vocabulary]
    core.add_special_tokens(special)
    if "<mask>" in vocabulary:
        core.add_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
    if {"<s>", "</s>"} <= set(special):
        core.post_processor = processors.RobertaProcessing(
            ("</s>", vocabulary["</s>"]), ("<s>", vocabulary["<s>"]), trim_offsets=True, add_prefix_space=spaced
        )
    return core


# ---- import


def set_chat_tokens(
    config: Config, cores: Sequence[tokenizers.Tokenizer], family: Family
) -> list[tokenizers.Tokenizer]:
    """Set a post-processor with start and end tokens of a chat model, where config.json names unusual ones.

    Special tokens are then also recognized inside a text, such as those of a chat template.
    """
    roles = _find_chat_tokens(config, cores[0], family)
    if not roles:
        return list(cores)
    tokens = {role: cores[0].id_to_token(token_id) for role, token_id in roles.items()}
    values = json.loads(cores[0].to_str())
    core = tokenizers.Tokenizer.from_str(
        json.dumps({**values, "added_tokens": [{**token, "special": False} for token in values["added_tokens"]]})
    )
    core.post_processor = processors.TemplateProcessing(
        single=[*([tokens[START]] if START in tokens else []), "$A", tokens[END]],
        special_tokens=[(tokens[role], token_id) for role, token_id in roles.items()],
    )
    return [core]


def add_prompt(core: tokenizers.Tokenizer, prompt: Sequence[str]) -> None:
    """Set a post-processor that puts the tokens of `prompt` between the start token and every text."""
    first, last = _find_role_token(core, START), _find_role_token(core, END)
    if first is None or last is None:  # `find_start` reports it
        return
    start, end = str(core.id_to_token(first)), str(core.id_to_token(last))
    ids: list[tuple[str, Any]] = [(token, core.token_to_id(token)) for token in dict.fromkeys(prompt)]
    core.post_processor = processors.TemplateProcessing(
        single=[start, *prompt, "$A", end], special_tokens=[(start, first), *ids, (end, last)]
    )


def _find_chat_tokens(config: Config, core: tokenizers.Tokenizer, family: Family) -> dict[int, int]:
    """Return the ids of start and end token of a chat model; nothing if the end token has a usual name."""
    start, end = config.values.get("bos_token_id"), get_end_id(config, core)
    roles = {**({} if start in (end, None) else {START: start}), END: end}
    added = core.get_added_tokens_decoder()
    if (
        family.has_encoder
        or end == _find_role_token(core, END)
        or any(token_id not in added for token_id in roles.values())
    ):
        return {}
    return roles


def get_end_id(config: Config, core: tokenizers.Tokenizer) -> Any:
    """Return eos_token_id; of a list of them, the one with a usual name, else the first."""
    end = config.values.get("eos_token_id")
    if not isinstance(end, list):
        return end
    usual = _find_role_token(core, END)
    return usual if usual in end else end[0]


def find_stop_tokens(config: Config, core: tokenizers.Tokenizer) -> list[str]:
    """Return the tokens that end an output besides END: those of a list in eos_token_id."""
    ends = config.values.get("eos_token_id")
    others = [token_id for token_id in ends if token_id != get_end_id(config, core)] if isinstance(ends, list) else []
    tokens = []
    for token_id in others:
        if (token := core.id_to_token(token_id)) is None:
            raise config.build_error("eos_token_id", f"the tokenizer has no token {token_id}")
        tokens.append(token)
    return tokens


def _find_role_token(core: tokenizers.Tokenizer, role: int) -> int | None:
    """Return the id of the token with a usual name of this role (PAD, START, END); None if there is none."""
    found = (core.token_to_id(name) for name in SPECIAL_TOKEN_NAMES[role])
    return next((token_id for token_id in found if token_id is not None), None)


def adopt_tokenizers(cores: Sequence[tokenizers.Tokenizer], *, size: int, start: str) -> Tokenizers:
    """Build our tokenizers for tables of `size` rows; add a START token if they have none."""
    adopted = []
    for core in cores:
        tokens = core.get_vocab()
        last = max(row for token, row in tokens.items() if token not in MASK_TOKENS)
        if len(cores) == 1 and last >= size:
            raise SaccadeError(
                f"the tokenizer has {max(tokens.values()) + 1} tokens, but the embedding has {size} rows; "
                "is it the tokenizer of these weights?"
            )
        fillers = [PLACEHOLDER_TOKEN.format(row) for row in range(max(tokens.values()) + 1, size)]
        core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in fillers])
        if start != "own":
            core.add_special_tokens([AddedToken(SPECIAL_TOKENS[START], special=True, normalized=False)])
        adopted.append(Tokenizer(_encode_special_tokens_in_text(core)))
    return Tokenizers(adopted[0], adopted[-1])


def _encode_special_tokens_in_text(core: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Make special tokens such as <mask> and <extra_id_0> recognized inside a text."""
    excluded = {*core.encode("").tokens, *SPECIAL_TOKENS, "<s>", "</s>", "<unk>", "<|endoftext|>"}
    added = [token.content for token in core.get_added_tokens_decoder().values() if token.special]
    visible = {token for token in added if token not in excluded and not token.startswith(PLACEHOLDER_TOKEN[:9])}
    if not visible:  # skips the slow serialization
        return core
    values = json.loads(core.to_str())
    for token in values["added_tokens"]:
        token["special"] = token["special"] and token["content"] not in visible
    return tokenizers.Tokenizer.from_str(json.dumps(values))


def map_vocabulary(tokenizer: Tokenizer, size: int) -> VocabularyMapping:
    """Map our ids to `size` rows; tokens without a row of their own use that of the unknown token."""
    unknown = tokenizer.library_ids[tokenizer.unknown]
    added = [token for token in tokenizer.settings["added_tokens"] if token["special"]]
    special = {token["id"] for token in added} | set(tokenizer.library_ids[:4])
    rows = [theirs if theirs < size else (-1 if theirs in special else unknown) for theirs in tokenizer.library_ids]
    unmapped = [ours for ours, theirs in enumerate(tokenizer.library_ids) if theirs >= size]
    return VocabularyMapping(rows, unmapped, size)


def find_start(config: Config, cores: Sequence[tokenizers.Tokenizer], family: Family) -> str:
    """Return the start token of the decoder by its role: "pad", "end", or "own" for a token of its own.

    "begin" is a token that the tokenizer puts before every text, too.
    """
    core = cores[0]
    named = {role: _find_role_token(core, role) for role in (PAD, START, END)} | _find_chat_tokens(config, core, family)
    if family.has_encoder:
        first = config.take("decoder_start_token_id", None)
        first = config.take("pad_token_id") if first is None else first
    else:
        first = config.take("bos_token_id", None)
        first = get_end_id(config, core) if first is None else first  # the end of one document starts the next
    for key, role in ROLE_KEYS.items():
        there = named[role]
        alone = not family.has_encoder or config.values.get(key) == config.values.get("eos_token_id")
        padding = key == "pad_token_id" and alone  # not attended to, so any id will do
        several = key == "eos_token_id" and not family.has_encoder  # the others end outputs, too
        found = get_end_id(config, core) if several else config.take(key, None)
        if (there is None or found != there) and not padding:
            its = " has no such token" if there is None else f" uses {core.id_to_token(there)!r}, {there}"
            raise config.build_error(key, f"the tokenizer{its}; do they belong together?")
        config.take(key, None)
    starts = {
        named[role]: name for role, name in ((START, "own"), (PAD, "pad"), (END, "end")) if named[role] is not None
    }
    if first not in starts:
        key = "decoder_start_token_id" if family.has_encoder else "bos_token_id"
        raise config.build_error(key, "expected the id of the padding, end or start token")
    is_prefix = family.has_encoder and family.get_prompt is None and first in core.encode("").ids[:1]
    return "begin" if is_prefix and starts[first] == "own" else starts[first]


def find_encoder_start(cores: Sequence[tokenizers.Tokenizer]) -> str:
    """Return `find_start` for an encoder: "begin" if the tokenizer puts its start token before a text, else "own"."""
    named = Tokenizer(tokenizers.Tokenizer.from_str(cores[0].to_str()))
    return "begin" if named.library_ids[START] in cores[0].encode("").ids else "own"


# ---- export


def export_tokenizer(tokenizer: Tokenizer, size: int, *, append_end: bool, segments: bool = False) -> str:
    """Return a tokenizer.json without the tokens that saccade added.

    `append_end`: put the end token behind every text. `segments`: give the second text of a pair segment id 1.
    """
    values: dict[str, Any] = json.loads(tokenizer.to_json())
    if tokenizer.text_specials:
        values["post_processor"] = None
    values["added_tokens"] = [
        token for token in values["added_tokens"]
        if token["id"] < size and not token["content"].startswith(PLACEHOLDER_TOKEN[:9])
    ]  # fmt: skip
    core = tokenizers.Tokenizer.from_str(json.dumps(values))
    if append_end and core.post_processor is None:
        end = core.id_to_token(tokenizer.library_ids[END])
        core.post_processor = processors.TemplateProcessing(
            single=["$A", end], pair=["$A", end, "$B", end], special_tokens=[(end, tokenizer.library_ids[END])]
        )
    return str((_add_segment_ids(core) if segments else core).to_str(pretty=True))


def _add_segment_ids(core: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Give segment id 1 to everything from the second text on, unless the pair template has segment ids already."""
    values = json.loads(core.to_str())
    pair = [item for token in (values["post_processor"] or {}).get("pair", []) for item in token.values()]
    if not any(item["type_id"] for item in pair):
        second = next((at for at, item in enumerate(pair) if item["id"] == "B"), len(pair))
        for item in pair[second:]:
            item["type_id"] = 1
    return tokenizers.Tokenizer.from_str(json.dumps(values))


# ---- the older format of BERT: vocab.txt with one token in each line, and tokenizer_config.json


BERT_SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def read_wordpiece(folder: Path) -> tokenizers.Tokenizer:
    """Read a WordPiece vocabulary (vocab.txt); the tokenizer adds [CLS] before and [SEP] behind every text."""
    path = folder / "vocab.txt"
    try:
        tokens = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")  # other line separators are tokens
    except UnicodeDecodeError as error:
        raise SaccadeError(f"{path} is not UTF-8 text ({error}); download it again") from None
    ids = {token: index for index, token in enumerate(tokens)}
    lacking = [token for token in BERT_SPECIAL_TOKENS[1:4] if token not in ids]
    if lacking or len(ids) < len(tokens):
        why = f"it lacks {lacking[0]}" if lacking else "it contains a token twice"
        raise SaccadeError(f"{path} is not a WordPiece vocabulary ({why}); expected one token in each line")
    settings = read_json(folder / "tokenizer_config.json")
    core = tokenizers.Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
    core.normalizer = normalizers.BertNormalizer(
        lowercase=settings.get("do_lower_case", True), strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
    )  # fmt: skip
    core.pre_tokenizer, core.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    core.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, ids[token]) for token in ("[CLS]", "[SEP]")],
    )  # fmt: skip
    core.add_special_tokens([token for token in BERT_SPECIAL_TOKENS if token in ids])
    return core
