"""Checks shapes and types of signatures at run time, of so many calls of each function that tests stay fast.

A check takes longer than many of the functions that it checks, and a loop calls them again with the same shapes. So in
each test, the first calls of a function are checked, and later ones now and then.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from types import CodeType
from typing import Any

import jaxtyping
from beartype import beartype

PACKAGES = ["saccade.kernels", "saccade.layers", "saccade.model"]
PACKAGES += ["saccade_worlds.navigation.poses", "saccade_worlds.navigation.writer", "saccade_worlds.playing.writer"]
FIRST_CALLS, THEN_EVERY = 8, 32  # of each function in each test
SHAPES = jaxtyping.jaxtyped("context")  # inside of it, a letter stands for one size
COUNTS: dict[CodeType, int] = {}  # calls in the running test; functions inside functions share their code


class Sampling:
    all_calls = False  # set by the option --check-all-calls


def check_signature(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that some of its calls are checked; it is prepared for that when the first one comes."""
    code, checked = function.__code__, None

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal checked
        COUNTS[code] = count = COUNTS.get(code, 0) + 1
        if count > FIRST_CALLS and count % THEN_EVERY and not Sampling.all_calls:
            return function(*args, **kwargs)
        if checked is None:
            checked = beartype(resolve_annotations(function))
        with SHAPES:
            return checked(*args, **kwargs)

    return call


def resolve_annotations(function: Callable[..., Any]) -> Callable[..., Any]:
    """Evaluate annotations that are strings; what is imported for type checkers alone is taken as anything."""
    for name, annotation in function.__annotations__.items():
        if isinstance(annotation, str):
            try:
                function.__annotations__[name] = eval(annotation, function.__globals__)
            except NameError:
                function.__annotations__[name] = Any
    return function


def decorate(*, typechecker: Any) -> Callable[[Any], Any]:
    """Stand in for the decorator that jaxtyping's import hook gives to every function and class."""

    def decorated(made: Any) -> Any:
        if inspect.isfunction(made):
            return check_signature(made)
        if dataclasses.is_dataclass(made) and "__init__" in vars(made):
            made.__init__ = check_signature(made.__init__)
        return made

    return decorated


def install() -> None:
    """Check the functions of our packages that deal with tensors; to be called before these are imported."""
    jaxtyping.jaxtyped = decorate
    jaxtyping.install_import_hook(PACKAGES, "beartype.beartype")
