"""Replace code for a while: attributes, entries of dictionaries, and the bodies of functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from types import CodeType, FunctionType
from typing import Any

MISSING = object()


class Patch:
    """Changes of code that are undone, in reverse order, when the `with` block of `patching` ends."""

    def __init__(self, undo: ExitStack) -> None:
        self.undo = undo

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of a class, a module or an object; it is removed afterwards where it was inherited."""
        before = vars(owner).get(name, MISSING)
        setattr(owner, name, value)
        if before is MISSING:
            self.undo.callback(delattr, owner, name)
        else:
            self.undo.callback(setattr, owner, name, before)

    def set_item(self, table: MutableMapping[Any, Any], key: Any, value: Any) -> None:
        """Set an entry of a dictionary."""
        before = table.get(key, MISSING)
        table[key] = value
        if before is MISSING:
            self.undo.callback(table.pop, key)
        else:
            self.undo.callback(table.__setitem__, key, before)

    def replace(self, function: Callable[..., Any], new: Callable[..., Any]) -> None:
        """Replace the body of a function or method, wherever it was imported: it then returns new(original, ...).

        `original` is the function as it was, and the other arguments are those of the call.
        """
        target: Any = getattr(function, "__func__", function)
        if not isinstance(target, FunctionType):
            raise TypeError(f"only functions written in Python have a body to replace, got {function!r}")
        original = copy_function(target)
        saved = (target.__code__, target.__defaults__, target.__kwdefaults__)
        name = f"__replaced_{id(original)}"
        target.__globals__[name] = functools.partial(new, original)
        target.__code__ = build_call(name, target.__code__)
        target.__defaults__, target.__kwdefaults__ = None, None
        self.undo.callback(restore_function, target, saved, name)


def copy_function(function: FunctionType) -> FunctionType:
    """A copy with the same code, globals and closure, which keeps its body when that of `function` is replaced."""
    copy = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__annotations__ = function.__annotations__
    return copy


def build_call(name: str, like: CodeType) -> CodeType:
    """Code that calls the global `name` with all of its arguments; free variables are those of `like`, unused."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return replacement(*args, **kwargs)  # type: ignore[name-defined]  # the name is replaced below

    names = tuple(name if item == "replacement" else item for item in call.__code__.co_names)
    return call.__code__.replace(co_names=names, co_freevars=like.co_freevars, co_name=like.co_name)


def restore_function(function: FunctionType, saved: tuple[Any, Any, Any], name: str) -> None:
    function.__code__, function.__defaults__, function.__kwdefaults__ = saved
    del function.__globals__[name]


@contextmanager
def patching() -> Iterator[Patch]:
    """A `Patch` whose changes last as long as the block."""
    with ExitStack() as undo:
        yield Patch(undo)
