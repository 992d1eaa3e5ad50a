"""Terminology constraints of predictors: which terms apply, how phrases are tokenized, what outputs contain."""

from random import Random
from typing import Any

import pytest

from saccade.config import schema
from saccade.config.load import load, override
from saccade.config.schema import Decoding
from saccade.data.tokenization.tokenizers import START, Tokenizer, train_tokenizers
from saccade.errors import SaccadeError
from saccade.predict.decode import decode
from saccade.predict.engines.cpu_fused import explain_request
from saccade.predict.engines.ctranslate import CTranslate2
from saccade.predict.engines.graphs import CudaGraphs
from saccade.predict.outputs import format_missing_terms_message
from saccade.predict.search.request import Request
from saccade.predict.search.trace import trace_search
from saccade.predict.terms import add_terms, contains_phrase, encode_phrases, read_terms, select_terms

LINES = ["abcd efg", "gfe", "a", "bad cab bag", "fed", ""]
BEAM = Decoding(beam=4)


@pytest.mark.parametrize(
    ("text", "phrase", "expected"),
    [
        ("a cat sleeps", "cat", True),
        ("concatenate", "cat", False),
        ("cats", "cat", False),
        ("concatenate the cat.", "cat", True),
        ("A Cat", "cat", False),
        ("C++, not C", "C++", True),
        ("the (cat)", "cat", True),
        ("new york city", "new york", True),
        ("anything", "", True),
        ("snake_case", "case", False),
    ],
)
def test_source_phrases_are_whole_words(text: str, phrase: str, expected: bool) -> None:
    assert contains_phrase(text, phrase) is expected


def test_terms_apply_where_their_source_occurs_each_target_once() -> None:
    terms = [("Hund", "dog"), ("Katze", "cat"), ("Hunde", "dog"), ("", "the")]
    assert select_terms(terms, "Hund und Hunde") == ["dog", "the"]


def train(kind: str, *texts: str) -> Tokenizer:
    settings = schema.Tokenizer(kind=kind, size=400, shared=True)  # type: ignore[arg-type]
    return train_tokenizers(settings, lambda: [(text, text) for text in texts]).target


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "characters", "bytes", "words"])
def test_phrases_are_tokenized_as_inside_of_a_sentence_and_at_its_start(kind: str) -> None:
    tokenizer = train(kind, "the dog sees a cat", "a dog", "x x x")
    [variants] = encode_phrases(tokenizer, ["dog"]).values()
    inside = tokenizer.encode("a dog")[:-1]
    [start] = [ids[1:] for ids in variants if ids[0] == START]
    [spaced] = [ids for ids in variants if ids[0] != START]
    assert start == tuple(tokenizer.encode("dog")[:-1])
    assert tuple(inside[-len(spaced) :]) == spaced
    assert tokenizer.decode([*tokenizer.encode("a cat")[:-1], *spaced]) == "a cat dog"


def test_scripts_without_spaces_and_punctuation_may_follow_a_word_directly() -> None:
    tokenizer = train("bytes", "x")
    for phrase, count in (("東京", 3), ("!", 3), ("dog", 2)):
        assert len(encode_phrases(tokenizer, [phrase])[phrase]) == count


def test_a_vocabulary_without_a_space_has_one_form() -> None:
    tokenizer = train("characters", "2008-06-21")
    ids = tuple(tokenizer.encode("06")[:-1])
    assert encode_phrases(tokenizer, ["06"]) == {"06": ((START, *ids), ids)}


def test_unknown_tokens_are_refused_by_name(make_predictor: Any) -> None:
    with pytest.raises(SaccadeError, match="the target phrase 'abz' has letters or words that the model does not know"):
        make_predictor().predict(["abc"], decoding=BEAM, terms=[("q", "abz")])


@pytest.mark.parametrize("seed", range(4))
def test_outputs_contain_the_phrases_of_random_terms(seed: int, make_predictor: Any) -> None:
    random, predictor = Random(seed), make_predictor(seed=seed)
    words = ["".join(random.choices("abcdefg", k=random.randint(1, 4))) for _ in range(4)]
    terms = [(source, " ".join(random.sample(words, 2))) for source in ["abcd", "gfe", "cab", ""]]
    for items, line in zip(predictor.candidates(LINES, decoding=Decoding(beam=3, n_best=2), terms=terms), LINES):
        for item in items if line else ():
            assert all(phrase in item.text for phrase in select_terms(terms, line))
            assert item.missing_terms == ()
            assert predictor.score([(line, item.text)]) == pytest.approx([item.log_prob], abs=1e-4)


def test_without_applicable_terms_outputs_are_the_same(make_predictor: Any) -> None:
    predictor = make_predictor(seed=3)
    expected = predictor.candidates(LINES, decoding=BEAM)
    assert predictor.candidates(LINES, decoding=BEAM, terms=[("q", "bag")]) == expected


def test_an_output_that_has_the_phrase_already_stays(make_predictor: Any) -> None:
    for seed in range(3):
        predictor = make_predictor(seed=seed)
        plain = predictor.candidates(LINES, decoding=Decoding(beam=4, n_best=3))
        for line, items in zip(LINES[:-1], plain):
            text = items[0].text.strip()
            if not text:
                continue
            again = predictor.candidates(
                [line], decoding=Decoding(beam=4, n_best=3), terms=[("", text[: len(text) // 2 + 1].strip())]
            )
            assert again[0][0].score >= items[0].score - 1e-5
            best = predictor.candidates([line], decoding=BEAM, terms=[("", text)])
            assert best[0][0].ids == items[0].ids


def test_phrases_without_space_are_reported_not_forgotten(make_predictor: Any) -> None:
    predictor, decoding = make_predictor(seed=3), Decoding(beam=4, max_length=4)
    [[item]] = predictor.candidates(["abc"], decoding=decoding, terms=[("", "aab"), ("", "gfe")])
    assert (item.missing_terms, "aab" in item.text) == (("gfe",), True)
    assert predictor.describe("abc", [item])["missing_terms"] == ["gfe"]
    [[item]] = predictor.candidates(["abc"], decoding=decoding, terms=[("", "gfedcba")])
    assert item.missing_terms == ("gfedcba",)
    message = format_missing_terms_message([("a", "b"), ("a", "c", "d")], 5)
    assert message.startswith(
        "2 of 5 outputs lack terms, for which the length limit has no space: 'a', 'b', 'c' and 1 "
    )


@pytest.mark.parametrize(
    "changes", [{"coverage_penalty": 0.2}, {"no_repeat_ngram": 2}, {"prefix": "ga"}, {"min_length": 9}]
)
def test_terms_work_with_other_settings(changes: dict, make_predictor: Any) -> None:
    predictor, decoding = make_predictor(seed=2), Decoding(beam=3, **changes)
    for items in predictor.candidates(LINES[:-1], decoding=decoding, terms=[("", "fee fee")]):
        assert "fee fee" in items[0].text
        assert items[0].text.startswith(changes.get("prefix", ""))
        assert len(items[0].ids) >= changes.get("min_length", 0)


def test_only_the_plain_search_decodes_with_phrases(make_predictor: Any) -> None:
    predictor, reason = make_predictor(seed=2), "outputs must contain given phrases (terms)"
    rows = predictor.codec.encode(["abc"], "line")
    request = Request([9], BEAM, predictor.codec.collate(rows), phrases=[[((5, 6),)]])
    with predictor.inference():
        assert explain_request(request) in (reason, explain_request(Request([9], BEAM, request.batch)))
        assert CudaGraphs("cpu").supports(predictor.model, request).reason == reason
        assert CTranslate2(object()).supports(predictor.model, request).reason == reason  # type: ignore[arg-type]
        result = decode(predictor.model, request)
    assert result.decision.engine == "plain"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beam": 1}, "terms need beam search; set beam = 4 and sample = false, got beam = 1"),
        ({"sample": True}, "terms need beam search; set beam = 4 and sample = false, got sample = true"),
    ],
)
def test_greedy_search_and_sampling_are_refused(changes: dict, message: str, make_predictor: Any) -> None:
    with pytest.raises(SaccadeError, match=message):
        make_predictor().predict(["a"], decoding=Decoding(**changes), terms=[("a", "b")])


@pytest.mark.parametrize("terms", ['"Hund"', '["Hund"]', '[["Hund"]]', '[["Hund", " "]]', '[["Hund", 3]]', "3"])
def test_other_values_than_pairs_are_refused(terms: str, make_predictor: Any) -> None:
    message = r'predict.terms: expected pairs of a source and a target phrase, such as \[\["Hund", "dog"\]\], got'
    with pytest.raises(SaccadeError, match=message):
        override(make_predictor().recipe, [f"predict.terms={terms}"])


def test_terms_are_settings_of_a_recipe(make_predictor: Any) -> None:
    recipe = override(make_predictor().recipe, ['predict.terms=[["a", "b c"], ["", "d"]]'])
    assert recipe.predict.terms == (("a", "b c"), ("", "d"))


def test_models_that_do_not_write_token_by_token_are_refused() -> None:
    for name in ("gpt2", "nat", "classify"):
        with pytest.raises(SaccadeError, match="predict.terms is for models that write token by token about an input"):
            add_terms(BEAM, [("a", "b")], load(name))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("Hund dog\n", "terms.tsv:1: expected a source phrase, one tab and a target phrase, got 'Hund dog'"),
        ("a\tb\nHund\t \n", "terms.tsv:2: expected"),
        ("a\tb\tc\n", "terms.tsv:1: expected"),
        ("\n\n", "terms.tsv has no terms; expected lines with a source phrase, a tab and a target phrase"),
    ],
)
def test_files_with_mistakes_are_refused(content: str, message: str, tmp_path: Any) -> None:
    (tmp_path / "terms.tsv").write_text(content)
    with pytest.raises(SaccadeError, match=message):
        read_terms(tmp_path / "terms.tsv")


def test_a_file_has_one_term_per_line(tmp_path: Any) -> None:
    (tmp_path / "terms.tsv").write_text("\ufeffHund\tdog\r\n\nrote Katze \t red cat\n\tthe\n", encoding="utf-8")
    assert read_terms(tmp_path / "terms.tsv") == (("Hund", "dog"), ("rote Katze", "red cat"), ("", "the"))


def test_a_traced_search_has_the_steps_of_the_search_that_found_the_output(make_predictor: Any) -> None:
    with trace_search() as tree:
        [[best]] = make_predictor(seed=3).candidates(["abcd"], decoding=Decoding(beam=3, terms=(("", "gag"),)))
    assert "gag" in best.text
    assert all(tuple(best.ids[:n]) in tree.kept_ids for n in range(len(best.ids) + 1))
    assert not any(item.parent == 0 for step in tree.steps[1:] for item in step)  # a second search would begin there
