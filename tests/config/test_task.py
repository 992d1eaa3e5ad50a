"""Recipes name their task; the field holds the task itself."""

import pytest

from saccade.config.load import dump, override, validate
from saccade.config.task import get_task, list_tasks
from saccade.errors import SaccadeError
from saccade.tasks import BaseTask


class Copy(BaseTask):
    name = "copy"


def test_tasks_are_the_modules_of_the_package() -> None:
    found = list_tasks()
    assert {"translate", "language-model", "classify", "denoise", "encode", "media-to-text"} <= {*found}
    assert [get_task(name).name for name in found] == found


def test_a_recipe_holds_its_task_and_writes_its_name() -> None:
    recipe = validate({"task": "translate"})
    assert recipe.task is get_task("translate") and recipe.task == validate({}).task
    assert 'task = "translate"' in dump(recipe).splitlines()
    assert recipe.model_dump()["task"] == "translate" and '"task":"translate"' in recipe.model_dump_json()


def test_an_unknown_task_is_reported_with_those_that_are_known() -> None:
    with pytest.raises(
        SaccadeError, match="expected .*'translate', 'copy'.*, got 'translat'; did you mean 'translate'"
    ) as error:
        validate({"task": "translat"}, kinds={"copy": Copy()})
    assert "\n" not in str(error.value)


def test_a_task_of_ones_own() -> None:
    recipe = validate({"task": "copy"}, kinds={"copy": Copy()})
    assert recipe.task == Copy() and 'task = "copy"' in dump(recipe)
    assert override(recipe, ["train.steps=3"], kinds={"copy": Copy()}).task == recipe.task


def test_a_task_may_be_given_as_its_class() -> None:
    recipe = validate({"task": "copy"}, kinds={"copy": Copy})
    assert recipe.task == Copy() and not isinstance(recipe.task, type)
    assert recipe.task is validate({"task": "copy"}, kinds={"copy": Copy}).task
    with pytest.raises(SaccadeError, match="got 'copi'; did you mean 'copy'"):
        validate({"task": "copi"}, kinds={"copy": Copy, "layer": dict})


@pytest.mark.parametrize(
    ("name", "message"), [("translate", "is a task of saccade already"), ("copies", "with the name 'copy'; use that")]
)
def test_names_of_tasks_of_ones_own(name: str, message: str) -> None:
    class Other(BaseTask):
        pass

    Other.name = name if name == "translate" else "copy"
    with pytest.raises(SaccadeError, match=message):
        validate({"task": name}, kinds={name: Other()})
    with pytest.raises(SaccadeError, match=message):
        validate({"task": name}, kinds={name: Other})
