"""An exported classifier of text pairs gives the same probabilities in transformers, with its exported tokenizer."""

import json
from pathlib import Path

import pytest
import torch
from tiny_encoders import make
from torch import Tensor

import saccade
from saccade.config.schema import Corpus
from saccade.exchange.exporting import export_run
from saccade.exchange.importing import import_folder

transformers = pytest.importorskip("transformers")
FEW = [
    "train.steps=1", "train.batch_tokens=256", "data.train.0.examples=100", "data.valid.0.examples=20",
    "reader.stack.dim=16", "reader.stack.heads=2", "reader.stack.ff=16",
]  # fmt: skip


@torch.no_grad()
def here_and_there(run: Path, out: Path) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities of two pairs by the run and by its export in transformers."""
    folder, _ = export_run(run, out)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    pairs = [("abc a", "de"), ("a", "b a c b a b")]
    expected = theirs(**tokenizer(pairs, padding=True, return_tensors="pt")).logits.log_softmax(-1)
    found = saccade.load(run).candidates(["\t".join(pair) for pair in pairs])
    return torch.tensor([best.log_probs for best, *_ in found]), expected


@pytest.mark.parametrize("family", ["Bert", "Albert", "Roberta"])
def test_of_an_imported_model(tmp_path: Path, family: str) -> None:
    make(tmp_path / "folder", family.lower(), f"{family}ForSequenceClassification", finetuning_task="rte")
    import_folder(str(tmp_path / "folder"), str(tmp_path / "run"))
    ours, theirs = here_and_there(tmp_path / "run", tmp_path / "out")
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    parts = "model_input_names" in json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert parts == (family != "Roberta")  # which has one segment only


@pytest.mark.parametrize(("recipe", "longest"), [("bert", 60), ("albert", 60), ("xlnet", 256)])
def test_of_a_tokenizer_that_was_learned_here(tmp_path: Path, recipe: str, longest: int) -> None:
    saccade.train(recipe, tiny=True, run=tmp_path / "base", overrides=FEW)
    pairs = [Corpus(files=("embedded:paraphrases",), examples=20)]
    made = [f"init={tmp_path / 'base'}", f"data.max_length={longest}", "train.epochs=1", "train.metric=loss"]
    saccade.train("classify", data=pairs, valid=0.0, run=tmp_path / "run", overrides=made)
    ours, theirs = here_and_there(tmp_path / "run", tmp_path / "out")
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
