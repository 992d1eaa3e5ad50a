"""`saccade.train(...)`: one call from a recipe to a trained model, the same from Python and from the command line.

A user's mistake, a full disk, a loss that is no number and a GPU that is too small are a SaccadeError. Ctrl-C and
SIGTERM save everything and raise `signals.Interrupted`, whose text says how to go on and whose `exit_code` (130, 143)
the command line leaves with.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from saccade.config.load import load, override, shipped
from saccade.config.schema import Corpus, Recipe
from saccade.errors import SaccadeError
from saccade.model.run import pick_device
from saccade.predict.predictors.predictor import Predictor
from saccade.runs import LOCK, RECIPE, find_run, not_a_run, runs_folder, training
from saccade.train.distributed.ranks import Ranks, join
from saccade.train.finish import finish
from saccade.train.loop import run_loop
from saccade.train.machine import exactness, kept_randomness
from saccade.train.session import Session
from saccade.train.setup import open_session
from saccade.train.transfer.adopt import adopted, first_run, with_its_tokenizer
from saccade.train.transfer.adopt_media import adopted_parts, named_runs

Files = str | Path | Corpus | Sequence[str | Path] | Sequence[Sequence[str | Path] | Corpus]
FIXED = ("data", "tokenizer", "reader", "writer", "objectives", "init", "freeze", "task")  # for the life of a run


def train(
    recipe: Recipe | str | Path | None = None,
    *,
    data: Files | None = None,
    valid: Files | float | None = None,
    run: str | Path | None = None,
    overrides: Sequence[str] = (),
    tiny: bool = False,
    kinds: Mapping[str, Any] | None = None,
    resume: str | Path | None = None,
) -> Predictor:
    """Trains a recipe, or goes on with a run, and gives the trained model."""
    if isinstance(overrides, str):
        raise SaccadeError(f"overrides are a list of key=value texts, got the text {overrides!r}; put it into a list")
    given = {"recipe": recipe, "data": data, "valid": valid, "run": run, "tiny": tiny or None}
    if resume is not None:
        path = find_run(resume)
        check_resume(path, [name for name, value in given.items() if value is not None])
        chosen = resumed_recipe(path, overrides, kinds)
    elif data is None and valid is None and not named_runs(overrides):
        chosen = new_recipe(recipe, overrides=overrides, tiny=tiny, kinds=kinds)
    else:  # overrides come last: they may say more about the files, such as data.train.0.columns
        chosen = with_data(started(recipe, overrides, tiny=tiny, kinds=kinds), data=data, valid=valid)
        chosen = override(chosen, overrides, kinds=kinds, origin=f"recipe '{chosen.name}'")
    if resume is None:
        chosen = with_its_tokenizer(chosen, overrides, kinds=kinds)
    check_data(chosen)
    with kept_randomness(pick_device(chosen.train.device)):
        path = train_run(chosen, run if resume is None else path, resumed=resume is not None, kinds=kinds)
        return Predictor.load(path, kinds=kinds, device=chosen.train.device)


def train_run(recipe: Recipe, run: str | Path | None, *, resumed: bool, kinds: Mapping[str, Any] | None) -> Path:
    """Trains in the folder of a run and gives its path."""
    device = pick_device(recipe.train.device)
    with exactness(recipe.train, device):
        ranks, device = join(device)
        try:
            if resumed and run is not None:
                path = Path(run)
            else:
                path = run_folder(recipe.name or "run", run, ranks=ranks, device=device)
            with reserved(path, ranks), training(path) if ranks.main else nullcontext():
                s = open_session(recipe, path, ranks=ranks, device=device, resumed=resumed, kinds=kinds)
                run_session(s)
                ranks.wait()
        finally:
            ranks.close()
    return path


def run_session(s: Session) -> None:
    """The loop and what comes after it; what the machine cannot do is told in one line."""
    try:
        with s.log:
            run_loop(s)
            finish(s)
    except torch.OutOfMemoryError:
        raise s.memory.message(resume=s.again) from None
    except OSError as error:
        raise SaccadeError(
            f"cannot write to the run '{s.run}': {error.strerror or error}; when that is mended, go on with: {s.again}"
        ) from None


def new_recipe(
    recipe: Recipe | str | Path | None, *, overrides: Sequence[str] = (), tiny: bool, kinds: Mapping[str, Any] | None
) -> Recipe:
    if recipe is None:
        raise SaccadeError(
            "nothing to train: give the name or file of a recipe, or resume=RUN; `saccade recipes` lists them"
        )
    if not isinstance(recipe, Recipe):
        return load(recipe, overrides=overrides, tiny=tiny, kinds=kinds)
    if tiny:
        raise SaccadeError("tiny=True needs the name or the file of a recipe, got a recipe that is read already")
    return override(recipe, overrides, kinds=kinds)


def started(
    recipe: Recipe | str | Path | None, overrides: Sequence[str], *, tiny: bool, kinds: Mapping[str, Any] | None
) -> Recipe:
    """A recipe before its overrides; one by name gives way to the run that it starts from, a file is as it says."""
    made, run = new_recipe(recipe, tiny=tiny, kinds=kinds), first_run(overrides)
    if not isinstance(recipe, str) or recipe not in shipped():
        return made
    if made.reader.medium:
        return adopted_parts(made, named_runs(overrides), kinds=kinds)
    return adopted(made, run, kinds=kinds) if run else made


def check_resume(path: Path, given: Sequence[str]) -> None:
    if given:
        raise SaccadeError(f"resume takes everything from the run '{path}'; leave out: {', '.join(given)}")
    if not (path / RECIPE).is_file():
        raise not_a_run(path)


def resumed_recipe(path: Path, overrides: Sequence[str], kinds: Mapping[str, Any] | None) -> Recipe:
    """The run's own recipe; what the model and the data are made of cannot be changed any more."""
    before = load(path / RECIPE, kinds=kinds)
    after = load(path / RECIPE, overrides=overrides, kinds=kinds)
    changed = [name for name in FIXED if getattr(before, name) != getattr(after, name)]
    changed += [f"train.{key}" for key in ("seed", "lora") if getattr(before.train, key) != getattr(after.train, key)]
    if changed:
        raise SaccadeError(
            f"{', '.join(changed)} cannot change while a run goes on; start another one from its weights: "
            f"saccade train {path / RECIPE} init={path} ..."
        )
    return after


def with_data(recipe: Recipe, *, data: Files | None, valid: Files | float | None) -> Recipe:
    """The recipe with the user's own files in it."""
    changes: dict[str, Any] = {}
    if data is not None:
        changes["train"] = corpora(data)
        if recipe.task.predicts_labels:  # those of the recipe have other labels
            changes["valid"] = ()
    if isinstance(valid, int | float):
        if not 0 <= valid < 1:
            raise SaccadeError(f"valid as a number is the share of pairs held out, from 0 to below 1, got {valid:g}")
        changes["valid"] = float(valid)
    elif valid is not None:
        changes["valid"] = corpora(valid)
    if changes:
        values = {**recipe.data.model_dump(), **changes}
        recipe = recipe.model_copy(update={"data": type(recipe.data).model_validate(values)})
    return recipe


def check_data(recipe: Recipe) -> None:
    if not recipe.data.train:
        how = recipe.task.get_data_usage(recipe)
        raise SaccadeError(
            f"recipe '{recipe.name}' has no training data: give yours with {how} in Python), "
            "or add --tiny for a small model on embedded data"
        )


def corpora(files: Any) -> tuple[Corpus, ...]:
    """One file, two line-aligned files, or several of these."""
    if isinstance(files, str | Path | Corpus):
        files = [files] if isinstance(files, Corpus) else [[files]]
    elif files and all(isinstance(item, str | Path) for item in files):
        files = [files]
    for item in files:
        if not isinstance(item, Corpus) and not 1 <= len(item) <= 2:
            raise SaccadeError(
                f"a corpus is one file or two line-aligned files, got {len(item)}: {', '.join(map(str, item))}"
            )
    return tuple(item if isinstance(item, Corpus) else Corpus(files=tuple(map(str, item))) for item in files)


def run_folder(name: str, run: str | Path | None, *, ranks: Ranks, device: torch.device) -> Path:
    """`runs/NAME`, or NAME itself where it is a path; without one, `runs/RECIPE-N`, made with the first free N."""
    if run is not None:
        return named_folder(run)
    number = torch.zeros((), dtype=torch.int64, device=device)  # the first process tells it to the others
    if ranks.main:
        number += next(n for n in itertools.count(1) if made(runs_folder() / f"{name}-{n}"))
    return runs_folder() / f"{name}-{int(ranks.total(number))}"


def made(path: Path) -> bool:
    """Makes the folder, or says that it is there; of two who try at once only one makes it."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        return False
    except OSError as error:
        raise SaccadeError(f"cannot make the folder '{path}': {error.strerror or error}") from None
    return True


def named_folder(run: str | Path, *, resumes: bool = True) -> Path:
    """The folder of a name, which must not be in use; one that is may be what somebody wants to go on with."""
    path = Path(run) if isinstance(run, Path) or len(Path(run).parts) > 1 else runs_folder() / run
    if (path / RECIPE).exists():
        ways = f"go on with it: saccade train --resume {path}" if resumes else "remove it first"
        raise SaccadeError(f"run '{path}' exists already; {ways}, or choose another --run NAME")
    begun = (path / LOCK).exists()  # by a training that was killed before it had a recipe, or that is at work
    if path.exists() and not begun and (not path.is_dir() or any(path.iterdir())):
        raise SaccadeError(f"'{path}' exists already and is not a run; choose another --run NAME")
    return path


@contextmanager
def reserved(path: Path, ranks: Ranks) -> Iterator[None]:
    """The folder is made at first, so that nobody else takes its name, and goes again if nothing comes of it."""
    ranks.wait()  # all have looked at the name before it is taken
    if ranks.main and not path.is_dir():
        made(path)
    try:
        yield
    except BaseException:
        if ranks.main and not any(path.iterdir()):
            path.rmdir()
        raise
