"""Runs that were trained here, written for others."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models

from saccade.config.load import load, save, validate
from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.tokenizer import Tokenizer as Ours
from saccade.data.tokenization.tokenizers import START, train_tokenizers
from saccade.errors import SaccadeError
from saccade.exchange.exporting import export_run
from saccade.exchange.families.catalogue import family_of
from saccade.exchange.importing import import_folder
from saccade.model.build.model import build
from saccade.model.run import load_run, named_weights, write_tensors
from saccade.model.writers.tokens import shift_right

SMALL = [f"{side}.stack.{key}" for side in ("reader", "writer") for key in ("layers=2", "dim=12", "heads=3", "ff=7")]
SINES = ["reader.positions.layout=concatenated", "writer.positions.layout=concatenated"]


@pytest.fixture
def fresh(tmp_path: Path) -> Callable[..., Path]:
    """A run with random weights, as training writes it."""

    def made(*changes: str) -> Path:
        recipe = load("transformer", overrides=["tokenizer.kind=characters", "data.max_length=20", *SMALL, *changes])
        path = tmp_path / "run"
        path.mkdir()
        both = train_tokenizers(recipe.tokenizer, lambda: [("abc", "dec"), ("fa", "g")])
        both.save(path)
        save(recipe, path / "recipe.toml")
        model = build(recipe, source_size=both.source.size, target_size=both.target.size)
        write_tensors(named_weights(model), path / "model.safetensors", vocabulary=both.vocabulary())
        return path

    return made


def test_a_run_of_our_own_is_a_marian_there(fresh: Any, load_theirs: Any, tmp_path: Path) -> None:
    run = load_run(fresh(*SINES))
    path, family = export_run(run.path, tmp_path / "out")
    theirs = load_theirs(path)
    tokenizer = run.tokenizers.source
    batch = Batch(
        {"source": pad(tokenizer.encode_all(["abc", "f"])), "target": pad(tokenizer.encode_all(["ga", "dec"]))}
    )
    source, target = batch["source"], batch["target"]
    seen = shift_right(target.ids, START)
    ours = run.model.writer.head(run.model.writer(seen, target.mask, run.model.read(batch)))
    logits = theirs(source.ids, attention_mask=source.mask.long(), decoder_input_ids=seen).logits
    assert family == "marian" and theirs.config.decoder_start_token_id == START
    torch.testing.assert_close(ours[target.mask], logits[target.mask], atol=1e-5, rtol=1e-5)
    again = load_run(import_folder(str(path), str(tmp_path / "again")).path)
    assert again.recipe.writer.start == "own" and not again.recipe.writer.output_bias
    assert again.tokenizers.source.encode("abx") == tokenizer.encode("abx")


REFUSED = [
    (
        [],
        r"no family can hold this model \(marian: reader.positions.layout = 'interleaved'; bart: reader.positions.kind",
    ),
    ([*SINES, "writer.tie=output"], r"no family can hold this model \(marian: writer.tie = 'output'"),
    ([*SINES, "writer.stack.activation=sigmoid", "reader.stack.activation=sigmoid"], "marian: .*activation.*'sigmoid'"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_no_family_has_is_refused_by_name(fresh: Any, tmp_path: Path, changes: Any, message: str) -> None:
    path = fresh(*changes)
    with pytest.raises(SaccadeError, match=message):
        export_run(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_in_use_is_refused(fresh: Any, tmp_path: Path) -> None:
    with pytest.raises(SaccadeError, match="exists already and is not an empty folder; choose another one"):
        export_run(fresh(*SINES), tmp_path)


def test_a_bias_that_cannot_be_said_is_refused(make: Any, tmp_path: Path) -> None:
    run = load_run(import_folder(str(make("t5")[0]), str(tmp_path / "run")).path)
    with torch.no_grad():
        run.model.writer.output.bias[5] = 1.0
    write_tensors(named_weights(run.model), run.path / "model.safetensors")
    with pytest.raises(SaccadeError, match="writer.output.bias is not 0, but t5 has no such tensor"):
        export_run(run.path, tmp_path / "out")


def test_a_head_that_nobody_has_is_told_with_one_that_others_have() -> None:
    encoder = load("bert")
    head = {"task": "label", "objectives": [{"kind": "label"}], "writer": {"kind": "label", "pooling": "mean"}}
    labels = validate({**encoder.model_dump(), **head})
    with pytest.raises(SaccadeError) as error:
        family_of(labels)
    assert "xlnet: summary_type = 'mean' is not supported; " in str(error.value)
    assert str(error.value).endswith("train it with the head of BERT: "
                                     "writer.pooling=first writer.hidden=768 writer.activation=tanh")  # fmt: skip
    first = {**head, "writer": {"kind": "label", "pooling": "first", "hidden": 768, "activation": "tanh"}}
    assert family_of(validate({**encoder.model_dump(), **first})).name == "bert"


def test_a_classifier_is_of_the_family_that_its_form_and_its_tokenizer_tell() -> None:
    """RoBERTa's form is one that BERT has too; but positions there count all pieces but 1, which no text may have."""
    head = {"kind": "label", "pooling": "first", "hidden": 768}
    labels = {"name": "classify", "task": "label", "objectives": [{"kind": "label"}], "writer": head}
    recipe = validate({**load("roberta").model_dump(), **labels})
    core = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "a": 4}, unk_token="[UNK]"))
    own = train_tokenizers(recipe.tokenizer, lambda: [("abc", "dec")]).source
    assert family_of(recipe).name == family_of(recipe, own).name == "roberta"
    assert family_of(recipe, Ours(core)).name == "bert"


@pytest.mark.parametrize(("recipe", "family"), [("gpt2", "gpt2"), ("gpt2-xl", "gpt2"), ("llama", "llama")])
def test_recipes_of_a_family_are_in_it(recipe: str, family: str) -> None:
    """Though they leave out what follows from other numbers, which a config.json spells out."""
    assert family_of(load(recipe)).name == family
