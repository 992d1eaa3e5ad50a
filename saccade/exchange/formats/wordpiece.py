"""The files of BERT before there was tokenizer.json: vocab.txt, a piece in each line, and tokenizer_config.json."""

from __future__ import annotations

from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from saccade.errors import SaccadeError
from saccade.exchange.formats.read import read_json

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
