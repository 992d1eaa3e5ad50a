"""Finishes a run: chooses the final weights, plots the loss and writes the model card."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

import saccade
from saccade.config.metric import list_built_in
from saccade.config.schema import Corpus, Recipe
from saccade.data.tokenization.text_pairs import SEPARATOR
from saccade.data.tokenization.tokenizers import Tokenizers
from saccade.errors import SaccadeError
from saccade.files import atomic_replace, atomic_write
from saccade.model.run import read_weights
from saccade.runs import (
    CARD,
    EXAMPLE_FILE,
    EXAMPLES,
    MAX_EXAMPLE_BYTES,
    MAX_EXAMPLES,
    METRICS,
    get_number,
    read_metrics,
)
from saccade.train import checkpoint
from saccade.train.attention_watch import decode_stored_examples
from saccade.train.average import Weights, average_checkpoints
from saccade.train.folder import write_filter_report
from saccade.train.session import Session, select_averaged_steps
from saccade.train.validate import evaluate_weights, is_better, write_model_weights

LOSS_PLOT = "loss.png"


class FinalWeights(NamedTuple):
    """The weights that a run ends with."""

    weights: Weights
    description: str
    scores: Mapping[str, Any]  # validation scores of these weights; empty where they were not validated


def finish(s: Session) -> None:
    chosen = choose_weights(s)
    write_model_weights(s, chosen.weights)
    s.update_seconds()
    if s.ranks.is_main:
        if s.recipe.data.stream:  # what was dropped is known only now
            write_filter_report(s)
            for report in s.filtered["train"]:
                s.log.print_line(report.format_note("document"))
            for note in filter(None, (each.format_note() for each in s.bad_rows)):
                s.log.print_line(note)
        s.log.log_numbers("final", step=s.progress.step, values=chosen.scores)
        plot_loss(s.run)
        if s.recipe.train.keep_examples:
            write_examples(s.run, choose_examples(s), is_media=bool(s.recipe.reader.medium))
        atomic_write(s.run / CARD, format_model_card(s, chosen).encode())
    s.log.print_line(f"{chosen.description}; {s.progress.seconds / 60:.1f} minutes; the run is in {s.run}")


def choose_examples(s: Session) -> list[tuple[str, str]]:
    """Choose the first validation examples, each with its reference; documents become an input and what follows."""
    has_documents = s.recipe.task.learns_from_documents and not s.recipe.reader.medium and s.valid is not None
    if s.valid_pairs or not has_documents:
        return s.valid_pairs[:MAX_EXAMPLES]
    pairs = decode_stored_examples(s)[:MAX_EXAMPLES]
    return [
        (source, target) if target else s.recipe.task.make_example(source) for source, target in pairs if source.strip()
    ]


def write_examples(run: Path, pairs: Sequence[tuple[str, str]], *, is_media: bool) -> None:
    """Write validation examples for the page of `saccade serve`; of files only the first, with a copy of it."""
    examples: list[dict[str, str]] = []
    if is_media:
        for source, reference in pairs[:1]:
            name, _, question = source.partition(SEPARATOR)
            if (file := Path(name)).is_file() and file.stat().st_size <= MAX_EXAMPLE_BYTES:
                stored = EXAMPLE_FILE + file.suffix.lower()
                atomic_write(run / stored, file.read_bytes())
                examples.append({"file": stored, "question": question, "reference": reference})
    else:
        examples = [{"input": source, "reference": reference} for source, reference in pairs]
    if examples:
        atomic_write(run / EXAMPLES, json.dumps(examples, ensure_ascii=False, indent=1).encode("utf-8", "replace"))


def choose_weights(s: Session) -> FinalWeights:
    """Choose the mean of checkpoints if the recipe asks for it and it validates no worse, else the best step."""
    s.ranks.barrier()  # rank 0 has written its last checkpoint: all ranks find the same ones
    settings, progress = s.recipe.train, s.progress
    steps = sorted(select_averaged_steps(s))
    checkpoints = checkpoint.load_intact(s.checkpoint_folder, steps, warn=s.log.print_line)
    if len(checkpoints) < 2:
        return load_best_weights(s)
    steps = [found.step for found in checkpoints]
    mean = average_checkpoints(checkpoints, group="model" if s.average is None else "ema")
    description = f"mean of the {describe_weights(s)} of steps {', '.join(map(str, steps))}"
    if s.valid is None:
        return FinalWeights(mean, description, {})
    values = evaluate_weights(s, mean)
    value, best = float(values[settings.metric]), progress.best
    better = best is None or value == best or is_better(s, value, best)
    s.log.record("average", step=progress.step, values={**values, "chosen": better, "steps": steps})
    other = "no single one was validated" if best is None else f"the best single one has {best:.4g}"
    s.log.print_line(f"{description}: {settings.metric} {value:.4g}, {other}")
    return FinalWeights(mean, description, values) if better else load_best_weights(s)


def load_best_weights(s: Session) -> FinalWeights:
    """Load the weights of the best step in validation; of the last step if none was validated or the file is lost."""
    step, weights = s.progress.step, s.eval_weights
    if s.progress.best is not None:
        try:
            weights = read_weights(checkpoint.get_best_path(s.checkpoint_folder, s.progress.best_step))
            step = s.progress.best_step
        except SaccadeError as error:
            s.log.print_line(f"the best weights are lost ({error}); those of step {step} are used")
    scores = [line for line in read_metrics(s.run / METRICS) if line.get("event") == "valid" and line["step"] == step]
    return FinalWeights(weights, f"{describe_weights(s)} of step {step}", scores[-1] if scores else {})


def describe_weights(s: Session) -> str:
    return "weights" if s.average is None else "moving average of the weights"


def plot_loss(run: Path) -> None:
    """Plot training and validation loss over steps."""
    from saccade.plotting import Figure, FigureCanvasAgg, plot_defaults

    with plot_defaults():
        figure = Figure(figsize=(7, 4), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        for event, label in (("train", "training"), ("valid", "validation")):
            lines = [line for line in read_metrics(run / METRICS) if line.get("event") == event]
            points = [(line["step"], loss) for line in lines if (loss := get_number(line, "loss")) is not None]
            if points:
                axes.plot(*zip(*points, strict=True), label=label, marker="." if len(points) < 50 else None)
        axes.set(xlabel="step", ylabel="loss", title=run.name)
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend()
        with atomic_replace(run / LOSS_PLOT) as temporary:
            figure.savefig(temporary, format="png", dpi=120)


def format_model_card(s: Session, chosen: FinalWeights) -> str:
    """Format the model card: task, data, training, scores and hardware, without paths of this machine."""
    recipe, progress = s.recipe, s.progress
    lines = [
        f"# {recipe.name or s.run.name}",
        "",
        *([recipe.about, ""] if recipe.about else []),
        f"* task: {recipe.task.name}; {sum(p.numel() for p in s.model.parameters()):,} parameters",
        f"* training data: {format_corpora(recipe.data.train)}",
        f"* validation data: {describe_validation_data(recipe)}",
        f"* tokenizer: {recipe.tokenizer.kind}, {describe_vocabularies(s.tokenizers)}",
        f"* training: {progress.step:,} steps, {progress.epoch:.2f} epochs, {progress.tokens:,} tokens, "
        f"{progress.seconds / 60:.1f} minutes, seed {recipe.train.seed}",
        f"* weights: {chosen.description}",
        f"* hardware: {describe_hardware(s)}",
        f"* versions: saccade {saccade.__version__}, torch {torch.__version__}, Python {platform.python_version()}",
        *[f"* note: {note}" for note in s.notes],
        "",
        *format_scores(chosen, recipe),
    ]
    return "\n".join(lines) + "\n"


def describe_vocabularies(tokenizers: Tokenizers) -> str:
    """Describe the sizes of the vocabularies, and the names of labels."""
    if (labels := tokenizers.labels) is not None:
        names = f"{len(labels.names)} labels: {', '.join(labels.names)}" if labels.names else "numbers"
        return f"{tokenizers.source.size:,} tokens; {names}"
    shared = " (shared)" if tokenizers.is_shared else ""
    return f"{tokenizers.source.size:,} source and {tokenizers.target.size:,} target tokens{shared}"


def format_scores(chosen: FinalWeights, recipe: Recipe) -> list[str]:
    """Format the validation scores of the final weights as a Markdown table."""
    scores = chosen.scores
    if not scores:
        return ["These weights were not validated, so there are no scores."]
    metrics = (metric.name for metric in list_built_in())
    own = (*recipe.kinds, *recipe.task.card_metrics, recipe.train.metric)
    names = dict.fromkeys(("loss", "perplexity", "bits_per_byte", *metrics, *own))
    table = [f"| {name} | {scores[name]:.4g} |" for name in names if name in scores]
    signature = scores.get("signature")
    note = ["", f"Outputs decoded greedily; BLEU signature: `{signature}`"] if signature else []
    return ["| validation | |", "|---|---|", *table, *note]


def format_corpora(items: tuple[Corpus, ...]) -> str:
    """Format the names of files without their folders."""
    return ", ".join(" + ".join(get_file_name(file) for file in corpus.files) for corpus in items)


def get_file_name(file: str) -> str:
    return file if file.startswith("embedded:") else Path(file).name


def describe_validation_data(recipe: Recipe) -> str:
    share = recipe.data.valid_share
    return (
        f"{share:.2%} of the training pairs, held out" if share else format_corpora(recipe.data.valid_corpora) or "none"
    )


def describe_hardware(s: Session) -> str:
    if s.device.type == "cuda":
        return f"{s.ranks.world_size} x {torch.cuda.get_device_name(s.device)}"
    return f"{s.device.type}, {torch.get_num_threads()} threads, {s.ranks.world_size} processes ({platform.machine()})"
