"""Decoding settings of a request: the run's own with the changes of the client, validated like a recipe."""

import json
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from saccade.config.load import dump, merge, validate
from saccade.config.renames import rename_keys
from saccade.config.schema import Decoding, Recipe
from saccade.errors import SaccadeError

# Bounds for the settings of a request, against exhausted memory and numeric overflow; a run's own settings may exceed
# them.
MAX_VALUES: dict[str, float] = {
    "beam": 32,
    "n_best": 32,
    "iterations": 64,
    "length_candidates": 32,
    "batch_tokens": 65536,
    "top_k": 2**31 - 1,
    "seed": 2**63 - 1,
    "length_penalty": 50,
    "coverage_penalty": 1000,
    "temperature": 1000,
    "repetition_penalty": 100,
    "frequency_penalty": 100,
}
MIN_VALUES: dict[str, float] = {"temperature": 0.01, "length_penalty": -50}
MAX_CACHED_CHARACTERS = 1000  # longer settings, such as long stop strings, are not cached
CACHE_SIZE = 256  # validated settings, so that the next request with the same ones need not be validated


class DecodingSettings:
    """Validates the decoding settings of requests for one run."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.values = tomllib.loads(dump(recipe))
        self._parse_cached = lru_cache(maxsize=CACHE_SIZE)(self._parse)

    def build_decoding(self, changes: Mapping[str, Any]) -> Decoding:
        """Apply the changes of a request to the run's own settings; an exception lists all invalid ones."""
        if not changes:
            return self.recipe.predict
        text = json.dumps(changes, sort_keys=True)
        return self._parse_cached(text) if len(text) <= MAX_CACHED_CHARACTERS else self._parse(text)

    def _parse(self, text: str) -> Decoding:
        changes = rename_keys(Decoding, json.loads(text))
        count = changes.get("n_best")
        if isinstance(count, int) and "beam" not in changes:  # n hypotheses need a beam of at least n
            changes["beam"] = max(count, self.recipe.predict.beam)
        chosen = validate(
            merge(self.values, {"predict": changes}, set()), kinds=self.recipe.kinds, origin="settings"
        ).predict
        for name in changes.keys() & (MAX_VALUES.keys() | MIN_VALUES.keys()):
            self._check_bounds(name, getattr(chosen, name))
        return chosen

    def _check_bounds(self, name: str, value: float) -> None:
        own = getattr(self.recipe.predict, name)
        most, least = max(MAX_VALUES.get(name, value), own), min(MIN_VALUES.get(name, value), own)
        if not least <= value <= most:
            bound = f"at most {most}" if value > most else f"at least {least}"
            raise SaccadeError(f"settings: predict.{name}: expected {bound} in a request to this server, got {value}")


def build_settings_schema() -> dict[str, Any]:
    """Build the JSON Schema of the settings for the OpenAPI description."""
    properties = Decoding.model_json_schema()["properties"]
    for name, most in MAX_VALUES.items():
        properties[name]["maximum"] = most
    for name, least in MIN_VALUES.items():
        properties[name].pop("exclusiveMinimum", None)
        properties[name]["minimum"] = least
    for entry in properties.values():
        entry.pop("default", None)  # the default is the run's own value
        entry.pop("title", None)
    return {"type": "object", "properties": properties, "additionalProperties": False}
