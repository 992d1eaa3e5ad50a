import json
import string
import subprocess
import sys
import time

import pytest
import tokenizers as library
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from saccade import allocation
from saccade.config import schema
from saccade.data.tokenization import tokenizers as tokenizers_module
from saccade.data.tokenization.tokenizers import (
    END,
    PAD,
    SPECIAL_TOKENS,
    START,
    UNKNOWN,
    Tokenizer,
    Tokenizers,
    train_tokenizers,
)
from saccade.errors import SaccadeError

PAIRS = [
    ("The house is small, isn't it?", "Das Haus ist klein, nicht wahr?"),
    ("Two young men are outside.", "Zwei junge Männer sind draußen."),
    (string.printable, "½ Ærøskøbing <end> <pad> 猫 \u2028 \x00 😀"),
] * 3
KINDS = ["bpe", "unigram", "wordpiece", "characters", "bytes", "words"]
EXACT = ["bpe", "unigram", "bytes"]  # any text; characters: any text of letters seen in training


def train(kind, size=400, pairs=PAIRS, **more):
    return train_tokenizers(schema.Tokenizer(kind=kind, size=size, **more), lambda: pairs)


ALL = {kind: train(kind).source for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_texts_end_with_end_and_have_no_other_special_id(kind):
    ids = ALL[kind].encode("The house <end> is <pad>small<start>")

    assert ids[-1] == END
    assert not {PAD, START, END} & set(ids[:-1])
    assert max(ids) < ALL[kind].size <= 400


@pytest.mark.parametrize("kind", EXACT)
@given(text=st.text())
@example("<end>")
@example(" <unknown><s> [PAD]</s>")
@example("  two  spaces \r\n\t and an e\u0301 ")
@settings(max_examples=60, deadline=None)
def test_every_text_comes_back_exactly(kind, text):
    tokenizer = ALL[kind]

    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(text=st.text(alphabet=sorted({letter for pair in PAIRS for text in pair for letter in text})))
@example("<end><unknown>")
@settings(max_examples=60, deadline=None)
def test_characters_seen_in_training_come_back_exactly(text):
    assert ALL["characters"].decode(ALL["characters"].encode(text)) == text


@given(words=st.lists(st.sampled_from(["The", "house", "small", ",", ".", "?", "Zwei", "junge"])))
@settings(max_examples=40, deadline=None)
def test_known_words_come_back_exactly(words):
    text = " ".join(words)
    known = train("words", pairs=[(text, "The house is small , . ? Zwei junge")]).source

    assert known.decode(known.encode(text)) == text


def test_spaces_between_words_are_kept():
    assert ALL["words"].decode(ALL["words"].encode("The house is small, isn't it?")) == "The house is small, isn't it?"
    assert ALL["wordpiece"].decode(ALL["wordpiece"].encode("Das Haus ist klein")) == "Das Haus ist klein"


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_text_is_end_alone(kind):
    assert ALL[kind].encode("") == [END]
    assert ALL[kind].decode([END]) == ""


@pytest.mark.parametrize("kind", KINDS)
def test_texts_without_a_letter_leave_only_the_special_pieces_and_bytes(kind):
    tokenizer = train(kind, pairs=[("", "")]).source

    assert tokenizer.size == (260 if kind in EXACT else 4)
    assert tokenizer.encode("x")[-1] == END


@pytest.mark.parametrize("kind", ["wordpiece", "characters", "words"])
def test_unknown_text_is_unknown_and_left_out_of_the_text(kind):
    ids = ALL[kind].encode("ξ")

    assert UNKNOWN in ids
    assert ALL[kind].decode(ids) == ""


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_stops_at_end_and_leaves_special_ids_out(kind):
    ids = ALL[kind].encode("Haus")

    assert ALL[kind].decode([START, PAD, *ids, *ids]) == "Haus"


@pytest.mark.parametrize("kind", KINDS)
def test_many_texts_are_encoded_like_each_alone(kind):
    texts = [text for pair in PAIRS for text in pair] + [""]

    assert ALL[kind].encode_all(texts) == [ALL[kind].encode(text) for text in texts]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["a" * 100_000, "word " * 20_000, " " * 100_000, "é<7" * 33_333])
def test_a_text_of_100_000_characters_is_encoded_in_no_time(kind, text):
    start = time.process_time()

    ALL[kind].encode(text)
    assert time.process_time() - start < 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_tokenizer_is_the_same_when_loaded(kind, tmp_path):
    Tokenizers(ALL[kind], ALL[kind]).save(tmp_path)

    loaded = Tokenizers.load(tmp_path)
    text = "The house <end> ξ 😀"
    assert loaded.is_shared and (tmp_path / "tokenizer.json").is_file()
    assert loaded.source.encode(text) == ALL[kind].encode(text)
    assert loaded.source.fingerprint() == ALL[kind].fingerprint()


def test_separate_vocabularies_are_two_files(tmp_path):
    both = train("words", shared=False)
    both.save(tmp_path)

    loaded = Tokenizers.load(tmp_path)
    assert not both.is_shared and not loaded.is_shared
    assert UNKNOWN in loaded.target.encode("house") and UNKNOWN not in loaded.source.encode("house")
    assert {file.name for file in tmp_path.iterdir()} == {"tokenizer.source.json", "tokenizer.target.json"}


LEARN = """
import hashlib, sys
from saccade.config import schema
from saccade.data.tokenization.tokenizers import train_tokenizers
texts = [line for line in open(sys.argv[1], encoding="utf-8")]
for kind in sys.argv[2:]:
    made = train_tokenizers(schema.Tokenizer(kind=kind, size=500), lambda: zip(texts, reversed(texts)))
    print(kind, made.source.fingerprint())
"""


def test_the_same_data_gives_the_same_tokenizer_in_every_process(tmp_path):
    text = "\n".join(f"{a}{b} {b}{a}{c}ing {c}" for a in "abcdef" for b in ("ten", "lo", "mi") for c in "xyz")
    (tmp_path / "text").write_text(text)
    command = [sys.executable, "-c", LEARN, str(tmp_path / "text"), *KINDS]

    first, second = (subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2))
    assert first == second
    assert len(first.splitlines()) == len(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_lowercase(kind):
    tokenizer = train(kind, lowercase=True).source

    assert tokenizer.encode("The HOUSE") == tokenizer.encode("the house")
    assert "T" not in tokenizer.decode(tokenizer.encode("The house"))


def test_sizes_are_kept():
    assert ALL["bytes"].size == 260
    assert train("characters", size=11).source.size == 11
    assert train("words", size=13).source.size == 13
    assert train("bpe", size=270).source.size == 270
    assert train("unigram", size=270).source.size == 270


def test_a_size_without_room_for_the_bytes_is_refused():
    with pytest.raises(SaccadeError, match=r"tokenizer.size must be at least 260 for bpe .* got 259"):
        train("bpe", size=259)


def test_labels_are_readable():
    assert ALL["characters"].convert_ids_to_tokens(ALL["characters"].encode("a b")) == ["a", "␣", "b", "<end>"]
    assert "".join(ALL["bpe"].convert_ids_to_tokens(ALL["bpe"].encode("Das Haus\n"))) == "Das␣Haus⏎<end>"
    assert ALL["bytes"].convert_ids_to_tokens(ALL["bytes"].encode("é ")) == ["<0xC3>", "<0xA9>", "␣", "<end>"]
    assert ALL["words"].convert_ids_to_tokens(ALL["words"].encode("The house"))[1] == "␣house"
    assert ALL["words"].convert_ids_to_tokens([PAD, START, UNKNOWN]) == ["<pad>", "<start>", "<unknown>"]


@given(text=st.text(max_size=20))
@settings(max_examples=30, deadline=None)
def test_every_id_has_a_label_without_white_space(text):
    for tokenizer in ALL.values():
        ids = tokenizer.encode(text)
        labels = tokenizer.convert_ids_to_tokens(ids)
        assert len(labels) == len(ids)
        assert not any(set(label) & set(" \n\t\r") or not label for label in labels)


# ---- an existing tokenizer.json


def foreign(vocabulary, unk_token, path):
    core = library.Tokenizer(models.WordLevel(vocabulary, unk_token=unk_token))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.enable_truncation(2)
    core.enable_padding(length=9)
    core.save(str(path))
    return schema.Tokenizer(kind="file", files=(str(path),))


def test_the_special_pieces_of_a_file_get_our_ids(tmp_path):
    words = ["b", "[UNK]", "a", "[CLS]", "[SEP]", "[PAD]", "c"]
    recipe = foreign({word: number for number, word in enumerate(words)}, "[UNK]", tmp_path / "t.json")
    both = train_tokenizers(recipe, lambda: ())

    assert both.is_shared and both.source.size == 7
    assert both.source.encode("a b c d [SEP] [PAD]") == [5, 4, 6, UNKNOWN, UNKNOWN, UNKNOWN, END]
    assert both.source.decode([START, 5, 4, 6, END, 4]) == "a b c"
    assert both.source.convert_ids_to_tokens([0, 1, 2, 3, 4]) == [*SPECIAL_TOKENS, "b"]
    both.save(tmp_path)
    assert Tokenizers.load(tmp_path).source.encode("a b c d") == [5, 4, 6, UNKNOWN, END]


def test_special_pieces_that_a_file_lacks_are_added(tmp_path):
    recipe = foreign({"oov": 0, "a": 1}, "oov", tmp_path / "t.json")
    tokenizer = train_tokenizers(recipe, lambda: ()).source

    assert tokenizer.size == 5
    assert tokenizer.encode("a b <end>") == [4, UNKNOWN, UNKNOWN, END]


def test_pieces_that_a_file_adds_to_every_text_are_not_added_twice(tmp_path):
    core = library.Tokenizer(models.BPE({"<s>": 0, "</s>": 1, "a": 2, "b": 3, "ab": 4}, [("a", "b")]))
    core.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    core.normalizer, core.decoder = normalizers.NFC(), decoders.Fuse()
    core.save(str(tmp_path / "t.json"))
    files = (str(tmp_path / "t.json"),)
    both = train_tokenizers(schema.Tokenizer(kind="file", files=files, shared=False, lowercase=True), lambda: ())

    assert not both.is_shared
    assert both.target.convert_ids_to_tokens(both.source.encode("abB")) == ["ab", "b", "<end>"]


def test_what_a_file_puts_before_texts_stays_there_unless_it_is_the_start(tmp_path):
    words = {"<start>": 0, "<s>": 1, "</s>": 2, "a": 3, "<unk>": 4, "<pad>": 5}
    core = library.Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    core.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    core.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizers.load(tmp_path).source

    assert tokenizer.library_ids == [5, 0, 2, 4, 1, 3] and tokenizer.prefix_ids == (4,)
    assert tokenizer.encode("a") == [4, 5, END] and tokenizer.decode([4, 5, END]) == "a"
    assert tokenizer.convert_ids_to_tokens([4]) == ["<s>"]


def test_two_files_may_share_one_numbering(tmp_path):
    words = {"<unk>": 0, "a": 1, "b": 2}
    files = [foreign(words, "<unk>", tmp_path / f"{name}.json").files[0] for name in "st"]
    both = train_tokenizers(schema.Tokenizer(kind="file", files=tuple(files)), lambda: ())
    assert both.source is not both.target and both.source.encode("a b") == both.target.encode("a b")
    foreign({"<unk>": 0, "b": 1, "a": 2}, "<unk>", tmp_path / "t.json")
    with pytest.raises(SaccadeError, match=r"s.json and .*t.json number their tokens differently, but"):
        train_tokenizers(schema.Tokenizer(kind="file", files=tuple(files)), lambda: ())


def test_a_file_that_uses_a_piece_twice_or_cannot_say_unknown_is_refused(tmp_path):
    twice = foreign({"<|endoftext|>": 0, "a": 1}, "<|endoftext|>", tmp_path / "t.json")
    with pytest.raises(SaccadeError, match="uses one token for two purposes .*they must differ"):
        train_tokenizers(twice, lambda: ())
    without = foreign({"a": 0}, "oov", tmp_path / "u.json")
    with pytest.raises(SaccadeError, match=r"u\.json cannot encode unknown text .* it needs a token like <unk>"):
        train_tokenizers(without, lambda: ())


@pytest.mark.parametrize("content", ["", "{}", "no json", json.dumps({"version": "1.0", "model": 7}), "\udcff"])
def test_a_file_that_is_no_tokenizer_is_named(tmp_path, content):
    (tmp_path / "t.json").write_bytes(content.encode("utf-8", errors="surrogateescape"))

    with pytest.raises(SaccadeError, match=r"t\.json is not a tokenizer of the `tokenizers` library"):
        Tokenizer.load(tmp_path / "t.json")


def test_missing_files_are_named(tmp_path):
    with pytest.raises(SaccadeError, match=r"tokenizer\.json not found; put it back: a run needs its tokenizer"):
        Tokenizers.load(tmp_path)
    with pytest.raises(
        SaccadeError, match=r'tokenizer.kind = "file" needs tokenizer.files with one tokenizer.json, .*, got 0'
    ):
        train_tokenizers(schema.Tokenizer(kind="file"), lambda: ())


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(SaccadeError, match="cannot write .*nowhere.tokenizer.json: No such file"):
        Tokenizers(ALL["bytes"], ALL["bytes"]).save(tmp_path / "nowhere")


def test_half_a_character_is_a_clear_error():
    with pytest.raises(SaccadeError, match="lone surrogate"):
        ALL["bytes"].encode("\ud800")


def test_wordpiece_is_trained_without_words_that_it_cannot_encode(monkeypatch):
    """The trainer would take time by the square of their length: minutes for an unbroken line."""
    trained_on = []
    repeat = tokenizers_module._repeat_words
    monkeypatch.setattr(tokenizers_module, "_repeat_words", lambda words: trained_on.append(words) or repeat(words))
    unbroken = "abcdefgh" * 25_000
    tokenizers = train_tokenizers(
        schema.Tokenizer(kind="wordpiece", size=60), lambda: [(f"ab ab {unbroken[:100]}", unbroken)]
    )
    assert sorted(trained_on[0], key=len) == ["ab", unbroken[:100]]
    assert tokenizers.source.encode(unbroken) == tokenizers.source.encode(unbroken[:101]) != []


@pytest.mark.parametrize("kind", ["characters", "bpe"])
def test_a_text_whose_encoding_does_not_fit_into_memory_is_refused(monkeypatch, kind):
    tokenizer = train(kind).source
    monkeypatch.setattr(allocation, "get_free_bytes", lambda: 10**8)
    with pytest.raises(SaccadeError, match="1,100,000 characters needs 220.0 MB of memory, but 100.0 MB are free; spl"):
        tokenizer.encode_all(["a" * 1_099_999, "b"])
    assert len(tokenizer.encode("ab" * 1000)) > 2
