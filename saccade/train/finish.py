"""The end of a run: the weights to use are chosen, the loss is drawn, the card is written."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

import saccade
from saccade.config.schema import Corpus, Recipe
from saccade.model.run import CARD, METRICS, WEIGHTS, atomic_write, replacing
from saccade.train import checkpoint
from saccade.train.average import chosen_steps, mean_of
from saccade.train.log import read_metrics
from saccade.train.session import Session
from saccade.train.validate import is_better, measure, write_usable

PICTURE = "loss.png"


def finish(s: Session) -> None:
    chosen = choose_weights(s)
    s.tick()
    if s.ranks.main:
        draw_loss(s.run)
        atomic_write(s.run / CARD, card(s, chosen).encode())
    s.log.say(f"{chosen}; {s.progress.seconds / 60:.1f} minutes; the run is in {s.run}")


def choose_weights(s: Session) -> str:
    """Averages checkpoints where the recipe asks for it, and keeps the mean if validation finds it no worse."""
    settings, progress = s.recipe.train, s.progress
    kind = "moving average of the weights" if s.average is not None else "weights"
    own = f"{kind} of step {progress.best_step or progress.step}"
    if not (s.run / WEIGHTS).exists():
        write_usable(s, s.usable)
    saved = checkpoint.steps(s.folder)
    lower = settings.metric == "loss"
    steps = chosen_steps(settings.average, saved=saved, ranking=progress.ranking, lower=lower)
    if len(steps) < 2:
        return own
    checkpoints = checkpoint.whole(s.folder, sorted(steps), warn=s.log.say)
    if len(checkpoints) < 2:
        return own
    steps = [found.step for found in checkpoints]
    mean = mean_of(checkpoints, group="model" if s.average is None else "ema")
    told = f"mean of the {kind} of steps {', '.join(map(str, steps))}"
    if s.valid is None:
        write_usable(s, mean)
        return told
    values = measure(s, mean)
    value = float(values[settings.metric])
    assert progress.best is not None
    better = value == progress.best or is_better(s, value, progress.best)
    s.log.record("average", step=progress.step, values={**values, "chosen": better, "steps": steps})
    s.log.say(f"{told}: {settings.metric} {value:.4g}, the best single one has {progress.best:.4g}")
    if not better:
        return own
    write_usable(s, mean)
    return told


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


def card(s: Session, chosen: str) -> str:
    """What was trained on what, how well, on what machine; no paths of this machine."""
    recipe, progress = s.recipe, s.progress
    lines = [
        f"# {recipe.name or s.run.name}",
        "",
        *([recipe.about, ""] if recipe.about else []),
        f"* task: {recipe.task}; {sum(p.numel() for p in s.model.parameters()):,} parameters",
        f"* training data: {corpora(recipe.data.train)}",
        f"* validation data: {validation_data(recipe)}",
        f"* tokenizer: {recipe.tokenizer.kind}, {s.tokenizers.source.size:,} source and "
        f"{s.tokenizers.target.size:,} target pieces{' (shared)' if s.tokenizers.shared else ''}",
        f"* training: {progress.step:,} steps, {progress.epoch:.2f} epochs, {progress.tokens:,} tokens, "
        f"{progress.seconds / 60:.1f} minutes, seed {recipe.train.seed}",
        f"* weights: {chosen}",
        f"* hardware: {hardware(s)}",
        f"* versions: saccade {saccade.__version__}, torch {torch.__version__}, Python {platform.python_version()}",
        *[f"* note: {note}" for note in s.notes],
        "",
        *scores(s),
    ]
    return "\n".join(lines) + "\n"


def scores(s: Session) -> list[str]:
    """The last measurement of the weights that were chosen."""
    lines = read_metrics(s.run / METRICS)
    own = [line for line in lines if line["event"] == "valid" and line["best"]]
    mean = [line for line in lines if line["event"] == "average" and line["chosen"]]
    if not own:
        return ["No validation data was given, so there are no scores."]
    shown = (mean or own)[-1]
    numbers = [(name, shown[name]) for name in ("loss", "perplexity", "bleu", "accuracy") if name in shown]
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
    valid = recipe.data.valid
    if isinstance(valid, tuple):
        return corpora(valid) or "none"
    return f"{valid:.2%} of the training pairs, held out" if valid else "none"


def hardware(s: Session) -> str:
    if s.device.type == "cuda":
        return f"{s.ranks.world} x {torch.cuda.get_device_name(s.device)}"
    return f"{s.device.type}, {torch.get_num_threads()} threads, {s.ranks.world} processes ({platform.machine()})"
