"""Validation errors of a recipe: all at once, each with its key, the expected value and the given one."""

import pytest

from saccade.config.load import load, validate
from saccade.errors import SaccadeError


def message(values: dict) -> str:
    with pytest.raises(SaccadeError) as caught:
        validate(values, origin="recipe 'x'")
    return str(caught.value)


def test_all_mistakes_are_reported_at_once():
    wrong = {"train": {"stepz": 3, "clip": "a"}, "reader": {"stack": {"kind": "rnn"}}, "tokenizer": {"size": 1}}
    first, *lines = message(wrong).splitlines()
    assert first == "recipe 'x' has 4 mistakes:"
    assert len(lines) == 4


def test_an_unknown_key_beside_a_kind_that_is_a_table():
    lines = message({"train": {"average": {"kind": {"a": 1}, "zz": 1}}})
    assert "train.average.zz: unknown key; keys here: kind, n" in lines


def test_a_single_mistake_is_one_line():
    assert message({"train": {"stepz": 3}}) == "recipe 'x': train.stepz: unknown key; did you mean 'steps'?"


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"reader": {"stack": {"had": 1}}}, "reader.stack.had: unknown key; did you mean 'heads'?"),
        ({"objectives": [{"kind": "r-drop", "alfa": 1}]}, "objectives.0.alfa: unknown key; did you mean 'alpha'?"),
        (
            {"data": {"train": [{"files": ["a"], "wieght": 2}]}},
            "data.train.0.wieght: unknown key; did you mean 'weight'?",
        ),
        (
            {"data": {"valid": [{"files": ["a"], "splitt": "x"}]}},
            "data.valid.0.splitt: unknown key; did you mean 'split'?",
        ),
        ({"train": {"lr": 1}}, "train.lr: unknown key; did you mean 'train.schedule.lr'?"),
        ({"lr": 1}, "lr: unknown key; did you mean 'train.schedule.lr'?"),
        ({"train": {"batch_size": 1}}, "train.batch_size: unknown key; did you mean 'train.batch_tokens'?"),
        ({"reader": {"heads": 4}}, "reader.heads: unknown key; did you mean 'reader.stack.heads'?"),
        ({"train": {"average": {"zzz": 1}}}, "train.average.zzz: unknown key; keys here: kind, n"),
        (
            {"reader": {"stack": {"kind": "transfomer"}}},
            "reader.stack: unknown kind 'transfomer'; did you mean 'transformer'? "
            "(kinds: transformer, convolution, recurrent)",
        ),
        (
            {"reader": {"positions": {"kind": "zzz"}}},
            "reader.positions: unknown kind 'zzz'; kinds: sinusoidal, learned, none, axial, rotary, shaw, bucketed, "
            "alibi, transformer-xl; your own: --plugin FILE.py, or kinds={'zzz': ...} in Python",
        ),
        ({"reader": {"stack": {"kind": ["a"]}}}, "reader.stack: kind must be text, got ['a']"),
        ({"reader": {"stack": 5}}, "reader.stack: expected a table, got 5"),
        ({"train": 5}, "train: expected a table, got 5"),
        ({"train": {"steps": "abc"}}, "train.steps: expected a whole number, got 'abc'"),
        ({"train": {"steps": 1.5}}, "train.steps: expected a whole number, got 1.5"),
        ({"train": {"steps": True}}, "train.steps: expected a whole number, got true"),
        ({"train": {"steps": 0}}, "train.steps: expected at least 1, got 0"),
        ({"train": {"minutes": 0}}, "train.minutes: expected more than 0.0, got 0"),
        ({"train": {"clip": "0.1"}}, "train.clip: expected a number, got '0.1'"),
        ({"train": {"schedule": {"lr": float("inf")}}}, "train.schedule.lr: expected a finite number, got inf"),
        ({"train": {"compile": "yes"}}, "train.compile: expected true or false, got 'yes'"),
        ({"tokenizer": {"dropout": 1.0}}, "tokenizer.dropout: expected less than 1.0, got 1.0"),
        ({"predict": {"top_p": 2.0}}, "predict.top_p: expected at most 1.0, got 2.0"),
        ({"predict": {"length_penalty": -51}}, "predict.length_penalty: expected at least -50.0, got -51"),
        ({"predict": {"temperature": 1e-11}}, "predict.temperature: expected at least 1e-10, got 1e-11"),
        ({"name": 3}, "name: expected text, got 3"),
        ({"tokenizer": {"files": "x"}}, """tokenizer.files: expected a list such as ["a", "b"], got 'x'"""),
        ({"train": {"optimizer": {"betas": 3}}}, "train.optimizer.betas: expected a list, got 3"),
        (
            {"data": {"train": [["a", "b", "c"]]}},
            "data.train.0.files: expected at most 2 in the list, got ['a', 'b', 'c']",
        ),
        ({"objectives": []}, "objectives: expected at least 1 in the list, got []"),
        ({"data": {"train": [{"weight": 1.0}]}}, "data.train.0.files: is missing"),
        ({"data": {"valid": 2.0}}, "data.valid: expected less than 1.0, got 2.0"),
        (
            {"reader": {"stack": {"norm": "pree"}}},
            "reader.stack.norm: expected 'post', 'pre' or 'none', got 'pree'; did you mean 'pre'?",
        ),
        (
            {"writer": {"stack": {"dim": 512, "heads": 7}}},
            "writer.stack: dim must be a multiple of heads, got dim = 512 and heads = 7",
        ),
        ({"predict": {"n_best": 9}}, "predict: n_best must be at most beam, got n_best = 9 and beam = 4"),
        ({"schema_version": "one"}, "schema_version: expected a whole number, got 'one'"),
    ],
)
def test_each_mistake_has_its_line(values, line):
    assert message(values) == f"recipe 'x': {line}"


def test_wrong_items_do_not_make_a_list_too_short():
    assert "at least" not in message({"objectives": [{"kind": "r-drop", "alfa": 1}]})


def test_a_long_value_is_cut():
    assert len(message({"train": {"steps": "x" * 1000}})) < 150


def test_the_factor_of_the_warmup_schedule_is_no_learning_rate():
    with pytest.raises(SaccadeError, match='"cosine" schedule is the highest learning rate itself, .*got 1; try'):
        load("transformer", overrides=["train.schedule.kind=cosine"])


def test_tied_embeddings_need_one_vocabulary():
    with pytest.raises(SaccadeError, match='writer.tie = "all" needs one vocabulary .*tokenizer.shared = true'):
        load("transformer", overrides=["tokenizer.shared=false"])
