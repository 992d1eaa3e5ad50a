"""Classification heads of BART and T5, and T5's encoder alone: prediction, fine-tuning and export."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import saccade
from saccade.config.load import load, validate
from saccade.config.schema import SecondPass
from saccade.data.tokenization.labels import Labels
from saccade.errors import SaccadeError
from saccade.exchange.exporting import export_run
from saccade.exchange.families.family import Config
from saccade.exchange.families.heads import build_label_config, count_label_texts
from saccade.exchange.importing import import_folder
from saccade.model.run import read_weights

transformers = pytest.importorskip("transformers")
NAMES = {0: "bad", 1: "so", 2: "good"}


def import_model(make: Callable[..., Any], tmp_path: Path, family: str, architecture: str, **settings: Any) -> Any:
    """Return the imported predictor and the original model."""
    start = {} if family == "bart" else {"decoder_start_token_id": 0}
    folder, theirs = make(family, architecture=architecture, settings={"id2label": NAMES, **start, **settings})
    for name, parameter in theirs.named_parameters():
        if "norm" in name and name.endswith("weight"):  # norms keep their initial 1; random ones would prevent training
            nn.init.ones_(parameter)
    theirs.save_pretrained(folder)
    import_folder(str(folder), str(tmp_path / "run"))
    return saccade.load(tmp_path / "run"), theirs


@pytest.mark.parametrize(("family", "name"), [("bart", "Bart"), ("t5", "T5")])
def test_entailment_labels_are_for_pairs(
    family: str, name: str, make: Callable[..., Any], load_theirs: Callable[..., Any], tmp_path: Path
) -> None:
    """Like bart-large-mnli, where only the labels show that examples are pairs."""
    names = {0: "contradiction", 1: "neutral", 2: "entailment"}
    run, theirs = import_model(make, tmp_path, family, f"{name}ForSequenceClassification", id2label=names)
    core = run.tokenizers.source.backend
    given = torch.tensor([core.encode("abc", "de k").ids])
    logits = theirs(given).logits.log_softmax(-1)[0].tolist()
    [[best]] = run.candidates(["abc\tde k"])
    assert best.log_probs == pytest.approx(logits, abs=1e-4)
    assert best.text == names[max(range(3), key=logits.__getitem__)]
    with pytest.raises(SaccadeError, match="line 1: the model labels two texts with a tab between them, got 1"):
        run.predict(["abc"])
    path, _ = export_run(tmp_path / "run", tmp_path / "out")
    torch.testing.assert_close(load_theirs(path)(given).logits.log_softmax(-1)[0].tolist(), logits, atol=1e-5, rtol=0)


def test_entailment_labels_of_single_texts_are_kept() -> None:
    """An own key in config.json states the number of texts per example."""
    for texts in (1, 2):
        said = build_label_config(Labels("label", ("Entailment", "other"), num_texts=texts))
        assert count_label_texts(Config(said)) == texts
    assert count_label_texts(Config({"id2label": {"0": "a", "1": "ENTAILMENT"}})) == 2


def test_regression_heads_are_imported_and_exported(
    make: Callable[..., Any], load_theirs: Callable[..., Any], tmp_path: Path
) -> None:
    run, theirs = import_model(make, tmp_path, "bart", "BartForSequenceClassification", id2label={0: "LABEL_0"})
    given = torch.tensor([run.tokenizers.source.backend.encode("abc").ids])
    again = load_theirs(export_run(tmp_path / "run", tmp_path / "out")[0])
    assert run.labels.kind == "number" and again.config.problem_type == "regression"
    assert float(run.predict(["abc"])[0]) == pytest.approx(theirs(given).logits.item(), abs=1e-3)
    assert again(given).logits.item() == pytest.approx(theirs(given).logits.item(), abs=1e-5)


def test_an_encoder_alone_gives_vectors(make: Callable[..., Any], tmp_path: Path) -> None:
    run, theirs = import_model(make, tmp_path, "t5", "T5EncoderModel")
    given = torch.tensor([run.tokenizers.source.backend.encode("abc de").ids])
    [found] = run.embed(["abc de"], normalise=False)
    torch.testing.assert_close(torch.tensor(found), theirs(given).last_hidden_state[0].mean(0), atol=1e-4, rtol=1e-4)
    with pytest.raises(SaccadeError, match="this encoder has no head over the vocabulary"):
        run.predict(["abc"])


def test_tags_equal_those_of_the_original(make: Callable[..., Any], tmp_path: Path) -> None:
    run, theirs = import_model(make, tmp_path, "t5", "T5ForTokenClassification")
    given = run.tokenizers.source.backend.encode("abc de")
    first = [given.char_to_token(0), given.char_to_token(4)]
    tags = theirs(torch.tensor([given.ids])).logits[0, first].argmax(-1).tolist()
    assert run.predict(["abc de"]) == [" ".join(NAMES[tag] for tag in tags)]


def test_int8_gives_nearly_the_same_outputs(make: Callable[..., Any], tmp_path: Path) -> None:
    run, _ = import_model(make, tmp_path, "bart", "BartForSequenceClassification")
    plain, small = run.candidates(["abc de"]), saccade.load(tmp_path / "run", precision="int8").candidates(["abc de"])
    assert small[0][0].log_probs == pytest.approx(plain[0][0].log_probs, abs=0.5)


def test_attention_of_the_second_pass_can_be_viewed(make: Callable[..., Any], tmp_path: Path) -> None:
    run, _ = import_model(make, tmp_path, "bart", "BartForSequenceClassification")
    maps = run.attention("abc")
    cross, own = maps["reader.again.stack.blocks.0.cross"], maps["reader.again.stack.blocks.0.self"]
    assert (cross.rows, cross.columns, own.rows, own.columns) == ("target", "source", "target", "seen")
    assert maps.labels["seen"] == ["<start>", *maps.labels["source"][:-1]]
    assert torch.tensor(own.weights).triu(1).abs().max() == 0
    assert "reader.again.stack.blocks.2.cross" in run.view("abc").text()


@pytest.mark.parametrize(("family", "name"), [("bart", "Bart"), ("t5", "T5")])
def test_it_is_fine_tuned_and_exported(
    family: str, name: str, make: Callable[..., Any], load_theirs: Callable[..., Any], tmp_path: Path
) -> None:
    """With new labels, all weights but the output layer are transferred and trained."""
    import_model(make, tmp_path, family, f"{name}ForSequenceClassification")
    (tmp_path / "a.tsv").write_text("abc de\tyes\nk\tno\nlkja hgf\tyes\nkk k\tno\n" * 4)
    few = [
        "train.steps=25",
        "train.epochs=none",
        "train.schedule.lr=0.005",
        "train.schedule.warmup_steps=1",
        "train.device=cpu",
    ]
    saccade.train(
        "classify", data=tmp_path / "a.tsv", valid=tmp_path / "a.tsv", run=tmp_path / "tuned",
        overrides=[f"init={tmp_path / 'run'}", "train.report_every=1", "train.metric=loss", *few],
    )  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "tuned" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < 0.5 * losses[0]
    before, after = (read_weights(tmp_path / run / "model.safetensors") for run in ("run", "tuned"))
    assert before.keys() == after.keys()
    again = {key: (before[key] - after[key]).abs().max() for key in before if key.startswith("reader.again.")}
    assert all(0 < moved < 0.3 for moved in again.values())
    run, theirs = saccade.load(tmp_path / "tuned"), load_theirs(export_run(tmp_path / "tuned", tmp_path / "out")[0])
    given = torch.tensor([run.tokenizers.source.backend.encode("abc de").ids])
    [[best]] = run.candidates(["abc de"])
    assert best.log_probs == pytest.approx(theirs(given).logits.log_softmax(-1)[0].tolist(), abs=1e-4)
    assert theirs.config.id2label[int(theirs(given).logits.argmax())] == best.text


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_a_head_without_a_second_pass_matches_no_architecture(
    family: str, make: Callable[..., Any], tmp_path: Path
) -> None:
    """Fine-tuned without its decoder, it has no counterpart in transformers."""
    import_folder(str(make(family)[0]), str(tmp_path / "whole"))
    (tmp_path / "a.tsv").write_text("abc de\tyes\nk\tno\n")
    few = ["train.steps=1", "train.epochs=none", "train.device=cpu", f"init={tmp_path / 'whole'}"]
    saccade.train("classify", data=tmp_path / "a.tsv", valid=tmp_path / "a.tsv", run=tmp_path / "tuned", overrides=few)
    with pytest.raises(
        SaccadeError, match=rf"{family}: reader.second_pass = None.*; .* train it with \[reader.second_pass\] like"
    ):
        export_run(tmp_path / "tuned", tmp_path / "out")


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_a_writer_becomes_a_second_pass(
    family: str, make: Callable[..., Any], load_theirs: Callable[..., Any], tmp_path: Path
) -> None:
    """A fine-tuned encoder-decoder model is exported as a sequence classifier."""
    import_folder(str(make(family)[0]), str(tmp_path / "whole"))
    old: Any = load(tmp_path / "whole" / "recipe.toml")
    again = old.writer.model_dump(include={*SecondPass.model_fields})
    tables = {
        "reader": {**old.reader.model_dump(), "second_pass": again},
        "task": "classify",
        "objectives": [{"kind": "label"}],
    }
    head = {"kind": "label", "pooling": "last", "hidden_dim": old.reader.stack.dim}
    keep = {"tokenizer": old.tokenizer.model_dump(), "data": {"max_length": 20}, "init": str(tmp_path / "whole")}
    (tmp_path / "a.tsv").write_text("abc de\tyes\nk\tno\n")
    few = ["train.steps=1", "train.schedule.lr=1e-9", "train.device=cpu"]
    recipe = validate({**tables, **keep, "writer": head})
    saccade.train(recipe, data=tmp_path / "a.tsv", valid=tmp_path / "a.tsv", run=tmp_path / "tuned", overrides=few)
    before, after = (read_weights(tmp_path / run / "model.safetensors") for run in ("whole", "tuned"))
    kept = {name: name.replace("reader.again.", "writer.") for name in after if name.startswith("reader.")}
    assert len(kept) == len(before) - len([name for name in before if "writer.output" in name])
    assert all(torch.allclose(after[name], before[there], atol=1e-6) for name, there in kept.items())
    theirs = load_theirs(export_run(tmp_path / "tuned", tmp_path / "out")[0])
    assert type(theirs).__name__.endswith("ForSequenceClassification")
