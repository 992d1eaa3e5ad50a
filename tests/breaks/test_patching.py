"""Code is replaced wherever it was imported, and is as before afterwards."""

from types import ModuleType

import pytest

from saccade.breaks import registry
from saccade.breaks.patching import patching
from saccade.breaks.registry import Break, apply, break_code, find_break
from saccade.errors import SaccadeError

FACTOR = 3


def scale(x: int, *, by: int = 2) -> int:
    return x * by


imported_elsewhere = scale
TABLE = {"scale": scale}


class Base:
    def get(self) -> str:
        return "base"


class Derived(Base):
    def get(self) -> str:
        return f"derived of {super().get()}"  # a free variable: __class__

    @classmethod
    def build(cls) -> str:
        return cls.__name__


def test_a_body_is_replaced_for_everybody_who_imported_the_function() -> None:
    with patching() as patch:
        patch.replace(scale, lambda original, x, **how: original(x, **how) + FACTOR)
        assert (scale(5), imported_elsewhere(5, by=1), TABLE["scale"](1)) == (13, 8, 5)
    assert (scale(5), imported_elsewhere(5, by=1), scale.__kwdefaults__) == (10, 5, {"by": 2})
    assert not [name for name in globals() if name.startswith("__replaced")]


def test_methods_with_free_variables_and_class_methods_are_replaced() -> None:
    with patching() as patch:
        patch.replace(Derived.get, lambda original, self: original(self).upper())
        patch.replace(Derived.build, lambda original, cls: f"broken {original(cls)}")
        assert Derived().get() == "DERIVED OF BASE" and Derived.build() == "broken Derived"
    assert Derived().get() == "derived of base" and Derived.build() == "Derived"


def test_two_replacements_of_one_function_are_undone_in_reverse_order() -> None:
    with patching() as patch:
        patch.replace(scale, lambda original, x: original(x) + 1)
        patch.replace(scale, lambda original, x: original(x) * 10)
        assert scale(1) == 30
    assert scale(1) == 2


def test_attributes_and_entries_are_restored_or_removed() -> None:
    module, table = ModuleType("some"), {"a": 1}
    module.x = 1
    with patching() as patch:
        patch.set(module, "x", 2)
        patch.set(module, "y", 3)
        patch.set(Derived, "name", "new")
        patch.set_item(table, "a", 2)
        patch.set_item(table, "b", 3)
        assert (module.x, module.y, Derived.name, table) == (2, 3, "new", {"a": 2, "b": 3})
    assert (module.x, hasattr(module, "y"), hasattr(Derived, "name"), table) == (1, False, False, {"a": 1})


def test_code_is_restored_after_an_exception() -> None:
    fault = Break("some", "It raises.", lambda patch: patch.replace(scale, lambda original, x: 0))
    with pytest.raises(ZeroDivisionError), apply(fault):
        raise ZeroDivisionError(scale(1))
    assert scale(1) == 2


def test_only_functions_in_python_have_a_body() -> None:
    with patching() as patch, pytest.raises(TypeError, match="only functions written in Python have a body to replace"):
        patch.replace(len, lambda original, x: 0)


def test_names_of_breaks_are_unique_and_unknown_ones_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "BREAKS", dict(registry.load_breaks()))
    with pytest.raises(ValueError, match="there are two breaks called 'uniform-attention'"):
        break_code("uniform-attention", "Again.")(lambda patch: None)
    with pytest.raises(SaccadeError, match="no break 'uniform-atention'; did you mean 'uniform-attention'?"):
        find_break("uniform-atention")
    with pytest.raises(SaccadeError, match="there is no break 'xyz'; `saccade lectures audit --list` lists them"):
        find_break("xyz")


def test_every_break_is_described_by_one_sentence() -> None:
    for name, fault in registry.load_breaks().items():
        assert name == name.lower() and " " not in name, name
        assert fault.what.endswith(".") and fault.what[0].isupper() and len(fault.what) > 20, name
