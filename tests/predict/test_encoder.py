"""Encoders: masked words, embeddings, pseudo-likelihood, attention."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import saccade
from saccade.config.load import load, override
from saccade.data.batching.batch import Batch, pad
from saccade.data.prepare import prepare
from saccade.data.tokenization.special_tokens import find_special_ranges, get_mask_id
from saccade.data.tokenization.tokenizer import UNKNOWN
from saccade.errors import SaccadeError
from saccade.model.build.model import build
from saccade.model.writers.masked import StatesWriter
from saccade.predict.predictors.encoder import Encoder
from saccade.score.perplexity import measure_perplexity

TEXT = "One day a [MASK] dog came to the [MASK]."


@pytest.fixture(scope="module", params=["bert", "roberta", "albert"])
def encoder(request: pytest.FixtureRequest) -> Encoder:
    """An encoder with random weights."""
    recipe = load(request.param, tiny=True)
    recipe = override(recipe, ["data.train.0.examples=300", "data.valid.0.examples=20"])
    tokenizers = prepare(recipe, report=lambda text: None).tokenizers
    torch.manual_seed(1)
    model = build(recipe, source_size=tokenizers.source.size, target_size=tokenizers.target.size).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return Encoder(model, recipe=recipe, tokenizers=tokenizers)


def compute_log_probs(encoder: Encoder, row: list[int]) -> torch.Tensor:
    model = encoder.model
    states = model.read(Batch({"source": pad([row])})).states[0]
    return model.writer.head(model.writer(states)).log_softmax(-1)


@torch.no_grad()
def test_the_most_probable_tokens_are_filled_in(encoder: Encoder) -> None:
    [found] = encoder.candidates([TEXT])
    row = encoder.tokenizers.source.encode(TEXT)
    logs = compute_log_probs(encoder, row)
    logs[:, : UNKNOWN + 1] = -math.inf
    for first, count in find_special_ranges(encoder.tokenizers.source):
        logs[:, first : first + count] = -math.inf
    places = [i for i, number in enumerate(row) if number == get_mask_id(encoder.tokenizers.source)]
    assert len(found) == 5 and len(places) == 2
    assert found[0].ids == logs[places].argmax(-1).tolist()
    assert found[0].log_prob == pytest.approx(logs[places].amax(-1).sum().item(), abs=1e-5)
    both = (logs[places[0]][:, None] + logs[places[1]][None]).flatten()
    assert [item.log_prob for item in found] == pytest.approx(both.topk(5).values.tolist(), abs=1e-5)
    assert [item.score for item in found] == pytest.approx([math.exp(item.log_prob) for item in found])
    assert "[MASK]" not in found[0].text and "dog" in found[0].text


def test_texts_are_independent_of_each_other_and_empty_ones_stay_empty(encoder: Encoder) -> None:
    texts = [TEXT, "", "The [MASK].", TEXT]
    together, alone = encoder.candidates(texts), [encoder.candidates([text])[0] for text in texts]
    assert [[item.text for item in found] for found in together] == [[item.text for item in found] for found in alone]
    assert encoder.predict([""]) == [""]
    assert [found[0].text for found in encoder.stream(iter(texts))] == [found[0].text for found in alone]


def test_json_has_fillings_and_probabilities(encoder: Encoder) -> None:
    [found] = encoder.candidates([TEXT])
    described = json.loads(json.dumps(encoder.describe(TEXT, found)))
    assert described["input"] == TEXT and len(described["candidates"]) == 5 and len(described["fillings"]) == 2
    assert described["probability"] == pytest.approx(math.prod(described["probabilities"]))


@torch.no_grad()
def test_embeddings_are_the_mean_or_the_first_state(encoder: Encoder) -> None:
    texts = ["One day.", "A tired dog came to the river."]
    rows = encoder.tokenizers.source.encode_all(texts)
    states = [encoder.model.read(Batch({"source": pad([row])})).states[0] for row in rows]
    mean, first = encoder.embed(texts, normalise=False), encoder.embed(texts, pool="first", normalise=False)
    np.testing.assert_allclose(mean, [state.mean(0).numpy() for state in states], atol=1e-5)
    np.testing.assert_allclose(first, [state[0].numpy() for state in states], atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(encoder.embed(texts), axis=1), 1.0, rtol=1e-5)
    assert mean.dtype == np.float32 and encoder.embed([]).shape == (0, mean.shape[1])


@torch.no_grad()
def test_each_token_is_scored_with_it_alone_masked(encoder: Encoder) -> None:
    text = "The dog sleeps."
    [scores] = encoder.token_scores([text])
    row, mask = encoder.tokenizers.source.encode(text), get_mask_id(encoder.tokenizers.source)
    assert [score.token for score in scores] == encoder.tokenizers.source.convert_ids_to_tokens(row[1:-1])
    for place, score in enumerate(scores, start=1):
        hidden = [mask if i == place else number for i, number in enumerate(row)]
        assert score.log_prob == pytest.approx(compute_log_probs(encoder, hidden)[place, row[place]].item(), abs=1e-4)


def test_pseudo_perplexity_in_windows(encoder: Encoder) -> None:
    texts = ["The dog sleeps.", "The dog sees a cat near the river. " * 12]
    found = measure_perplexity(encoder, texts, keep_token_scores=True)
    scores = encoder.token_scores(texts)
    total = sum(score.log_prob for row in scores for score in row)
    assert found.likelihood.tokens == sum(map(len, scores)) and found.likelihood.documents == 2
    assert found.loss == pytest.approx(-total / found.likelihood.tokens)
    assert found.to_dict()["scores"].keys() == {"loss", "pseudo_perplexity"}
    assert [row[0] for row in found.rows()] == ["loss", "pseudo-perplexity"]
    assert len(found.hypotheses) == 2


def test_attention_is_that_of_the_reader_layer_by_layer(encoder: Encoder) -> None:
    maps = encoder.attention(TEXT)
    layers = encoder.recipe.reader.stack.layers
    assert len(maps) == layers  # also where all layers are one
    length = len(maps.source_labels)
    assert maps.source_labels[0] == "[CLS]" and "[MASK]" in maps.source_labels
    for weights in maps.maps.values():
        assert weights.shape[1:] == (length, length)
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]))
    assert encoder.view(TEXT).only(part="reader").maps


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda e: e.predict(["no gap"]), r"line 1 has no \[MASK\] to fill in; write \[MASK\] where a word is missing"),
        (lambda e: e.embed("text"), "expected a list of texts"),
        (lambda e: e.embed(["a"], pool="best"), "texts are embedded by one of mean, first, got 'best'"),
        (lambda e: e.embed(["the dog " * 50]), "text 1 has .* tokens, but the model was made for at most (48|64)"),
        (lambda e: e.candidates([TEXT], align=True), "nothing can be aligned"),
        (lambda e: e.score([("a", "b")]), "does not generate text"),
        (lambda e: e.attention(" "), "attention needs a text"),
        (lambda e: e.attention("a", "b"), "an encoder has no output"),
        (
            lambda e: e.predict([TEXT], decoding=e.recipe.predict.model_copy(update={"sample": True})),
            "does not sample; leave out sample=true",
        ),
    ],
)
def test_what_an_encoder_cannot_do_is_refused(encoder: Encoder, call, message: str) -> None:
    with pytest.raises(SaccadeError, match=message):
        call(encoder)


def test_without_a_head_there_are_only_embeddings(encoder: Encoder) -> None:
    from saccade.model.model import Model

    headless = Model(encoder.model.reader, StatesWriter(encoder.model.dim)).eval()
    other = Encoder(headless, recipe=encoder.recipe, tokenizers=encoder.tokenizers)
    np.testing.assert_allclose(other.embed(["a dog"]), encoder.embed(["a dog"]), atol=1e-6)
    for call in (other.predict, other.token_scores):
        with pytest.raises(SaccadeError, match="has no head over the vocabulary"):
            call([TEXT])


def test_runs_are_loaded_as_encoders_one_at_a_time(tmp_path: Path) -> None:
    small = ["train.steps=2", "data.train.0.examples=200", "data.valid.0.examples=20", "train.batch_tokens=512"]
    made = saccade.train("albert", tiny=True, run=tmp_path / "run", overrides=small)
    again = saccade.load(tmp_path / "run")
    assert isinstance(made, Encoder) and isinstance(again, Encoder)
    assert made.predict([TEXT]) == again.predict([TEXT])
    with pytest.raises(SaccadeError, match="outputs everything at once; load it alone"):
        saccade.load([tmp_path / "run", tmp_path / "run"])
