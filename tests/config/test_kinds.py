"""Kinds that users bring are validated against the signature of their class or function."""

import pytest
from pydantic import ValidationError

from saccade.config.kinds import Custom
from saccade.config.load import load, save, validate
from saccade.errors import SaccadeError


class Mixer:
    """A user's stack; `copy` is a name that pydantic's own classes use too."""

    def __init__(self, width: int, *, depth: int, gate: float = 0.5, copy: str = "a", where: object = Ellipsis) -> None:
        self.width, self.depth, self.gate = width, depth, gate


KINDS = {"mixer": Mixer}


def recipe(**settings: object):
    return validate({"reader": {"stack": {"kind": "mixer", **settings}}}, kinds=KINDS)


def test_settings_are_the_keyword_only_arguments_with_their_defaults():
    stack = recipe(depth=3).reader.stack
    assert isinstance(stack, Custom)
    assert stack.settings() == {"depth": 3, "gate": 0.5, "copy": "a"}
    assert Mixer(5, **stack.settings()).depth == 3


def test_mistakes_have_the_path_of_the_key():
    with pytest.raises(SaccadeError) as caught:
        recipe(depht=3, gate="wide")
    assert str(caught.value).splitlines()[1:] == [
        "  reader.stack.depth: is missing",
        "  reader.stack.gate: expected a number, got 'wide'",
        "  reader.stack.depht: unknown key; did you mean 'depth'?",
    ]


def test_mistakes_elsewhere_are_reported_together_with_those_of_a_users_kind():
    with pytest.raises(SaccadeError, match="has 2 mistakes"):
        validate({"reader": {"stack": {"kind": "mixer"}}, "train": {"steps": 0}}, kinds=KINDS)


def test_a_kind_that_was_not_brought_along_is_reported():
    with pytest.raises(
        SaccadeError,
        match=r"unknown kind 'mixer'; kinds: transformer, .*; your own: --plugin FILE.py, or kinds=\{'mixer': ...\}",
    ):
        validate({"reader": {"stack": {"kind": "mixer", "depth": 3}}})


def test_a_users_kind_is_among_those_that_are_suggested():
    with pytest.raises(SaccadeError, match=r"did you mean 'mixer'\? \(kinds: transformer, .*, mixer\)"):
        validate({"reader": {"stack": {"kind": "mixr"}}}, kinds=KINDS)


def test_a_kind_of_saccade_comes_before_the_users_and_a_note_says_so(capsys):
    found = validate({"reader": {"stack": {"kind": "transformer"}}}, kinds={"transformer": Mixer})
    assert not found.reader.stack.is_custom
    assert (
        "note: your kind 'transformer' is not used: 'transformer' is a kind of saccade already"
        in capsys.readouterr().err
    )


def test_a_users_kind_may_have_the_name_of_a_kind_for_another_key(capsys):
    tables = {
        "reader": {"stack": {"kind": "cosine", "depth": 3}},
        "train": {"schedule": {"kind": "cosine", "lr": 0.01}},
    }
    found = validate(tables, kinds={"cosine": Mixer})
    assert found.reader.stack.is_custom and found.train.schedule.min_lr == 0.0
    assert not capsys.readouterr().err


def test_a_users_kind_survives_saving(tmp_path):
    before = recipe(depth=3, gate=0.25)
    save(before, tmp_path / "recipe.toml")
    assert load(tmp_path / "recipe.toml", kinds=KINDS) == before


def test_overrides_reach_a_users_kind(tmp_path):
    save(recipe(depth=3), tmp_path / "recipe.toml")
    assert load(tmp_path / "recipe.toml", kinds=KINDS, overrides=["reader.stack.depth=7"]).reader.stack.depth == 7


def test_recipes_are_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        recipe(depth=3).reader.stack.depth = 4
    with pytest.raises(ValidationError, match="frozen"):
        recipe(depth=3).train.steps = 4
