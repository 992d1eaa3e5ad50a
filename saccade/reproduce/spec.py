"""Recorded results: which recipe, settings, data, metric and decoding gave which number. Does not import torch."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from saccade.config.kinds import format_suggestion
from saccade.config.schema import Corpus
from saccade.errors import SaccadeError

SPREADS = 2.0  # recorded standard deviations by which a mean may differ from the recorded one
PARAMETER_TOLERANCE = 0.005  # by which the number of parameters may differ: vocabularies vary by a few tokens
EMBEDDED, PREPARED = "embedded:", "prepared/"  # files that are generated, and those that `prepare` writes


class Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _read_corpus(value: Any) -> Any:
    return {"files": value} if isinstance(value, list) else value


Corpora = tuple[Annotated[Corpus, BeforeValidator(_read_corpus)], ...]
Settings = tuple[str, ...]


class Stage(Table):
    """A run, or outputs of a run, that a result needs first; settings and files refer to it as {name}."""

    name: str
    recipe: str = ""  # of a stage that trains
    predict: str = ""  # of a stage that predicts: the stage whose model does
    input: str = ""  # the file that it predicts for, line by line
    train: Corpora = ()  # empty: the files of the result
    valid: Corpora = ()
    settings: Settings = ()  # of the recipe, or of decoding


class Peer(Table):
    """Another toolkit's result on the same data."""

    name: str
    value: float
    parameters: float | None = None
    note: str = ""


class Recorded(Table):
    """What was measured: one value for each seed."""

    values: dict[int, float] = Field(min_length=1)
    parameters: int | None = None
    minutes: float | None = None  # of training, for each seed, in the mean
    hardware: str
    date: str
    commit: str = ""
    row: str = ""  # the name of these values in benchmarks/results

    @property
    def mean(self) -> float:
        return fmean(self.values.values())

    @property
    def spread(self) -> float | None:
        """Standard deviation over the seeds; None where there is only one."""
        return stdev(self.values.values()) if len(self.values) > 1 else None


class Spec(Table):
    """One result: everything that is needed to measure it again."""

    name: str
    title: str  # the system and its data, in a few words
    dataset: str
    source: str = ""  # where the data comes from
    files: dict[str, str] = {}  # SHA-256 of the content of each file, decompressed if it is a .gz file
    prepare: str = ""  # the function of prepare.py that writes the files prepared/...
    recipe: str
    tiny: bool = False
    train: Corpora = ()  # empty: those of the recipe
    valid: Corpora = ()
    test: Corpora = Field(min_length=1)
    scored: Literal["test", "validation"] = "test"  # whether the data that is scored also chose the weights
    settings: Settings = ()
    before: tuple[Stage, ...] = ()
    choices: tuple[Settings, ...] = ()  # settings of which the best on the validation data are scored
    metric: str
    metrics: tuple[str, ...] = ()  # measured beside it
    unit: str
    decoding: Settings = ()
    lowercase: bool = False
    # For --heldout, where there is no `valid`: files to train on and to score, or a share of the training data.
    heldout_train: Corpora = ()
    heldout_test: Corpora = ()
    heldout_share: float = Field(default=0.1, gt=0, lt=1)
    floor: float = Field(gt=0)  # smallest tolerance: what seeds and machines may differ by
    # "seeds": each seed is compared with its own recorded value, for trainings that are the same on all machines
    compared: Literal["mean", "seeds"] = "mean"
    tuned: str  # what the settings were chosen on
    caveat: str = ""
    peer: Peer | None = None
    runs_of: str = ""  # the result whose runs this one scores in another way; keys that it leaves out are that one's
    recorded: Recorded | None = None  # None: not measured yet

    @property
    def recorded_values(self) -> Mapping[int, float]:
        """One value for each seed whose test was scored for the record; empty where nothing is recorded yet."""
        return {} if self.recorded is None else self.recorded.values

    @property
    def tolerance(self) -> float:
        spread = None if self.recorded is None else self.recorded.spread
        return max(SPREADS * (spread or 0.0), self.floor)

    @property
    def rule(self) -> str:
        if self.recorded is None:
            return "nothing is recorded yet"
        if self.compared == "seeds":
            return f"every seed is within {self.floor:g} {self.unit} of its own recorded value"
        spread = self.recorded.spread
        known = "one seed, no spread" if spread is None else f"spread {spread:.3g}"
        return (
            f"the mean of the seeds is within max({SPREADS:g} x spread, {self.floor:g}) = {self.tolerance:.3g} "
            f"{self.unit} of {self.recorded.mean:#.4g} ({known})"
        )

    def list_needed_files(self) -> list[str]:
        """Names of the data files that this result reads, for the check by hash."""
        corpora = [*self.train, *self.valid, *self.test, *(c for stage in self.before for c in stage.train)]
        corpora += [corpus for stage in self.before for corpus in stage.valid]
        named = [file for corpus in corpora for file in corpus.files] + [stage.input for stage in self.before]
        read = [name for name in dict.fromkeys(named) if name and not name.startswith((EMBEDDED, PREPARED, "{"))]
        return list(self.files) if self.prepare else read

    @model_validator(mode="after")
    def _check_files(self) -> Spec:
        unknown = [name for name in self.list_needed_files() if name not in self.files]
        if unknown:
            raise ValueError(f"'{unknown[0]}' has no SHA-256 in [files]")
        return self


def list_specs() -> dict[str, Spec]:
    """All recorded results by name, in the order of the files and of their tables."""
    folder = resources.files("saccade") / "reproduce" / "recorded"
    found: dict[str, Spec] = {}
    for file in sorted(folder.iterdir(), key=lambda item: item.name):
        if file.name.endswith(".toml"):
            found |= read_specs(file.read_text(encoding="utf-8"), origin=file.name)
    return found


def find_specs(names: list[str]) -> list[Spec]:
    """The results of these names; a name that ends with .toml is a file, all of whose results are meant."""
    known, found = list_specs(), list[Spec]()
    for name in names:
        if name.endswith(".toml"):
            found += read_spec_file(Path(name)).values()
        elif name in known:
            found.append(known[name])
        else:
            raise SaccadeError(f"unknown result '{name}'{format_suggestion('results', name, known)}")
    return list({spec.name: spec for spec in found}.values())


def read_spec_file(path: Path) -> dict[str, Spec]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SaccadeError(f"cannot read '{path}': {reason}; expected a TOML file with [results.NAME] tables") from None
    return read_specs(text, origin=str(path))


def read_specs(text: str, *, origin: str) -> dict[str, Spec]:
    """Read a file of results: keys of all of them, `[defaults]`, and a table `[results.NAME]` for each."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SaccadeError(f"{origin} is not TOML: {error}") from None
    results, defaults = values.pop("results", {}), values.pop("defaults", {})
    if not isinstance(results, dict) or not results or not isinstance(defaults, dict):
        raise SaccadeError(f"{origin} has no results; expected a table [results.NAME] for each")
    found = dict[str, Spec]()
    for name, table in results.items():
        base = table.get("runs_of") if isinstance(table, dict) else None
        if base is not None and (base not in found or found[base].runs_of):
            raise SaccadeError(f"{origin}: results.{name}.runs_of: expected a result above that has runs, got '{base}'")
        of = {key: value for key, value in results[base].items() if key != "recorded"} if base else {}
        found[name] = _build_spec(name, {**values, **defaults, **of, **table}, origin)
    return found


def _build_spec(name: str, values: Mapping[str, Any], origin: str) -> Spec:
    try:
        return Spec.model_validate({**values, "name": name})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in ("results", name, *first["loc"]))
        raise SaccadeError(f"{origin}: {where}: {first['msg'].removeprefix('Value error, ')}") from None
