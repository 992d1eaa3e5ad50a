"""`saccade.train(...)`: one call from a recipe to a trained model, the same from Python and from the command line.

Mistakes of the user, a full disk, a diverged loss and too little memory raise a SaccadeError. Ctrl-C and SIGTERM
save a checkpoint and raise `signals.Interrupted`, whose message says how to resume and whose `exit_code` (130, 143) is
that of the command line.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch

from saccade.config.load import flatten, has_recipe, load, override, read_recipe, to_override_list
from saccade.config.schema import Recipe
from saccade.data.sources.given import Files, to_corpora
from saccade.errors import SaccadeError
from saccade.files import atomic_write, remove_contents
from saccade.model.run import pick_device
from saccade.predict.predictors.predictor import Predictor
from saccade.runs import LAUNCH, LOCK, RECIPE, build_not_a_run_error, find_run, get_runs_folder, get_state, lock_run
from saccade.train.distributed.faults import (
    find_restarted_run,
    get_launch_id,
    is_begun,
    report_lost_processes,
)
from saccade.train.distributed.mesh import choose_micro_batches, forget_other_layout
from saccade.train.distributed.ranks import Ranks, init_distributed
from saccade.train.finish import finish
from saccade.train.loop import run_loop
from saccade.train.machine import deterministic_mode, preserve_rng_state
from saccade.train.out_of_memory import report_out_of_memory
from saccade.train.session import Session
from saccade.train.setup import open_session
from saccade.train.transfer.adopt import adopt_run, adopt_tokenizer, find_init_run
from saccade.train.transfer.adopt_media import adopt_media_parts, find_init_runs

# Tables of a recipe that cannot change when a run is resumed
FIXED_TABLES = ("data", "tokenizer", "reader", "writer", "objectives", "init", "freeze", "task")


def train(  # noqa: PLR0913  # what users choose is its parameters
    recipe: Recipe | str | Path | None = None,
    *,
    data: Files | None = None,
    valid: Files | float | None = None,
    run: str | Path | None = None,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    tiny: bool = False,
    paper: bool = False,
    kinds: Mapping[str, Any] | None = None,
    resume: str | Path | None = None,
    overwrite: bool = False,
) -> Predictor:
    """Train a recipe, or resume a run, and return the trained model.

    `data` and `valid` are one file, two line-aligned files, or a list of these; `valid` may also be the share of `data`
    to hold out. `overrides` change keys of the recipe: {"train.steps": 2000}, or ["train.steps=2000"]. `tiny` trains a
    small model on synthetic data, `paper` one of the sizes and with the settings of the recipe's paper. `run` names the
    folder of the run; with `overwrite`, a run of that name is replaced as soon as the new one begins to train.
    """
    overrides = to_override_list(overrides)
    given = {
        "recipe": recipe, "data": data, "valid": valid, "run": run, "tiny": tiny or None, "paper": paper or None,
        "overwrite": overwrite or None,
    }  # fmt: skip
    if overwrite and run is None and resume is None:
        raise SaccadeError("overwrite=True needs the name of the run to replace; give run=NAME")
    form = {"tiny": tiny, "paper": paper}
    if resume is None and (begun := find_restarted_run(None if run is None else get_run_path(run))) is not None:
        run = begun
        if is_begun(begun):
            return resume_restarted(begun, kinds)
    if resume is not None:
        path = find_run(resume)
        check_resume(path, [name for name, value in given.items() if value is not None])
        chosen = load_resumed_recipe(path, overrides, kinds)
    else:
        chosen = build_recipe(recipe, data=data, valid=valid, overrides=overrides, form=form, kinds=kinds)
    check_data(chosen)
    with preserve_rng_state(pick_device(chosen.train.device)):
        path = train_run(chosen, run if resume is None else path, resumed=resume is not None, overwrite=overwrite)
        return Predictor.load(path, kinds=chosen.kinds, device=chosen.train.device)


def resume_restarted(path: Path, kinds: Mapping[str, Any] | None) -> Predictor:
    """Go on with a run whose processes torchrun has started again after one of them had ended."""
    recipe = load_resumed_recipe(path, (), kinds)
    with preserve_rng_state(pick_device(recipe.train.device)):
        train_run(recipe, path, resumed=True)
        return Predictor.load(path, kinds=recipe.kinds, device=recipe.train.device)


def train_run(
    recipe: Recipe, run: str | Path | None, *, resumed: bool, overwrite: bool = False, pause_step: int | None = None
) -> Path:
    """Train in the folder of a run and return its path; raises Interrupted after `pause_step`, with a checkpoint."""
    if not resumed:
        recipe = recipe.model_copy(update={"train": choose_micro_batches(recipe.train)})
    device = pick_device(recipe.train.device)
    with deterministic_mode(recipe.train, device):
        ranks, device = init_distributed(device, timeout=recipe.train.parallel.timeout)
        try:
            if resumed and run is not None:
                path = Path(run)
            else:
                path = create_run_folder(recipe.name or "run", run, ranks=ranks, device=device, overwrite=overwrite)
            old = set_aside(path, ranks) if overwrite else nullcontext(lambda: None)
            timeout, command = recipe.train.parallel.timeout, f"saccade train --resume {path}"
            with (
                old as remove_old,
                reserve_folder(path, ranks),
                report_lost_processes(ranks, timeout=timeout, resume=command),
            ):
                s = open_session(recipe, path, ranks=ranks, device=device, resumed=resumed)
                remove_old()
                s.pause_step = pause_step
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


def build_recipe(
    recipe: Recipe | str | Path | None,
    *,
    data: Files | None,
    valid: Files | float | None,
    overrides: Sequence[str] = (),
    form: Mapping[str, bool],
    kinds: Mapping[str, Any] | None = None,
) -> Recipe:
    """Return a recipe as `train` trains it: with these files, with the parts of an `init` run, and with overrides."""
    if data is None and valid is None and not find_init_runs(overrides):
        chosen = load_recipe(recipe, overrides=overrides, form=form, kinds=kinds)
    else:  # overrides come last: they may configure the files that were given, such as data.train.0.columns
        chosen = replace_data(load_initial_recipe(recipe, overrides, form=form, kinds=kinds), data=data, valid=valid)
        chosen = override(chosen, overrides, kinds=kinds, origin=f"recipe '{chosen.name}'")
    return adopt_tokenizer(chosen, overrides)


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
    has_key = "on_error" in read_recipe(path / RECIPE).get("data", {})
    former = [] if has_key else ["data.on_error=skip"]  # up to 0.9, incomplete rows were skipped
    before = load(path / RECIPE, overrides=former, kinds=kinds)
    after = load(path / RECIPE, overrides=[*former, *overrides], kinds=kinds)
    changed = [name for name in FIXED_TABLES if getattr(before, name) != getattr(after, name)]
    changed += [f"train.{key}" for key in ("seed", "lora") if getattr(before.train, key) != getattr(after.train, key)]
    if changed:
        raise SaccadeError(
            f"{', '.join(changed)} cannot change when a run is resumed; start another one from its weights: "
            f"saccade train {path / RECIPE} init={path} ..."
        )
    return forget_other_layout(after, overrides)


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


def create_run_folder(
    name: str, run: str | Path | None, *, ranks: Ranks, device: torch.device, overwrite: bool = False
) -> Path:
    """Return `runs/NAME`, or NAME itself if it is a path; without a name, create `runs/RECIPE-N` (first free N)."""
    if run is not None:
        return resolve_run_folder(run, overwrite=overwrite)
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


def get_run_path(run: str | Path) -> Path:
    return Path(run) if isinstance(run, Path) or len(Path(run).parts) > 1 else get_runs_folder() / run


def resolve_run_folder(run: str | Path, *, resumable: bool = True, overwrite: bool = False) -> Path:
    """Return the folder for a new run of this name; raises a SaccadeError if it is in use.

    With `overwrite`, it may be that of another run.
    """
    path = get_run_path(run)
    if (path / RECIPE).exists():
        if overwrite:
            return path
        resume = f"resume it: saccade train --resume {path}; replace it: --overwrite (overwrite=True in Python)"
        hint = resume if resumable else "remove it first"
        raise SaccadeError(f"run '{path}' exists already; {hint}; or choose another --run NAME")
    has_lock = (path / LOCK).exists()  # of a process that is running, or was killed before it wrote a recipe
    if path.exists() and not has_lock and (not path.is_dir() or any(path.iterdir())):
        raise SaccadeError(f"'{path}' exists already and is not a run; choose another --run NAME")
    return path


@contextmanager
def set_aside(path: Path, ranks: Ranks) -> Iterator[Callable[[], None]]:
    """Rename the folder of a run that is to be replaced; yield the function that removes it.

    If training fails before that function is called, the old run gets its name back.
    """
    aside = path.with_name(f".{path.name}.replaced")
    if ranks.is_main and (path / RECIPE).exists():
        with lock_run(path):
            remove_run(aside)
            path.rename(aside)
    try:
        yield lambda: remove_run(aside) if ranks.is_main else None
    except BaseException:
        if ranks.is_main and aside.exists() and not path.exists():
            aside.rename(path)
        raise


def remove_run(path: Path) -> None:
    """Remove the folder of a run, if there is one; of a link, only the link."""
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


@contextmanager
def reserve_folder(path: Path, ranks: Ranks) -> Iterator[None]:
    """Create the folder of a run at once, so that its name is taken, and lock it.

    After an error before its recipe was written, such as a full disk, remove all new files: without a recipe it is
    no run, and its name would be taken for nothing.
    """
    ranks.barrier()  # all processes have checked the name before it is taken
    if not ranks.is_main:
        yield
        return
    if not path.is_dir():
        create_folder(path)
    with lock_run(path):
        before = {item.name for item in path.iterdir()} - {LOCK, LAUNCH}
        if launch := get_launch_id():
            atomic_write(path / LAUNCH, launch.encode())
        try:
            yield
        except BaseException:
            if not (path / RECIPE).exists():
                remove_contents(path, kept=before)
                if not before:
                    with suppress(OSError):
                        path.rmdir()
            raise


def train_or_load(recipe: Recipe, folder: Path) -> Predictor:
    """Load a finished run, resume an interrupted one, or train a new one."""
    state = get_state(folder)
    if state == "finished":
        return Predictor.load(folder, kinds=recipe.kinds, device=recipe.train.device)
    if state == "new":
        return train(recipe, run=folder)
    return train(resume=folder, kinds=recipe.kinds)


def train_until(recipe: Recipe, folder: Path, pause_step: int | None = None) -> None:
    """Train a new run, or resume an interrupted one; raises Interrupted after `pause_step`, with a checkpoint."""
    resumed = get_state(folder) != "new"
    chosen = load_resumed_recipe(folder, (), recipe.kinds) if resumed else recipe
    with preserve_rng_state(pick_device(chosen.train.device)):
        train_run(chosen, folder, resumed=resumed, pause_step=pause_step)


def check_same_settings(recipe: Recipe, folder: Path, *, hint: str = "choose another --out DIR") -> None:
    """Check that an existing run has the same settings; only those of decoding may differ."""
    if not (folder / RECIPE).exists():
        return
    recipes = (load(folder / RECIPE, kinds=recipe.kinds), recipe)
    before, now = (flatten(part.model_dump(mode="json", exclude={"predict", "about"})) for part in recipes)
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key):
            raise SaccadeError(
                f"'{folder}' was trained with {key} = {before.get(key)!r}, now it is {now.get(key)!r}; {hint}"
            )
