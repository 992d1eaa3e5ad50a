"""Packages that can be called: `saccade.plan(...)` is a function, `saccade.plan.hardware` a module of the package."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any


class CallablePackage(ModuleType):
    """A package that is called like the public function of its name, with the signature of that function."""

    @property
    def __call__(self) -> Any:
        import saccade

        return saccade.find_function(self.__name__.rpartition(".")[2])

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.__call__)

    def __dir__(self) -> list[str]:
        """Names that `help` describes: the function is among them, so that help shows how it is called."""
        return sorted({*super().__dir__(), self.__name__.rpartition(".")[2]})


def make_callable(name: str) -> None:
    """Let an imported package be called."""
    sys.modules[name].__class__ = CallablePackage
