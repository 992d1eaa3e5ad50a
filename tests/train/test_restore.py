"""Span-restoring models (T5): training, resuming, packing, validation, prediction, warm start."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import small
from small import read_metrics, weights

import saccade
from saccade.config.load import validate
from saccade.config.schema import Corpus
from saccade.data.batching.spans import get_sentinels
from saccade.errors import SaccadeError
from saccade.exchange.exporting import export_run
from saccade.exchange.importing import import_folder
from saccade.predict.predictors.restoring import SentinelCodec
from saccade.predict.search.greedy import SearchHypothesis
from saccade.score.evaluate import evaluate_corpora
from saccade.score.spans import SpanEvaluation
from saccade.train import api

STACK = {"layers": 1, "dim": 12, "heads": 2, "ff": 17, "dropout": 0.1, "norm": "pre"}
SENTENCES = {
    "train": [{"files": ["embedded:sentences"], "examples": 120}],
    "valid": [{"files": ["embedded:sentences-heldout"], "examples": 30}],
    "max_length": 24,
}


def recipe(*, data: Any = SENTENCES, stack: Any = STACK, **train: Any) -> Any:
    return validate({
        "name": "restore",
        "task": "denoise",
        "data": data,
        "tokenizer": {"kind": "words", "sentinels": 12},
        "reader": {"stack": stack, "dropout": 0.0},
        "writer": {"stack": stack, "dropout": 0.0, "tie": "all"},
        "train": {**small.TRAIN, **train},
    })  # fmt: skip


@pytest.fixture
def fit(tmp_path: Path) -> Callable[..., Path]:
    def run(name: str = "run", *, resume: bool = False, overrides: Any = (), **settings: Any) -> Path:
        path = tmp_path / name
        if resume:
            api.train(resume=path, overrides=overrides)
        else:
            api.train(recipe(**settings), run=path, overrides=overrides)
        return path

    return run


@pytest.mark.parametrize("cross", [False, True])
def test_a_resumed_run_ends_with_the_same_bytes(fit: Any, cross: bool) -> None:
    data = {**SENTENCES, "cross_document": cross}
    whole = fit("whole", data=data)
    part = fit("part", data=data, steps=9)
    fit("part", resume=True, overrides=["train.steps=24"])
    assert weights(part, 24) == weights(whole, 24)


def test_packed_and_padded_rows_learn_the_same(fit: Any) -> None:
    stack = {**STACK, "dropout": 0.0}
    runs = [fit(f"pack-{pack}", pack=pack, stack=stack, steps=4) for pack in (True, False)]
    losses = [read_metrics(run)[0]["loss"] for run in runs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_evaluation_is_that_of_validation(fit: Any) -> None:
    run = fit()
    lines = [line for line in read_metrics(run) if line["event"] == "valid"]
    assert lines[-1]["nll"] < lines[0]["nll"]
    best = min(lines, key=lambda line: line["nll"])
    model = saccade.load(run)
    assert isinstance(model.codec, SentinelCodec)
    found = evaluate_corpora(model, [Corpus(files=("embedded:sentences-heldout",))], synthetic_count=30)
    assert isinstance(found, SpanEvaluation)
    assert found.loss == pytest.approx(best["nll"], rel=1e-4)
    assert found.perplexity == pytest.approx(best["perplexity"], rel=1e-4)
    assert [name for name, *_ in found.rows()] == list(found.to_dict()["scores"]) == ["loss", "perplexity"]
    assert f"{found.tokens:,} tokens to restore" in found.summary()
    assert json.dumps(found.to_dict())


def test_an_output_ends_before_a_sentinel_that_the_input_lacks(fit: Any) -> None:
    model = saccade.load(fit(steps=1))
    text, tokenizer = "The <extra_id_0> sleeps <extra_id_1>.", model.tokenizers.target
    first, second, third, *_ = get_sentinels(tokenizer)
    dog, near = (tokenizer.encode(word)[0] for word in ("dog", "near"))
    item = SearchHypothesis([first, dog, second, near, third, dog], -1.0, -1.0, None)
    cut = model.codec.make_hypothesis(item, text, 7, align=False)
    assert cut.text == tokenizer.decode(cut.ids) == "<extra_id_0> dog<extra_id_1> near"
    [output] = model.predict([text])
    assert not any(f"<extra_id_{number}>" in output for number in range(2, 12))


def test_an_input_without_sentinel_is_refused_by_line_number(fit: Any) -> None:
    model = saccade.load(fit(steps=1))
    message = (
        "line 3 has nothing to restore; put <extra_id_0> where something is missing, <extra_id_1> at the next place"
    )
    texts = ["The <extra_id_0>.", "", "The dog sleeps."]
    with pytest.raises(SaccadeError, match=message):
        model.predict(texts)
    results = model.stream(texts)
    first, second = next(results), next(results)  # what stands before it is not lost
    assert isinstance(first[0].text, str) and second[0].text == ""
    with pytest.raises(SaccadeError, match=message):
        next(results)


# ---- from elsewhere


def import_model(folder: Path, *, gated: bool) -> Path:
    """A tiny T5 of version 1.0 or 1.1 with a tokenizer of letters and four sentinels."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, normalizers

    pieces = ["<pad>", "</s>", "<unk>", *"▁.abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"]
    pieces += [f"<extra_id_{number}>" for number in reversed(range(4))]
    core = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=2))
    core.normalizer = normalizers.Replace(" ", "▁")
    core.decoder = decoders.Metaspace(prepend_scheme="never")
    core.add_special_tokens([piece for piece in pieces if len(piece) > 1])
    more = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False} if gated else {}
    config = transformers.T5Config(
        vocab_size=len(pieces), d_model=12, d_kv=6, d_ff=17, num_layers=1, num_heads=2, n_positions=64, **more
    )
    transformers.T5ForConditionalGeneration(config).save_pretrained(folder)
    core.save(str(folder / "tokenizer.json"))
    return import_folder(str(folder), str(folder.parent / f"t5-{gated}")).path


FEW = ["train.steps=3", "train.batch_tokens=256", "train.valid_predictions=0", "train.device=cpu", "data.max_length=40"]


@pytest.mark.parametrize("gated", [False, True])
def test_an_imported_t5_is_trained_on_spans_and_on_pairs(tmp_path: Path, gated: bool) -> None:
    run = import_model(tmp_path / "theirs", gated=gated)
    texts = Corpus(files=("embedded:sentences",), examples=50)
    spans = saccade.train("t5", data=[texts], valid=0.1, run=tmp_path / "spans", overrides=[*FEW, f"init={run}"])
    assert isinstance(spans.codec, SentinelCodec)
    assert spans.recipe.reader.stack.gated == gated and len(get_sentinels(spans.tokenizers.target)) == 4
    card = (tmp_path / "spans" / "card.md").read_text()
    assert "tensors copied" in card and "the rest is newly initialized" not in card
    pairs = Corpus(files=("embedded:copy",), examples=50)
    own = ["task=translate", "data.cross_document=false"]
    saccade.train(
        run / "recipe.toml", data=[pairs], valid=0.1, run=tmp_path / "pairs", overrides=[*FEW, *own, f"init={run}"]
    )
    for name in ("spans", "pairs"):
        path, family = export_run(tmp_path / name, tmp_path / f"{name}-out")
        assert family == "t5" and (path / "model.safetensors").is_file()
