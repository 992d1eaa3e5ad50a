"""The end of a run: the weights to use are chosen, the loss is drawn, the card is written."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch

import saccade
from saccade.config.schema import Corpus, Recipe
from saccade.config.training import LOWER
from saccade.data.tokenization.tokenizers import Tokenizers
from saccade.errors import SaccadeError
from saccade.files import atomic_write, replacing
from saccade.model.run import read_weights
from saccade.runs import CARD, METRICS, read_metrics
from saccade.score.labels import OF_KIND
from saccade.score.playing import OF_EPISODES
from saccade.train import checkpoint
from saccade.train.average import Weights, chosen_steps, mean_of
from saccade.train.session import Session
from saccade.train.validate import is_better, measure, write_usable

PICTURE = "loss.png"


class Chosen(NamedTuple):
    """The weights in use at the end of a run."""

    weights: Weights
    told: str
    scores: Mapping[str, Any]  # of these very weights in validation; empty where they were not validated


def finish(s: Session) -> None:
    chosen = choose_weights(s)
    write_usable(s, chosen.weights)
    s.tick()
    if s.ranks.main:
        draw_loss(s.run)
        atomic_write(s.run / CARD, card(s, chosen).encode())
    s.log.say(f"{chosen.told}; {s.progress.seconds / 60:.1f} minutes; the run is in {s.run}")


def choose_weights(s: Session) -> Chosen:
    """The mean of checkpoints where the recipe asks for it and validation finds it no worse, else the best step's."""
    s.ranks.wait()  # the first process has written its last checkpoint: all find the same ones
    settings, progress = s.recipe.train, s.progress
    lower = settings.metric in LOWER
    steps = chosen_steps(settings.average, saved=checkpoint.steps(s.folder), ranking=progress.ranking, lower=lower)
    checkpoints = checkpoint.whole(s.folder, sorted(steps), warn=s.log.say)
    if len(checkpoints) < 2:
        return best_single(s)
    steps = [found.step for found in checkpoints]
    mean = mean_of(checkpoints, group="model" if s.average is None else "ema")
    told = f"mean of the {kind_of_weights(s)} of steps {', '.join(map(str, steps))}"
    if s.valid is None:
        return Chosen(mean, told, {})
    values = measure(s, mean)
    value, best = float(values[settings.metric]), progress.best
    better = best is None or value == best or is_better(s, value, best)
    s.log.record("average", step=progress.step, values={**values, "chosen": better, "steps": steps})
    other = "no single one was validated" if best is None else f"the best single one has {best:.4g}"
    s.log.say(f"{told}: {settings.metric} {value:.4g}, {other}")
    return Chosen(mean, told, values) if better else best_single(s)


def best_single(s: Session) -> Chosen:
    """The weights of the step that validated best; of the last one where none was validated or the best are lost."""
    step, weights = s.progress.step, s.usable
    if s.progress.best is not None:
        try:
            weights = read_weights(checkpoint.best_path(s.folder, s.progress.best_step))
            step = s.progress.best_step
        except SaccadeError as error:
            s.log.say(f"the best weights are lost ({error}); those of step {step} are used")
    measured = [line for line in read_metrics(s.run / METRICS) if line["event"] == "valid" and line["step"] == step]
    return Chosen(weights, f"{kind_of_weights(s)} of step {step}", measured[-1] if measured else {})


def kind_of_weights(s: Session) -> str:
    return "weights" if s.average is None else "moving average of the weights"


def draw_loss(run: Path) -> None:
    """The loss of training and validation over the steps."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for event, label in (("train", "training"), ("valid", "validation")):
        lines = [line for line in read_metrics(run / METRICS) if line["event"] == event]
        if lines:
            axes.plot(
                [line["step"] for line in lines], [line["loss"] for line in lines], label=label,
                marker="." if len(lines) < 50 else None,
            )  # fmt: skip
    axes.set(xlabel="step", ylabel="loss", title=run.name)
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend()
    with replacing(run / PICTURE) as temporary:
        figure.savefig(temporary, format="png", dpi=120)


def card(s: Session, chosen: Chosen) -> str:
    """What was trained on what, how well, on what machine; no paths of this machine."""
    recipe, progress = s.recipe, s.progress
    lines = [
        f"# {recipe.name or s.run.name}",
        "",
        *([recipe.about, ""] if recipe.about else []),
        f"* task: {recipe.task.name}; {sum(p.numel() for p in s.model.parameters()):,} parameters",
        f"* training data: {corpora(recipe.data.train)}",
        f"* validation data: {validation_data(recipe)}",
        f"* tokenizer: {recipe.tokenizer.kind}, {pieces(s.tokenizers)}",
        f"* training: {progress.step:,} steps, {progress.epoch:.2f} epochs, {progress.tokens:,} tokens, "
        f"{progress.seconds / 60:.1f} minutes, seed {recipe.train.seed}",
        f"* weights: {chosen.told}",
        f"* hardware: {hardware(s)}",
        f"* versions: saccade {saccade.__version__}, torch {torch.__version__}, Python {platform.python_version()}",
        *[f"* note: {note}" for note in s.notes],
        "",
        *scores(chosen),
    ]
    return "\n".join(lines) + "\n"


def pieces(tokenizers: Tokenizers) -> str:
    """How large the vocabularies are; of labels, which there are."""
    if (labels := tokenizers.labels) is not None:
        names = f"{len(labels.names)} labels: {', '.join(labels.names)}" if labels.names else "numbers"
        return f"{tokenizers.source.size:,} pieces; {names}"
    shared = " (shared)" if tokenizers.shared else ""
    return f"{tokenizers.source.size:,} source and {tokenizers.target.size:,} target pieces{shared}"


def scores(chosen: Chosen) -> list[str]:
    """What validation measured of the weights that were chosen."""
    shown = chosen.scores
    if not shown:
        return ["These weights were not validated, so there are no scores."]
    more = dict.fromkeys(chain(*OF_KIND.values(), OF_EPISODES))
    told = ("loss", "perplexity", "bits_per_byte", "bleu", "gleu", *more)
    numbers = [(name, shown[name]) for name in told if name in shown]
    table = [f"| {name} | {value:.4g} |" for name, value in numbers]
    signature = shown.get("signature")
    note = ["", f"Outputs decoded greedily; BLEU signature: `{signature}`"] if signature else []
    return ["| validation | |", "|---|---|", *table, *note]


def corpora(items: tuple[Corpus, ...]) -> str:
    """Names of files without their folders."""
    return ", ".join(" + ".join(name_of(file) for file in corpus.files) for corpus in items)


def name_of(file: str) -> str:
    return file if file.startswith("embedded:") else Path(file).name


def validation_data(recipe: Recipe) -> str:
    share = recipe.data.valid_share
    return f"{share:.2%} of the training pairs, held out" if share else corpora(recipe.data.valid_corpora) or "none"


def hardware(s: Session) -> str:
    if s.device.type == "cuda":
        return f"{s.ranks.world} x {torch.cuda.get_device_name(s.device)}"
    return f"{s.device.type}, {torch.get_num_threads()} threads, {s.ranks.world} processes ({platform.machine()})"
