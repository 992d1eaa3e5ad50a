"""Decoding settings of a request: those of the run with what the client wants, checked as a recipe is."""

import json
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from saccade.config.load import dump, merge, validate
from saccade.config.schema import Decoding, Recipe
from saccade.errors import SaccadeError

# What a client may ask for at most, or at least: beyond, memory or numbers would run over. A run's own settings may.
MOST: dict[str, float] = {
    "beam": 32,
    "n_best": 32,
    "iterations": 64,
    "lengths": 32,
    "batch_tokens": 65536,
    "top_k": 2**31 - 1,
    "seed": 2**63 - 1,
    "length_penalty": 50,
    "coverage": 1000,
    "temperature": 1000,
    "repetition": 100,
    "frequency": 100,
}
LEAST: dict[str, float] = {"temperature": 0.01, "length_penalty": -50}
LONG = 1000  # letters of settings that are not kept, such as long texts to stop at
KEPT = 256  # settings that were found right, so that the next request with the same ones need not be checked


class Settings:
    """What may be said in a request about the search of one run."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.values = tomllib.loads(dump(recipe))
        self._known = lru_cache(maxsize=KEPT)(self._checked)

    def decoding(self, changes: Mapping[str, Any]) -> Decoding:
        """The run's own settings with the changes of a request, of which all mistakes are told at once."""
        if not changes:
            return self.recipe.predict
        text = json.dumps(changes, sort_keys=True)
        return self._known(text) if len(text) <= LONG else self._checked(text)

    def _checked(self, text: str) -> Decoding:
        changes = json.loads(text)
        count = changes.get("n_best")
        if isinstance(count, int) and "beam" not in changes:  # the n best are found by a search of at least that width
            changes["beam"] = max(count, self.recipe.predict.beam)
        chosen = validate(merge(self.values, {"predict": changes}, set()), origin="settings").predict
        for name in changes.keys() & (MOST.keys() | LEAST.keys()):
            self._check_bounds(name, getattr(chosen, name))
        return chosen

    def _check_bounds(self, name: str, value: float) -> None:
        own = getattr(self.recipe.predict, name)
        most, least = max(MOST.get(name, value), own), min(LEAST.get(name, value), own)
        if not least <= value <= most:
            bound = f"at most {most}" if value > most else f"at least {least}"
            raise SaccadeError(f"settings: predict.{name}: expected {bound} from a client of this server, got {value}")


def settings_schema() -> dict[str, Any]:
    """The settings as JSON Schema, for the description of the API."""
    properties = Decoding.model_json_schema()["properties"]
    for name, most in MOST.items():
        properties[name]["maximum"] = most
    for name, least in LEAST.items():
        properties[name].pop("exclusiveMinimum", None)
        properties[name]["minimum"] = least
    for entry in properties.values():
        entry.pop("default", None)  # what is not said is as the run has it
        entry.pop("title", None)
    return {"type": "object", "properties": properties, "additionalProperties": False}
