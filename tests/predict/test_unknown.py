"""Replacement of unknown words in outputs."""

from pathlib import Path
from typing import Any

import pytest
import tokenizers as library
import torch
from tokenizers import models, pre_tokenizers, processors

from saccade.config import schema
from saccade.config.load import save, validate
from saccade.config.schema import Decoding
from saccade.data.tokenization.lexicon import LEXICON_FILE, LexiconEntry
from saccade.data.tokenization.tokenizers import UNKNOWN, Tokenizer, Tokenizers, train_tokenizers
from saccade.errors import SaccadeError
from saccade.model.build.model import build
from saccade.model.run import named_weights, write_tensors
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.unknown import disable_if_complete, find_word_span, replace_unknown_words
from saccade.runs import RECIPE, WEIGHTS

PAIRS = [("the man plays a ball .", "der Mann spielt einen Ball ."), ("the dog (a dog)", "der Hund (ein Hund)")]
STACK = {"kind": "recurrent", "dim": 16}


def tokenizers(kind: str = "words", *, size: int = 300) -> Tokenizers:
    return train_tokenizers(schema.Tokenizer(kind=kind, size=size, shared=False), lambda: PAIRS)


def one_hot_weights(*places: int, length: int) -> list[list[float]]:
    return torch.eye(length)[list(places)].tolist()


def replace(
    ids: list[int], places: tuple[int, ...], source: str, lexicon: dict[str, LexiconEntry] | None = None
) -> str:
    both = tokenizers()
    length = len(both.source.encode(source))
    return replace_unknown_words(
        ids, one_hot_weights(*places, length=length), source=source, tokenizers=both, lexicon=lexicon or {}
    )


def test_an_unknown_word_becomes_the_source_word_with_the_largest_weight() -> None:
    """Luong et al. 2015, section 3.3: copied with its letters and the space before it."""
    both = tokenizers()
    der, spielt = (both.target.encode(word)[0] for word in ("der", "spielt"))
    stop = both.target.encode("Ball .")[-2]
    assert replace([der, UNKNOWN, spielt, UNKNOWN, stop], (0, 1, 2, 4, 5), "the Zorro plays a Xylophon .") == (
        "der Zorro spielt Xylophon ."
    )
    assert replace([UNKNOWN, spielt], (0, 1), "Zorro plays") == "Zorro spielt"
    assert replace([der, spielt], (0, 0), "Zorro plays") == "der spielt"


def test_prefix_tokens_are_no_words() -> None:
    words = {piece: number for number, piece in enumerate(["<start>", "<s>", "</s>", "<unk>", "<pad>", "der"])}
    core = library.Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    both = Tokenizer(core)
    alignment = one_hot_weights(0, 2, length=len(both.encode("the Zorro")))
    ids = [both.encode("der")[1], UNKNOWN]
    assert (
        replace_unknown_words(ids, alignment, source="the Zorro", tokenizers=Tokenizers(both, both), lexicon={})
        == "der Zorro"
    )


def test_a_word_keeps_the_space_before_it() -> None:
    both = tokenizers()
    der, bracket = both.target.encode("der")[0], both.target.encode("Hund (")[-2]
    assert replace([der, bracket, UNKNOWN], (0, 1, 2), "the (Zorro)") == "der (Zorro"
    assert replace([der, UNKNOWN], (0, 0), "Zorro (a)") == "der Zorro"


def test_the_end_of_the_source_is_no_word() -> None:
    both = tokenizers()
    [weights] = torch.tensor([[0.1, 0.3, 0.6]]).tolist()
    assert replace_unknown_words([UNKNOWN], [weights], source="the Zorro", tokenizers=both, lexicon={}) == "Zorro"


def test_a_lexicon_translates_the_word() -> None:
    lexicon = {
        "xylophone": LexiconEntry("Xylophon", 0.9),
        "the": LexiconEntry("Tretboot", 0.001),
        "plays": LexiconEntry("zupft"),
    }
    both = tokenizers()

    def replace_one(*weights: float) -> str:
        return replace_unknown_words(
            [UNKNOWN], [[*weights, 0.0]], source="the Xylophone plays x", tokenizers=both, lexicon=lexicon
        )

    assert replace_one(0.0, 1.0, 0.0, 0.0) == "Xylophon"
    assert replace_one(0.7, 0.3, 0.0, 0.0) == "Xylophon"  # 0.3 x 0.9 is more than 0.7 x 0.001
    assert replace_one(1.0, 0.0, 0.0, 0.0) == "Tretboot"
    # without a number an entry counts as much as a word without an entry
    assert replace_one(0.0, 0.0, 0.6, 0.4) == "zupft"
    assert replace_one(0.0, 0.0, 0.4, 0.6) == "x"


@pytest.mark.parametrize(
    ("kind", "word"),
    [("words", "xylo"), ("bpe", "xylo"), ("wordpiece", "xylo"), ("bytes", "xylo"), ("characters", "y")],
)
def test_a_word_is_all_of_its_subwords(kind: str, word: str) -> None:
    """Tokens of the letter y; characters are no subwords."""
    text = "the  xylo-(xy) ß xylo"
    core = tokenizers(kind).source.backend
    read = core.encode(text, add_special_tokens=False)
    whole = core.pre_tokenizer is not None
    found = set()
    for at, (first, last) in enumerate(read.offsets):
        begin, end = find_word_span(text, read, at, merge_subwords=whole)
        assert begin < end or not text[first:last].strip()
        if first <= 6 < last or (first <= 18 < last and kind != "bytes"):
            found.add(text[begin:end])
    assert found == ({"xylo-(xy)"} if kind == "bytes" else {word})


def test_complete_vocabularies_leave_nothing_to_replace() -> None:
    decoding = Decoding(replace_unknown=True)
    for kind, there in (("words", True), ("characters", True), ("wordpiece", True), ("bpe", False), ("bytes", False)):
        assert disable_if_complete(decoding, tokenizers(kind).target).replace_unknown is there
    assert not disable_if_complete(Decoding(), tokenizers().target).replace_unknown


# ---- in a predictor


def predictor(*, writer: dict[str, Any] | None = None, lexicon: dict[str, LexiconEntry] | None = None) -> Predictor:
    recipe = validate(
        {
            "tokenizer": {"kind": "words", "shared": False},
            "reader": {"stack": STACK, "positions": {"kind": "none"}},
            "writer": {
                "stack": writer or {**STACK, "attention": "additive"},
                "positions": {"kind": "none"},
                "tie": "none",
            },
            "data": {"max_length": 12},
        }
    )
    torch.manual_seed(1)
    both = tokenizers()
    model = build(recipe, source_size=both.source.size, target_size=both.target.size)
    with torch.no_grad():
        model.writer.output.weight.mul_(4)
    return prefer_unknown(Predictor(model, recipe=recipe, tokenizers=both, lexicon=lexicon))


def prefer_unknown(predictor: Predictor) -> Predictor:
    """Raise the logit of the unknown token."""
    more = torch.zeros(predictor.tokenizers.target.size)
    more[UNKNOWN] = 2.0
    predictor.model.writer.output.register_forward_hook(lambda module, given, logits: logits + more)
    return predictor


DECODINGS = [
    Decoding(beam=1, min_length=3, max_length=4),
    Decoding(beam=3, n_best=2, min_length=3, max_length=4),
    Decoding(sample=True, n_best=3, min_length=3, max_length=4),
]
LINES = ["the zorro plays .", "", "a xylophone", "qqq ball (xxx)"]


@pytest.mark.parametrize("decoding", DECODINGS)
def test_texts_follow_from_alignments(decoding: Decoding) -> None:
    one = predictor(lexicon={"zorro": LexiconEntry("Fuchs", 0.5)})
    wanted = decoding.model_copy(update={"replace_unknown": True})
    found = one.candidates(LINES, decoding=wanted, align=True)
    unknown = 0
    for line, outputs in zip(LINES, found, strict=True):
        for item in outputs:
            unknown += item.ids.count(UNKNOWN)
            expected = replace_unknown_words(
                item.ids, item.alignment, source=line, tokenizers=one.tokenizers, lexicon=one.lexicon
            )  # fmt: skip
            assert item.text == expected
    assert unknown > 3
    plain = one.candidates(LINES, decoding=wanted)
    if not decoding.sample:
        assert [[(item.ids, item.text) for item in outputs] for outputs in plain] == [
            [(item.ids, item.text) for item in outputs] for outputs in found
        ]
    assert all(item.alignment is None for outputs in plain for item in outputs)
    assert not any(UNKNOWN in item.ids for outputs in one.candidates(LINES, decoding=decoding) for item in outputs)


def test_batches_streams_and_single_lines_agree() -> None:
    one = predictor(lexicon={"zorro": LexiconEntry("Fuchs", 0.5)})
    for decoding in DECODINGS[:2]:
        wanted = decoding.model_copy(update={"replace_unknown": True})
        expected = one.predict(LINES, decoding=wanted)
        assert [one.predict([line], decoding=wanted)[0] for line in LINES] == expected
        assert [outputs[0].text for outputs in one.stream(iter(LINES), decoding=wanted)] == expected
        assert any(word in expected[0] for word in ("the", "Fuchs", "plays"))


def test_replacing_needs_attention() -> None:
    with pytest.raises(SaccadeError, match="does not attend to what it reads.* ask without .*replace_unknown"):
        predictor(writer=STACK).predict(["zorro"], decoding=Decoding(beam=1, replace_unknown=True))


def test_the_lexicon_is_part_of_the_run(tmp_path: Path) -> None:
    one = predictor()
    save(one.recipe, tmp_path / RECIPE)
    one.tokenizers.save(tmp_path)
    write_tensors(named_weights(one.model), tmp_path / WEIGHTS)
    assert Predictor.load(tmp_path, device="cpu").lexicon == {}
    (tmp_path / LEXICON_FILE).write_text("zorro\tFuchs\t1\n", encoding="utf-8")
    loaded = prefer_unknown(Predictor.load(tmp_path, device="cpu"))
    decoding = Decoding(beam=1, min_length=3, max_length=4, replace_unknown=True)
    assert loaded.lexicon == {"zorro": LexiconEntry("Fuchs", 1.0)}
    assert "Fuchs" in loaded.predict(["zorro zorro"], decoding=decoding)[0]
