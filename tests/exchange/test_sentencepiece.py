"""Converted SentencePiece models compared with the SentencePiece library."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from saccade.errors import SaccadeError
from saccade.exchange.families.catalogue import FAMILIES
from saccade.exchange.formats.sentencepiece import read_sentencepiece, to_tokenizer
from saccade.exchange.formats.vocabulary import adopt_tokenizers, map_vocabulary, read_tokenizers
from saccade.exchange.importing import import_folder
from saccade.model.run import load_run

library = pytest.importorskip("sentencepiece")
TEXTS = [
    "the quick brown fox", "  spaces   here and  there ", "Ünïcödé ﬁne ½ ① ＡＢＣ", "tabs\tand\nlines", "", " ",
    "日本語 テキスト", "a", "numbers 12345, 3.14!", "▁ already", "unknown 🦊🦊 fox", "the  end ",
]  # fmt: skip
CORPUS = ["the quick brown fox jumps over the lazy dog", "numbers 12345 and 3.14!", "Ünïcödé text, here and there"] * 30


@pytest.fixture
def learn(tmp_path: Path) -> Callable[..., Path]:
    def learned(name: str, **options: Any) -> Path:
        settings = {"vocab_size": 70, "hard_vocab_limit": False, "minloglevel": 2, **options}
        path = tmp_path / name
        with path.open("wb") as file:
            library.SentencePieceTrainer.train(sentence_iterator=iter(CORPUS), model_writer=file, **settings)
        return path

    return learned


KINDS = [
    {"model_type": "unigram"},
    {"model_type": "bpe"},
    {"model_type": "unigram", "byte_fallback": True, "vocab_size": 330},
    {"model_type": "bpe", "byte_fallback": True, "vocab_size": 340},
    {"model_type": "unigram", "normalization_rule_name": "identity"},
    {"model_type": "unigram", "add_dummy_prefix": False, "remove_extra_whitespaces": False},
    {"model_type": "unigram", "user_defined_symbols": ["<sep>", "fox"]},
    {"model_type": "unigram", "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},  # of T5
]


@pytest.mark.parametrize("options", KINDS, ids=lambda options: "-".join(map(str, options.values())))
def test_ids_and_texts_are_those_of_the_library(learn: Callable[..., Path], options: dict[str, Any]) -> None:
    path = learn("m.model", **options)
    theirs = library.SentencePieceProcessor(model_file=str(path))
    core = to_tokenizer(read_sentencepiece(path))
    for text in TEXTS:
        ids = theirs.encode(text)
        assert core.encode(text, add_special_tokens=False).ids == ids, text
        if theirs.unk_id() not in ids and options.get("add_dummy_prefix", True) and "▁" not in text:
            assert core.decode(ids) == theirs.decode(ids), text


def test_sentinels_are_added_as_t5_does(learn: Callable[..., Path], tmp_path: Path) -> None:
    path = learn("spiece.model", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    count = library.SentencePieceProcessor(model_file=str(path)).get_piece_size()
    (core,) = read_tokenizers(tmp_path, FAMILIES["t5"], count + 128)
    assert core.token_to_id("<extra_id_99>") == count and core.token_to_id("<extra_id_0>") == count + 99
    source = adopt_tokenizers([core], size=count + 128, start="pad").source
    assert source.size == count + 128 + 1 and source.prefix_ids == ()
    theirs = [source.library_ids[number] for number in source.encode("fox <extra_id_0> dog")]
    assert theirs == [*core.encode("fox").ids, count + 99, *core.encode("dog").ids, 1]
    assert map_vocabulary(source, count + 128).their_ids[source.start] == -1


def test_marian_has_two_models_with_shared_ids(learn: Callable[..., Path], make: Any, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder, model = make("marian")
    (folder / "tokenizer.json").unlink()
    sides = [learn(f"{folder.name}/{name}.spm", vocab_size=size) for name, size in (("source", 55), ("target", 70))]
    loaded = [library.SentencePieceProcessor(model_file=str(path)) for path in sides]
    pieces = {side.id_to_piece(i): 0 for side in loaded for i in range(3, side.get_piece_size())}
    left_out = loaded[0].encode("quick", out_type=str)[0]
    names = ["</s>", "<unk>", ">>de<<", *(piece for piece in pieces if piece != left_out), "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(names)}))
    with warnings.catch_warnings(action="ignore"):  # about an optional package
        theirs = transformers.MarianTokenizer(
            vocab=str(folder / "vocab.json"), source_spm=str(sides[0]), target_spm=str(sides[1])
        )
    model.resize_token_embeddings(len(names), mean_resizing=False)
    model.config.pad_token_id = model.config.decoder_start_token_id = len(names) - 1
    model.save_pretrained(folder)
    both = load_run(import_folder(str(folder), str(tmp_path / "run")).path).tokenizers
    assert not both.is_shared and both.source.backend.get_vocab() == both.target.backend.get_vocab()
    texts = [text for text in TEXTS if "▁" not in text] + [">>de<< the lazy dog", "quick quick fox"]
    for text in texts:
        ours = [map_vocabulary(both.source, len(names)).their_ids[number] for number in both.source.encode(text)]
        assert ours == theirs(text).input_ids, text
        ours = [map_vocabulary(both.target, len(names)).their_ids[number] for number in both.target.encode(text)]
        assert ours == theirs(text_target=text).input_ids, text


def test_broken_files_are_reported(learn: Callable[..., Path], tmp_path: Path) -> None:
    path = learn("m.model")
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"\x0f" + whole, b"", b"\x0a\x7f"):
        path.write_bytes(content)
        with pytest.raises(SaccadeError, match=r"m.model is not a complete SentencePiece model .*; download it again"):
            read_sentencepiece(path)
    other = learn("w.model", model_type="word")
    with pytest.raises(SaccadeError, match="expected a SentencePiece model of type unigram, or bpe without"):
        read_sentencepiece(other)
    for name in ("source.spm", "target.spm"):
        (tmp_path / name).write_bytes(whole)
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 2}')
    with pytest.raises(SaccadeError, match="does not number its tokens from 0 on, <unk> among them"):
        read_tokenizers(tmp_path, FAMILIES["marian"], 2)


def test_older_bpe_files_are_read(make: Any, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    core = tokenizers.ByteLevelBPETokenizer()
    core.train_from_iterator(CORPUS, vocab_size=320, special_tokens=[*special, "<mask>"], show_progress=False)
    core.save_model(str(tmp_path))
    (read,) = read_tokenizers(tmp_path, FAMILIES["bart"], 320)
    source = adopt_tokenizers([read], size=320, start="end").source
    files = {"vocab": str(tmp_path / "vocab.json"), "merges": str(tmp_path / "merges.txt")}
    theirs = transformers.RobertaTokenizer(**files, mask_token=tokenizers.AddedToken("<mask>", lstrip=True))
    for text in [*TEXTS, "a <mask> fox"]:
        assert [source.library_ids[number] for number in source.encode(text)] == theirs(text).input_ids, text
    assert all(source.decode(source.encode(text)) == text for text in TEXTS)
