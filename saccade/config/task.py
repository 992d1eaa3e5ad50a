"""What a task is: one object that knows everything in which translating, labelling, captioning, ... differ.

A recipe names its task; `Recipe.task` is the object of that name, a user's own of `kinds=` or that of the module
`saccade.tasks.NAME`. Other packages call its methods and never compare it with a name. Nothing here imports torch.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from typing import Any, Protocol, runtime_checkable

from pydantic import GetCoreSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from saccade.config.kinds import user_kinds

PACKAGE = "saccade.tasks"


@runtime_checkable
class Task(Protocol):
    """The interface of a task. `saccade.tasks.BaseTask` has defaults for everything but the name."""

    name: str  # by which recipes choose it


def list_tasks() -> list[str]:
    """The names of the tasks that come with saccade."""
    found = importlib.util.find_spec(PACKAGE)
    assert found is not None and found.submodule_search_locations, "saccade is not installed whole"
    modules = pkgutil.iter_modules(found.submodule_search_locations)
    return sorted(module.name for module in modules if not module.name.startswith("_"))


def get_task(name: str, kinds: dict[str, Any] | None = None) -> Task:
    """The task of that name: the user's own, or the object TASK of the module `saccade.tasks.NAME`."""
    built_in, own = list_tasks(), (kinds or {}).get(name)
    if name in built_in:
        if isinstance(own, Task):
            raise ValueError(f"'{name}' is a task of saccade already; give yours another name")
        task: Task = importlib.import_module(f"{PACKAGE}.{name}").TASK
        return task
    if not isinstance(own, Task):
        known = [*built_in, *(key for key, kind in (kinds or {}).items() if isinstance(kind, Task))]
        *others, last = (f"'{task}'" for task in known)
        raise KeyError(f"{', '.join(others)} or {last}")
    if own.name != name:
        raise ValueError(f"kinds={{'{name}': ...}} is a task with the name '{own.name}'; use that name")
    return own


class TaskByName:
    """Lets pydantic read a task from its name, and write it as its name."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def resolve(value: Any, info: ValidationInfo) -> Task:
            if isinstance(value, Task):
                return value
            try:
                return get_task(str(value), dict(user_kinds(info)))
            except KeyError as error:
                raise PydanticCustomError("literal_error", "expected {expected}", {"expected": error.args[0]}) from None

        named = core_schema.plain_serializer_function_ser_schema(
            lambda task: task.name, return_schema=core_schema.str_schema()
        )
        return core_schema.with_info_plain_validator_function(resolve, serialization=named)
