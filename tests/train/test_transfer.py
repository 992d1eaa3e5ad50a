"""Transfer: a shipped recipe adopts the architecture of a run and is trained on another task."""

import pytest
import small
import torch
from safetensors.torch import load_file
from small import read_metrics

from saccade.config.load import load, validate
from saccade.errors import SaccadeError
from saccade.predict.predictors.predictor import Predictor
from saccade.train import api
from saccade.train.transfer.adopt import adopt_run, find_init_run

STACK = {"layers": 1, "dim": 12, "heads": 2, "ff": 17, "dropout": 0.0, "norm": "pre"}
SHORT = {**small.TRAIN, "steps": 1, "valid_every": 9, "save_every": 9, "accumulate": 1}
STORIES = [
    "train.steps=1", "train.valid_every=9", "train.save_every=9", "train.batch_tokens=512", "train.device=cpu",
    "data.train=[{files=['embedded:stories'], examples=300}]", "data.valid=0",
]  # fmt: skip
PAIR_HEAD = ("hidden.weight", "hidden.bias", "follows.weight", "follows.bias")
STILL = [
    "train.schedule={kind='constant', lr=1e-30, warmup_steps=0}"
]  # so that the weights stay what they were at first
FEW = [
    "train.steps=1", "train.epochs=none", "train.valid_every=9", "train.save_every=9", "train.metric=loss",
    "train.valid_predictions=0", "train.device=cpu", "train.schedule={kind='constant', lr=0.01, warmup_steps=0}",
]  # fmt: skip


def train_recipe(path, values):
    api.train(validate({"train": SHORT, **values}), run=path)
    return path


@pytest.fixture
def language_model(tmp_path):
    """Its tokenizer has the words of the sentences."""
    return train_recipe(tmp_path / "lm", {
        "name": "lm", "task": "language-model", "tokenizer": {"kind": "words"},
        "data": {"train": [{"files": ["embedded:sentences"], "examples": 200}], "max_length": 40},
        "reader": {"kind": "none"},
        "writer": {"stack": STACK, "tie": "output", "positions": {"kind": "learned", "length": 40}, "dropout": 0.0},
    })  # fmt: skip


@pytest.fixture
def translation(tmp_path):
    stack = {**STACK, "norm": "post"}
    return train_recipe(tmp_path / "translation", {
        "name": "t", "tokenizer": {"kind": "characters", "shared": False}, "data": small.COPY,
        "reader": {"stack": stack}, "writer": {"stack": stack, "tie": "output"},
    })  # fmt: skip


def train_classifier(path, run, *overrides, name="classify", data="embedded:judgements"):
    api.train(name, data=data, run=path, overrides=[f"init={run}", *FEW, *overrides])
    return path


def tensors(run):
    return load_file(run / "model.safetensors")


def test_a_language_model_becomes_a_classifier(language_model, tmp_path, capsys):
    run = train_classifier(tmp_path / "run", language_model, *STILL)
    recipe, before, after = load(run / "recipe.toml"), tensors(language_model), tensors(run)
    assert (recipe.reader.causal, recipe.writer.pooling, recipe.data.max_length) == (True, "before-end", 40)
    assert recipe.reader.stack.dim == 12
    for name, tensor in before.items():
        torch.testing.assert_close(after[f"reader.{name.removeprefix('writer.')}"], tensor)
    assert "tensors copied, the rest is newly initialized" in capsys.readouterr().err
    assert (run / "tokenizer.json").read_bytes() == (language_model / "tokenizer.json").read_bytes()


def test_the_states_of_a_classifier_are_those_of_the_language_model(language_model, tmp_path):
    run = train_classifier(tmp_path / "run", language_model, *STILL)
    written, read = (Predictor.load(path, device="cpu").model for path in (language_model, run))
    ids, mask = torch.tensor([[5, 9, 7, 2]]), torch.ones(1, 4, dtype=torch.bool)
    with torch.no_grad():
        torch.testing.assert_close(read.reader(ids, mask).states, written.writer(ids, mask, None))


def test_the_reader_of_a_translation_is_taken_and_its_writer_is_not(translation, tmp_path):
    run = train_classifier(tmp_path / "run", translation, *STILL)
    before, after = tensors(translation), tensors(run)
    shared = {name for name in after if name.startswith("reader.")}
    assert shared == {name for name in before if name.startswith("reader.")}
    assert all(torch.equal(before[name], after[name]) for name in shared)
    assert {name for name in after if name.startswith("writer.")} == {"writer.output.weight", "writer.output.bias"}
    assert not load(run / "recipe.toml").reader.causal


def test_an_encoder_gives_its_layer_for_the_first_state_too(tmp_path):
    api.train("bert", tiny=True, run=tmp_path / "bert", overrides=[*STORIES, "reader.stack.layers=1"])
    run = train_classifier(tmp_path / "run", tmp_path / "bert", *STILL)
    before, after = tensors(tmp_path / "bert"), tensors(run)
    writer = load(run / "recipe.toml").writer
    assert (writer.pooling, writer.hidden_dim) == ("first", 64)
    assert after.keys() - before.keys() == {"writer.output.weight"}
    for name in after.keys() - {"writer.output.weight", "writer.output.bias"}:
        torch.testing.assert_close(after[name], before[name])


def test_pairs_of_an_encoder_come_from_the_recipe(tmp_path):
    small_one = ["reader.stack.layers=1", "reader.stack.dim=32"]
    api.train("albert", tiny=True, run=tmp_path / "albert", overrides=[*STORIES, *small_one])
    run = tmp_path / "run"
    api.train("roberta", tiny=True, run=run, overrides=[*STORIES, *STILL, f"init={tmp_path / 'albert'}"])
    recipe, before, after = load(run / "recipe.toml"), tensors(tmp_path / "albert"), tensors(run)
    assert (recipe.reader.stack.dim, recipe.reader.stack.layers, recipe.writer.pairs) == (32, 1, False)
    assert before.keys() - after.keys() == {f"writer.{part}" for part in PAIR_HEAD}
    assert all(torch.equal(before[name], after[name]) for name in after)
    api.train("bert", tiny=True, run=tmp_path / "back", overrides=[*STORIES, *STILL, f"init={run}"])
    assert tensors(tmp_path / "back").keys() == before.keys()


def test_states_of_an_encoder_learn_to_restore_tokens():
    recipe, old = load("bert"), load("bert", overrides=["writer={kind='states', pooler=true}", "reader.stack.layers=2"])
    assert recipe.task.adopt_parts(recipe, old) == {"reader": old.reader, "writer": recipe.writer}


def test_own_data_is_not_validated_with_the_data_of_the_recipe(tmp_path):
    (tmp_path / "own.tsv").write_text("good\tyes\nbad\tno\n" * 9)
    with pytest.raises(SaccadeError, match="train.metric=accuracy needs validation data; give --valid FILES"):
        api.train("classify", tiny=True, data=str(tmp_path / "own.tsv"), run=tmp_path / "run")


def test_overrides_win_over_the_run(language_model, tmp_path):
    run = train_classifier(
        tmp_path / "run", language_model, "writer.pooling=mean", "reader.dropout=0.3", "data.max_length=30"
    )
    recipe = load(run / "recipe.toml")
    assert (recipe.writer.pooling, recipe.reader.dropout, recipe.data.max_length) == ("mean", 0.3, 30)
    other = train_classifier(tmp_path / "other", language_model, "tokenizer.kind=characters")
    assert (other / "tokenizer.json").read_bytes() != (language_model / "tokenizer.json").read_bytes()


def test_a_frozen_reader_stays_and_the_sigmoid_layer_learns(language_model, tmp_path):
    run = train_classifier(tmp_path / "run", language_model, name="probe")
    before, after = tensors(language_model), tensors(run)
    assert load(run / "recipe.toml").writer.activation == "sigmoid"
    assert all(torch.equal(before[f"writer.{n.removeprefix('reader.')}"], after[n]) for n in after if "reader." in n)


def test_labels_go_on_with_their_rows(language_model, tmp_path):
    """Rows of the output are copied by class name."""
    first = train_classifier(tmp_path / "first", language_model)
    same = train_classifier(tmp_path / "same", first, *STILL)
    torch.testing.assert_close(tensors(same), tensors(first))
    (tmp_path / "more.tsv").write_text("a\tright\nb\tunsure\nc\twrong\n")
    more = train_classifier(tmp_path / "more", first, *STILL, data=str(tmp_path / "more.tsv"))
    old, new = (tensors(path)["writer.output.weight"] for path in (first, more))
    assert Predictor.load(more).labels.names == ("right", "unsure", "wrong")
    torch.testing.assert_close(new[[0, 2]], old)
    (tmp_path / "fewer.tsv").write_text("a\twrong\nb\tright\n")
    fewer = train_classifier(tmp_path / "fewer", more, *STILL, data=str(tmp_path / "fewer.tsv"))
    assert Predictor.load(fewer).labels.names == ("right", "unsure", "wrong")


def test_additions_of_low_rank_train_with_the_head(language_model, tmp_path, capsys):
    run = train_classifier(tmp_path / "run", language_model, "train.lora={rank=2}")
    before, after = tensors(language_model), tensors(run)
    assert torch.equal(before["writer.embedding.tokens.weight"], after["reader.embedding.tokens.weight"])
    name = "stack.blocks.0.feedforward.up.weight"
    assert not torch.equal(before[f"writer.{name}"], after[f"reader.{name}"])
    trained = 2 * ((12 * 3 + 12) + (12 + 12) + 2 * (12 + 17)) + (12 * 2 + 2)
    assert f"train.lora: {trained} parameters are trained" in capsys.readouterr().err


@pytest.mark.slow
def test_a_pretrained_model_needs_less(tmp_path):
    """Sentences were learned before; whether their verbs agree is learned in few more steps."""
    api.train("shakespeare", tiny=True, run=tmp_path / "lm", overrides=["tokenizer.kind=words", "train.device=cpu"])
    scores = []
    for name, start in (("tuned", tmp_path / "lm"), ("fresh", "''")):
        api.train(
            "classify", tiny=True, data="embedded:judgements", valid="embedded:judgements-heldout",
            run=tmp_path / name, overrides=[
                f"init={tmp_path / 'lm'}", f"init={start}", "train.steps=120", "train.valid_every=120",
                "train.batch_tokens=1024", "train.schedule={kind='linear', lr=0.002, warmup_steps=12}",
                "train.device=cpu",
                f"tokenizer={{kind='file', files=['{tmp_path / 'lm' / 'tokenizer.json'}']}}",
            ],
        )  # fmt: skip
        scores.append([line["accuracy"] for line in read_metrics(tmp_path / name) if line["event"] == "valid"][-1])
    assert scores[0] > 90
    assert scores[1] < 70


def test_the_run_is_found_in_the_overrides():
    assert find_init_run(["train.steps=3", "init='runs/x'"]) == "runs/x"
    assert find_init_run(["reader.init=runs/y"]) == "runs/y"
    assert find_init_run(["train.steps=3"]) == ""


def test_a_recipe_of_another_task_stays_as_it_is(language_model):
    recipe = load("transformer")
    assert adopt_run(recipe, str(language_model)) == recipe


def test_a_run_that_is_not_there_is_reported(tmp_path):
    with pytest.raises(SaccadeError, match="'nowhere' is not a run"):
        train_classifier(tmp_path / "run", "nowhere")
    with pytest.raises(
        SaccadeError, match='tokenizer.kind = "init" takes the tokenizer of the run to start from; give init=RUN'
    ):
        api.train("classify", tiny=True, run=tmp_path / "run", overrides=["tokenizer.kind=init"])
