"""Export of runs that were trained here."""

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
from saccade.exchange.families.catalogue import find_family
from saccade.exchange.importing import import_folder
from saccade.model.build.model import build
from saccade.model.run import load_run, named_weights, write_tensors
from saccade.model.writers.tokens import shift_right

SMALL = [f"{side}.stack.{key}" for side in ("reader", "writer") for key in ("layers=2", "dim=12", "heads=3", "ff=7")]
SINES = ["reader.positions.layout=concatenated", "writer.positions.layout=concatenated"]


@pytest.fixture
def fresh(tmp_path: Path) -> Callable[..., Path]:
    """Create runs with random weights."""

    def made(*changes: str) -> Path:
        recipe = load("transformer", overrides=["tokenizer.kind=characters", "data.max_length=20", *SMALL, *changes])
        path = tmp_path / "run"
        path.mkdir()
        both = train_tokenizers(recipe.tokenizer, lambda: [("abc", "dec"), ("fa", "g")])
        both.save(path)
        save(recipe, path / "recipe.toml")
        model = build(recipe, source_size=both.source.size, target_size=both.target.size)
        write_tensors(named_weights(model), path / "model.safetensors", vocabulary=both.hash_vocabulary())
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
    assert again.recipe.writer.start_token == "own" and not again.recipe.writer.output_bias
    assert again.tokenizers.source.encode("abx") == tokenizer.encode("abx")


REFUSED = [
    (
        [],
        r"no Hugging Face architecture matches this model \(marian: reader.positions.layout = 'interleaved'; bart: ",
    ),
    ([*SINES, "writer.tie=output"], r"no Hugging Face architecture matches this model \(marian: writer.tie = 'output'"),
    ([*SINES, "writer.stack.activation=sigmoid", "reader.stack.activation=sigmoid"], "marian: .*activation.*'sigmoid'"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_settings_without_a_matching_architecture_are_named(
    fresh: Any, tmp_path: Path, changes: Any, message: str
) -> None:
    path = fresh(*changes)
    with pytest.raises(SaccadeError, match=message):
        export_run(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_in_use_is_refused(fresh: Any, tmp_path: Path) -> None:
    with pytest.raises(SaccadeError, match="exists already and is not an empty folder; choose another one"):
        export_run(fresh(*SINES), tmp_path)


def test_a_bias_that_cannot_be_exported_is_refused(make: Any, tmp_path: Path) -> None:
    run = load_run(import_folder(str(make("t5")[0]), str(tmp_path / "run")).path)
    with torch.no_grad():
        run.model.writer.output.bias[5] = 1.0
    write_tensors(named_weights(run.model), run.path / "model.safetensors")
    with pytest.raises(SaccadeError, match="writer.output.bias is not 0, but t5 has no such tensor"):
        export_run(run.path, tmp_path / "out")


def test_an_unknown_head_is_reported_with_a_supported_one() -> None:
    encoder = load("bert")
    head = {"task": "classify", "objectives": [{"kind": "label"}], "writer": {"kind": "label", "pooling": "mean"}}
    labels = validate({**encoder.model_dump(), **head})
    with pytest.raises(SaccadeError) as error:
        find_family(labels)
    assert "xlnet: summary_type = 'mean' is not supported; " in str(error.value)
    assert str(error.value).endswith("train it with the head of BERT: "
                                     "writer.pooling=first writer.hidden_dim=768 writer.activation=tanh")  # fmt: skip
    first = {**head, "writer": {"kind": "label", "pooling": "first", "hidden_dim": 768, "activation": "tanh"}}
    assert find_family(validate({**encoder.model_dump(), **first})).name == "bert"


def test_settings_and_tokenizer_of_a_classifier_decide_its_architecture() -> None:
    """BERT and RoBERTa share settings, but RoBERTa needs a tokenizer whose token 1 occurs in no text."""
    head = {"kind": "label", "pooling": "first", "hidden_dim": 768}
    labels = {"name": "classify", "task": "classify", "objectives": [{"kind": "label"}], "writer": head}
    recipe = validate({**load("roberta").model_dump(), **labels})
    core = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "a": 4}, unk_token="[UNK]"))
    own = train_tokenizers(recipe.tokenizer, lambda: [("abc", "dec")]).source
    assert find_family(recipe).name == find_family(recipe, own).name == "roberta"
    assert find_family(recipe, Ours(core)).name == "bert"


@pytest.mark.parametrize(("recipe", "family"), [("gpt2", "gpt2"), ("gpt2-xl", "gpt2"), ("llama", "llama")])
def test_recipes_match_their_architecture(recipe: str, family: str) -> None:
    """Recipes may omit settings that follow from others, which config.json contains explicitly."""
    assert find_family(load(recipe)).name == family
