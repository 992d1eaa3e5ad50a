"""Inference with a small XLNet."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from saccade.config.load import save, validate
from saccade.config.schema import Corpus
from saccade.data.tokenization.tokenizers import train_tokenizers
from saccade.model.build.model import build
from saccade.model.readers.tokens import get_segment_ids
from saccade.model.run import named_weights, write_tensors
from saccade.predict.predictors.encoder import Encoder
from saccade.predict.predictors.permuted import PermutedDecoder, PermutedEncoder
from saccade.predict.predictors.predictor import Predictor
from saccade.runs import RECIPE, WEIGHTS
from saccade.score.evaluate import evaluate_corpora

LETTERS = ["abc", "defg hij"]


@pytest.fixture
def encoder() -> Callable[..., Encoder]:
    def make(**objective: Any) -> Encoder:
        recipe = validate(
            {
                "task": "encode", "tokenizer": {"kind": "characters", "mask_token": True},
                "data": {"max_length": 9},
                "reader": {
                    "stack": {"layers": 2, "dim": 12, "heads": 3, "ff": 17, "attention_bias": False},
                    "positions": {"kind": "transformer-xl", "content_bias": True, "relative_segments": True},
                    "scale_embedding": False,
                },
                "writer": {"kind": "permuted"}, "objectives": [{"kind": "permuted", **objective}],
            }
        )  # fmt: skip
        tokenizers = train_tokenizers(recipe.tokenizer, lambda: [(text,) for text in LETTERS])
        torch.manual_seed(3)
        model = build(recipe, source_size=tokenizers.source.size, target_size=tokenizers.target.size)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.4)
        return PermutedEncoder(model.eval(), recipe=recipe, tokenizers=tokenizers)

    return make


def test_a_masked_letter_is_predicted_from_both_sides(encoder: Callable[..., Encoder]) -> None:
    model = encoder()
    [[first, second]] = model.candidates(["ab[MASK]d"], decoding=model.recipe.predict.model_copy(update={"n_best": 2}))
    assert first.score > second.score and len(first.text) == 4 and first.text[:2] == "ab" and first.text[3] == "d"
    tokenizer = model.tokenizers.source
    ids = torch.tensor([tokenizer.encode("abcd")])
    when = torch.tensor([[-1, -1, 0, -1, -1]])
    with torch.no_grad():
        found = model.model.writer(
            model.model.reader, ids, when, at=torch.tensor([[2]]), keep=torch.ones_like(ids, dtype=torch.bool),
            segments=get_segment_ids(ids, None),
        )  # fmt: skip
        logs = model.model.writer.head(found.query)[0, 0].log_softmax(-1)
    (chosen,) = first.ids
    assert first.log_prob == pytest.approx(float(logs[chosen]), abs=1e-5)


def test_the_right_context_matters(encoder: Callable[..., Encoder]) -> None:
    model = encoder()
    scores = [model.candidates([text])[0][0].log_prob for text in ("ab[MASK]d", "ab[MASK]e")]
    assert scores[0] != scores[1]


def test_fillings_do_not_depend_on_the_batch(encoder: Callable[..., Encoder]) -> None:
    model, texts = encoder(), ["a[MASK]", "ab[MASK]d e", "[MASK]"]
    together = [found[0] for found in model.candidates(texts)]
    for text, one in zip(texts, together, strict=True):
        alone = model.candidates([text])[0][0]
        assert (one.text, one.log_prob) == (alone.text, pytest.approx(alone.log_prob, abs=1e-5))


def test_the_probability_of_a_text_is_that_of_its_tokens_one_after_the_other(
    encoder: Callable[..., Encoder],
) -> None:
    """No token depends on a later one, and probabilities at each position sum to 1."""
    model = encoder()
    [first], [again] = model.token_scores(["abc"]), model.token_scores(["abd"])
    assert [item.log_prob for item in first[:2]] == pytest.approx([item.log_prob for item in again[:2]], abs=1e-6)
    assert first[2].log_prob != again[2].log_prob
    assert [item.token for item in first] == ["a", "b", "c"]
    size = model.tokenizers.source.size
    total = sum(np.exp(model.decoder.compute_log_probs([[5, number]])[0][1]) for number in range(size))
    assert total == pytest.approx(1.0, abs=1e-5)


def test_long_texts_are_read_in_windows_with_their_memory(encoder: Callable[..., Encoder]) -> None:
    long, other = "abcdefghij", "bbcdefghij"
    for memory, same in ((0, True), (9, False)):
        model = encoder(**({"segment_length": 9, "memory_length": memory} if memory else {}))
        first, second = (model.token_scores([text])[0] for text in (long, other))
        assert len(first) == 10
        assert (first[9].log_prob == pytest.approx(second[9].log_prob, abs=1e-6)) is same


def test_texts_are_scored_and_embedded(encoder: Callable[..., Encoder], tmp_path: Path) -> None:
    model = encoder()
    (tmp_path / "a.txt").write_text("abc\ndef\n")
    found = evaluate_corpora(model, [Corpus(files=(str(tmp_path / "a.txt"),))]).to_dict()
    assert found["tokens"] == 6 and set(found["scores"]) == {"loss", "perplexity", "bits_per_byte"}
    nll = -sum(item.log_prob for text in ("abc", "def") for item in model.token_scores([text])[0])
    assert found["scores"]["loss"] == pytest.approx(nll / 6)
    vectors = model.embed(["abc", "defg"])
    assert vectors.shape == (2, 12)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1], abs=1e-5)


def test_attention_is_that_of_the_content_stream(encoder: Callable[..., Encoder]) -> None:
    model = encoder()
    seen = model.attention("abc")
    assert list(seen.maps) == [f"reader.stack.blocks.{i}.self" for i in range(2)]
    assert seen.source_labels == ["a", "b", "c", "<end>"]
    for weights in seen.maps.values():
        torch.testing.assert_close(weights.sum(-1), torch.ones(3, 4))


def test_a_run_is_loaded_as_an_encoder(encoder: Callable[..., Encoder], tmp_path: Path) -> None:
    model = encoder()
    model.tokenizers.save(tmp_path)
    save(model.recipe, tmp_path / RECIPE)
    write_tensors(named_weights(model.model), tmp_path / WEIGHTS)
    again = Predictor.load(tmp_path, device="cpu")
    assert isinstance(again.decoder, PermutedDecoder)
    assert again.predict(["a[MASK]c"]) == model.predict(["a[MASK]c"])
