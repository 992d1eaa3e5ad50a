"""Labels of texts: classes with probabilities, numbers, tags, attention."""

import math

import pytest
import torch

from saccade.config.load import validate
from saccade.data.tokenization.labels import Labels
from saccade.data.tokenization.tokenizers import Tokenizers, train_tokenizers
from saccade.errors import SaccadeError
from saccade.model.build.model import build
from saccade.predict.predictors.labels import Labeller
from saccade.score.labels import evaluate_labels

TEXTS = ["the old dog sleeps", "a small cat", "one", "the dog"]
LABELS = {
    "label": Labels("label", ("no", "so", "yes")),
    "pair": Labels("label", ("no", "yes"), num_texts=2),
    "number": Labels("number"),
    "tags": Labels("tags", ("A", "B", "C")),
}
OBJECTIVES = {"label": "label", "number": "regress", "tags": "tag"}


@pytest.fixture(params=["label", "number", "tags"])
def kind(request):
    return request.param


def labeller(kind, **data):
    labels = LABELS[kind]
    recipe = validate({
        "task": "classify", "data": {"max_length": 30, **data}, "tokenizer": {"kind": "characters"},
        "reader": {"stack": {"layers": 2, "dim": 12, "heads": 2, "ff": 17}}, "writer": {"kind": labels.kind},
        "objectives": [{"kind": OBJECTIVES[labels.kind]}],
    })  # fmt: skip
    source = train_tokenizers(recipe.tokenizer, lambda: [(text,) for text in TEXTS]).source
    tokenizers = Tokenizers(source, source, labels)
    torch.manual_seed(5)
    model = build(recipe, source_size=source.size, target_size=tokenizers.target_size).eval()
    return Labeller(model, recipe=recipe, tokenizers=tokenizers)


def test_labels_do_not_depend_on_the_batch(kind):
    model = labeller(kind)
    together = model.predict(TEXTS)
    alone = [model.predict([text])[0] for text in TEXTS]
    streamed = [found[0].text for found in model.stream(f"{text}\n" for text in TEXTS)]
    if kind == "number":  # float32 is summed in another order, which the last of its six digits may show
        for labels in (alone, streamed):
            assert [float(label) for label in labels] == pytest.approx([float(label) for label in together], rel=3e-6)
    else:
        assert together == alone == streamed


@pytest.mark.parametrize(("batch_tokens", "sizes"), [(1, [1, 1, 1, 1]), (4096, [4])])
def test_batches_are_as_large_as_is_asked_for(monkeypatch, batch_tokens, sizes):
    model, seen = labeller("label"), []
    read = model.model.read
    monkeypatch.setattr(model.model, "read", lambda batch: seen.append(batch.num_rows) or read(batch))
    model.predict(TEXTS, batch_tokens=batch_tokens)
    assert seen == sizes


def test_every_word_has_a_tag():
    model = labeller("tags")
    found = model.describe("the old dog", model.candidates(["the old dog"])[0])
    assert found["words"] == ["the", "old", "dog"]
    assert len(found["tags"]) == len(found["probabilities"]) == 3
    assert set(found["tags"]) <= {"A", "B", "C"}


def test_classes_come_with_their_probabilities():
    model = labeller("label")
    [candidates] = model.candidates(["a cat"], decoding=model.recipe.predict.model_copy(update={"n_best": 9}))
    assert [len(candidates), len({item.text for item in candidates})] == [3, 3]
    assert sum(math.exp(item.log_prob) for item in candidates) == pytest.approx(1)
    found = model.describe("a cat", candidates)
    assert found["label"] == candidates[0].text
    assert found["probability"] == pytest.approx(max(found["probabilities"].values()))
    assert model.score([("a cat", candidates[1].text)]) == pytest.approx([candidates[1].log_prob])


def test_a_number_is_described_as_one():
    model = labeller("number")
    [[found]] = model.candidates(["a cat"])
    assert float(found.text) == pytest.approx(model.describe("a cat", [found])["value"], rel=1e-4)


def test_an_empty_line_stays_empty(kind):
    assert labeller(kind).predict(["", "the dog"])[0] == ""


def test_pairs_are_one_line_with_a_tab():
    model = labeller("pair")
    one, other = model.candidates(["the dog\ta cat", "a cat\tthe dog"])
    assert one[0].log_probs != other[0].log_probs
    for line, count in (("the dog", 1), ("a\tb\tc", 3), ("a\t", 2)):
        with pytest.raises(SaccadeError, match=f"line 1: the model labels two texts with a tab .*, got {count}"):
            model.predict([line])


def test_too_long_a_line_is_refused_by_number_or_truncated():
    model = labeller("label")
    with pytest.raises(SaccadeError, match="line 3 has 41 tokens, but the model was made for at most 30"):
        model.predict(["a", "", "a" * 40])
    assert labeller("label", truncate=True).predict(["a" * 40])
    before = model.stream(["a", "b", "a" * 40])
    assert [next(before)[0].text for _ in range(2)] == model.predict(["a", "b"])


def test_attention_is_that_of_the_reader(kind):
    seen = labeller(kind).attention("a cat")
    assert seen.maps.keys() == {f"reader.stack.blocks.{layer}.self" for layer in range(2)}
    assert all(weights.shape == (2, 6, 6) for weights in seen.maps.values())
    assert seen.source_labels[-1] == "<end>"
    shown = labeller(kind).view("a cat")
    assert shown.output == seen.text
    assert "reader.stack.blocks.1.self" in shown.text()


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda model: model.attention("a", "yes"), "there is no target, got 'yes'"),
        (lambda model: model.attention(" "), "attention needs a text"),
        (lambda model: model.candidates(["a"], align=True), "nothing can be aligned; leave out align"),
        (lambda model: model.score([("a", "maybe")]), "unknown label 'maybe'"),
        (lambda model: labeller("number").score([("a", "1")]), "a number has no probability"),
        (lambda model: labeller("tags").score([("a b", "A")]), "there are 2 words and 1 tags"),
        (lambda model: evaluate_labels(model, []), "no texts with labels were given"),
        (lambda model: evaluate_labels(model, [("a", "yes"), ("b", "maybe")]), "text 2: unknown label 'maybe'"),
    ],
)
def test_unsupported_requests_are_refused(ask, message):
    with pytest.raises(SaccadeError, match=message):
        ask(labeller("label"))


def test_diverged_weights_are_reported():
    model = labeller("label")
    with torch.no_grad():
        model.model.writer.output.weight.fill_(torch.nan)
    with pytest.raises(SaccadeError, match="no finite numbers for line 1"):
        model.predict(["a"])
