"""`saccade.train(...)`: one call from a recipe to a trained model, the same from Python and from the command line.

Mistakes of the user, a full disk, a diverged loss and too little memory raise a SaccadeError. Ctrl-C and SIGTERM
save a checkpoint and raise `signals.Interrupted`, whose message says how to resume and whose `exit_code` (130, 143) is
that of the command line.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from saccade.config.load import has_recipe, load, override
from saccade.config.schema import Corpus, Recipe
from saccade.errors import SaccadeError
from saccade.model.run import pick_device
from saccade.predict.predictors.predictor import Predictor
from saccade.runs import LOCK, RECIPE, build_not_a_run_error, find_run, get_runs_folder, lock_run
from saccade.train.distributed.ranks import Ranks, init_distributed
from saccade.train.finish import finish
from saccade.train.loop import run_loop
from saccade.train.machine import deterministic_mode, preserve_rng_state
from saccade.train.out_of_memory import report_out_of_memory
from saccade.train.session import Session
from saccade.train.setup import open_session
from saccade.train.transfer.adopt import adopt_run, adopt_tokenizer, find_init_run
from saccade.train.transfer.adopt_media import adopt_media_parts, find_init_runs

Files = str | Path | Corpus | Sequence[str | Path] | Sequence[Sequence[str | Path] | Corpus]
# Tables of a recipe that cannot change when a run is resumed
FIXED_TABLES = ("data", "tokenizer", "reader", "writer", "objectives", "init", "freeze", "task")


def train(  # noqa: PLR0913  # what users choose is its parameters
    recipe: Recipe | str | Path | None = None,
    *,
    data: Files | None = None,
    valid: Files | float | None = None,
    run: str | Path | None = None,
    overrides: Sequence[str] = (),
    tiny: bool = False,
    paper: bool = False,
    kinds: Mapping[str, Any] | None = None,
    resume: str | Path | None = None,
) -> Predictor:
    """Train a recipe, or resume a run, and return the trained model.

    `tiny` trains a small model on synthetic data, `paper` one of the sizes and with the settings of the recipe's paper.
    """
    if isinstance(overrides, str):
        raise SaccadeError(f"overrides are a list of key=value strings, got {overrides!r}; put it into a list")
    given = {"recipe": recipe, "data": data, "valid": valid, "run": run, "tiny": tiny or None, "paper": paper or None}
    form = {"tiny": tiny, "paper": paper}
    if resume is not None:
        path = find_run(resume)
        check_resume(path, [name for name, value in given.items() if value is not None])
        chosen = load_resumed_recipe(path, overrides, kinds)
    elif data is None and valid is None and not find_init_runs(overrides):
        chosen = load_recipe(recipe, overrides=overrides, form=form, kinds=kinds)
    else:  # overrides come last: they may configure the files that were given, such as data.train.0.columns
        chosen = replace_data(load_initial_recipe(recipe, overrides, form=form, kinds=kinds), data=data, valid=valid)
        chosen = override(chosen, overrides, kinds=kinds, origin=f"recipe '{chosen.name}'")
    if resume is None:
        chosen = adopt_tokenizer(chosen, overrides)
    check_data(chosen)
    with preserve_rng_state(pick_device(chosen.train.device)):
        path = train_run(chosen, run if resume is None else path, resumed=resume is not None)
        return Predictor.load(path, kinds=chosen.kinds, device=chosen.train.device)


def train_run(recipe: Recipe, run: str | Path | None, *, resumed: bool) -> Path:
    """Train in the folder of a run and return its path."""
    device = pick_device(recipe.train.device)
    with deterministic_mode(recipe.train, device):
        ranks, device = init_distributed(device)
        try:
            if resumed and run is not None:
                path = Path(run)
            else:
                path = create_run_folder(recipe.name or "run", run, ranks=ranks, device=device)
            with reserve_folder(path, ranks):
                s = open_session(recipe, path, ranks=ranks, device=device, resumed=resumed)
                run_session(s)
                ranks.barrier()
        finally:
            ranks.close()
    return path


def run_session(s: Session) -> None:
    """Run the training loop and finish the run; running out of memory or disk space becomes a SaccadeError."""
    try:
        with report_out_of_memory(s), s.log:
            run_loop(s)
            finish(s)
    except OSError as error:
        raise SaccadeError(
            f"cannot write to the run '{s.run}': {error.strerror or error}; when that is fixed, resume with: "
            f"{s.resume_command}"
        ) from None


def load_recipe(
    recipe: Recipe | str | Path | None,
    *,
    overrides: Sequence[str] = (),
    form: Mapping[str, bool],
    kinds: Mapping[str, Any] | None,
) -> Recipe:
    """Load a recipe; `form` says of "tiny" and "paper" whether it is loaded in that form."""
    if recipe is None:
        raise SaccadeError(
            "nothing to train: give the name or file of a recipe, or resume=RUN; `saccade recipes` lists them"
        )
    if not isinstance(recipe, Recipe):
        return load(recipe, overrides=overrides, **form, kinds=kinds)
    for name in (name for name, chosen in form.items() if chosen):
        raise SaccadeError(f"{name}=True needs the name or the file of a recipe, got a recipe that is already loaded")
    return override(recipe, overrides, kinds=kinds)


def load_initial_recipe(
    recipe: Recipe | str | Path | None,
    overrides: Sequence[str],
    *,
    form: Mapping[str, bool],
    kinds: Mapping[str, Any] | None,
) -> Recipe:
    """Load a recipe without its overrides; a shipped one takes its architecture from the run of `init=RUN`."""
    loaded, run = load_recipe(recipe, form=form, kinds=kinds), find_init_run(overrides)
    if not isinstance(recipe, str) or not has_recipe(recipe):
        return loaded
    if loaded.reader.medium:
        return adopt_media_parts(loaded, find_init_runs(overrides))
    return adopt_run(loaded, run) if run else loaded


def check_resume(path: Path, given: Sequence[str]) -> None:
    if given:
        raise SaccadeError(f"resume takes everything from the run '{path}'; leave out: {', '.join(given)}")
    if not (path / RECIPE).is_file():
        raise build_not_a_run_error(path)


def load_resumed_recipe(path: Path, overrides: Sequence[str], kinds: Mapping[str, Any] | None) -> Recipe:
    """Load the recipe of a run with overrides; those that would change the model or the data are refused."""
    before = load(path / RECIPE, kinds=kinds)
    after = load(path / RECIPE, overrides=overrides, kinds=kinds)
    changed = [name for name in FIXED_TABLES if getattr(before, name) != getattr(after, name)]
    changed += [f"train.{key}" for key in ("seed", "lora") if getattr(before.train, key) != getattr(after.train, key)]
    if changed:
        raise SaccadeError(
            f"{', '.join(changed)} cannot change when a run is resumed; start another one from its weights: "
            f"saccade train {path / RECIPE} init={path} ..."
        )
    return after


def replace_data(recipe: Recipe, *, data: Files | None, valid: Files | float | None) -> Recipe:
    """Return the recipe with the given training and validation files."""
    changes: dict[str, Any] = {}
    if data is not None:
        changes["train"] = to_corpora(data)
        if recipe.task.predicts_labels:  # the validation data of the recipe has other labels
            changes["valid"] = ()
    if isinstance(valid, int | float):
        if not 0 <= valid < 1:
            raise SaccadeError(f"valid as a number is the share of pairs held out, from 0 to below 1, got {valid:g}")
        changes["valid"] = float(valid)
    elif valid is not None:
        changes["valid"] = to_corpora(valid)
    if changes:
        values = {**dict(recipe.data), **changes}
        recipe = recipe.model_copy(update={"data": type(recipe.data).model_validate(values)})
    return recipe


def check_data(recipe: Recipe) -> None:
    if not recipe.data.train:
        usage = recipe.task.get_data_usage(recipe)
        raise SaccadeError(
            f"recipe '{recipe.name}' has no training data: give yours with {usage} in Python), "
            "or add --tiny for a small model on embedded data"
        )


def to_corpora(files: Any) -> tuple[Corpus, ...]:
    """Convert one file, two line-aligned files, or a list of these to corpora."""
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


def create_run_folder(name: str, run: str | Path | None, *, ranks: Ranks, device: torch.device) -> Path:
    """Return `runs/NAME`, or NAME itself if it is a path; without a name, create `runs/RECIPE-N` (first free N)."""
    if run is not None:
        return resolve_run_folder(run)
    number = torch.zeros((), dtype=torch.int64, device=device)  # rank 0 sends it to the others by the sum
    if ranks.is_main:
        number += next(n for n in itertools.count(1) if create_folder(get_runs_folder() / f"{name}-{n}"))
    return get_runs_folder() / f"{name}-{int(ranks.all_reduce(number))}"


def create_folder(path: Path) -> bool:
    """Create the folder and return True, or False if it exists; of two processes that try, only one gets True."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        return False
    except OSError as error:
        raise SaccadeError(f"cannot create the folder '{path}': {error.strerror or error}") from None
    return True


def resolve_run_folder(run: str | Path, *, resumable: bool = True) -> Path:
    """Return the folder for a new run of this name; raises a SaccadeError if it is in use."""
    path = Path(run) if isinstance(run, Path) or len(Path(run).parts) > 1 else get_runs_folder() / run
    if (path / RECIPE).exists():
        hint = f"resume it: saccade train --resume {path}" if resumable else "remove it first"
        raise SaccadeError(f"run '{path}' exists already; {hint}, or choose another --run NAME")
    has_lock = (path / LOCK).exists()  # of a process that is running, or was killed before it wrote a recipe
    if path.exists() and not has_lock and (not path.is_dir() or any(path.iterdir())):
        raise SaccadeError(f"'{path}' exists already and is not a run; choose another --run NAME")
    return path


@contextmanager
def reserve_folder(path: Path, ranks: Ranks) -> Iterator[None]:
    """Create the folder of a run at once, so that its name is taken, and lock it.

    After an error before its recipe was written, such as a full disk, remove what was written: without a recipe it is
    no run, and its name would be taken for nothing.
    """
    ranks.barrier()  # all processes have checked the name before it is taken
    if not ranks.is_main:
        yield
        return
    if not path.is_dir():
        create_folder(path)
    with lock_run(path):
        before = {item.name for item in path.iterdir()} - {LOCK}
        try:
            yield
        except BaseException:
            if not (path / RECIPE).exists():
                remove_contents(path, kept=before)
            raise


def remove_contents(path: Path, *, kept: Set[str]) -> None:
    """Remove a folder with all that is in it, except these names."""
    with suppress(OSError):
        for item in path.iterdir():
            if item.name in kept:
                continue
            if item.is_dir():
                shutil.rmtree(item, ignore_errors=True)
            else:
                item.unlink(missing_ok=True)
        if not kept:
            path.rmdir()
