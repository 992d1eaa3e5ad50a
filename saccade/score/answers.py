"""Answers to tasks that a prompt asks for: written freely and compared with the right one, or chosen among options."""

import time
from collections.abc import Sequence

from saccade.config.schema import Decoding
from saccade.errors import SaccadeError
from saccade.predict.predictors.language import LanguageModel
from saccade.predict.prompts import Task, Template, filled
from saccade.score.bleu import Score
from saccade.score.evaluate import Evaluation, Speed, check_metrics, score_texts

OPTIONS = "options"  # the field of a task that holds what there is to choose from


def evaluate_answers(
    model: LanguageModel,
    tasks: Sequence[Task],
    template: Template,
    *,
    examples: str = "",
    options: Sequence[str] = (),
    metrics: Sequence[str] | None = None,
    lowercase: bool = False,
    decoding: Decoding | None = None,
) -> Evaluation:
    """Scores what a model answers to tasks that hold their right answers.

    With `options`, or where tasks have them, the most likely option is its answer; otherwise it writes one.
    """
    if not tasks:
        raise SaccadeError("there is nothing to evaluate: no tasks were given; is the file empty?")
    right = [filled(task, template.answer).strip() for task in tasks]
    prompts = [template.prompt(task, examples) for task in tasks]
    choices = [options_of(task, options) for task in tasks]
    if any(choices):
        check_choices(tasks, choices, right, metrics=metrics, lowercase=lowercase)
        return chosen(model, prompts, choices, right, gap=template.gap)
    wanted = metrics or ("accuracy",)
    check_metrics(wanted)
    begin = time.perf_counter()
    found = [outputs[0] for outputs in model.candidates(prompts, decoding=decoding, scored=False)]
    seconds = time.perf_counter() - begin
    texts = [output.text.strip() for output in found]
    written = sum(len(output.ids) + 1 for output in found)
    scores = score_texts(texts, right, metrics=wanted, lowercase=lowercase)
    return Evaluation(scores, len(tasks), texts, Speed(seconds, len(tasks) / seconds, written / seconds))


def options_of(task: Task, options: Sequence[str]) -> list[str]:
    given = task.fields.get(OPTIONS, list(options))
    if not isinstance(given, list) or not all(isinstance(option, str) for option in given):
        raise SaccadeError(f"{task.place}: {OPTIONS} must be a list of texts, got {given!r}")
    return given


def check_choices(
    tasks: Sequence[Task],
    choices: Sequence[Sequence[str]],
    right: Sequence[str],
    *,
    metrics: Sequence[str] | None,
    lowercase: bool,
) -> None:
    """Every task has two options or more, the right one among them."""
    if metrics is not None or lowercase:
        raise SaccadeError("an option is right or wrong, so that --metrics and --lowercase say nothing; leave them out")
    for task, options, answer in zip(tasks, choices, right, strict=True):
        if len(options) < 2:
            raise SaccadeError(f"{task.place}: expected at least two options to choose from, got {len(options)}")
        if answer not in options:
            raise SaccadeError(f"{task.place}: the answer {answer!r} is none of the options {', '.join(options)}")


def chosen(
    model: LanguageModel, prompts: Sequence[str], choices: Sequence[Sequence[str]], right: Sequence[str], *, gap: str
) -> Evaluation:
    """The option with the highest log-probability, and that with the highest one for each byte: long ones cost more."""
    begin = time.perf_counter()
    pairs = [(prompt, gap + option) for prompt, options in zip(prompts, choices, strict=True) for option in options]
    check_room(model, pairs)
    values = iter(model.score(pairs))
    found, by_byte = list[str](), list[str]()
    for options in choices:
        scores = {option: next(values) for option in options}
        found.append(max(options, key=scores.__getitem__))
        by_byte.append(max(options, key=lambda option: scores[option] / max(len(option.encode()), 1)))
    seconds = time.perf_counter() - begin
    tokens = sum(len(model.tokenizers.target.encode(text)) - 1 for _, text in pairs)
    scores_found = {
        "accuracy": Score(share(found, right), "option of the highest log-probability"),
        "accuracy per byte": Score(share(by_byte, right), "the same, divided by the bytes of the option"),
    }
    return Evaluation(scores_found, len(right), found, Speed(seconds, len(right) / seconds, tokens / seconds))


def check_room(model: LanguageModel, pairs: Sequence[tuple[str, str]]) -> None:
    """Nothing is cut off a prompt: the examples would no longer be what the user gave."""
    longest = model.recipe.data.max_length
    for number, (prompt, option) in enumerate(pairs, start=1):
        tokens = sum(len(model.tokenizers.target.encode(text)) - 1 for text in (prompt, option))
        if tokens > longest:
            raise SaccadeError(
                f"prompt and option {number} have {tokens} tokens, but the model was made for {longest} "
                "(data.max_length); give fewer or shorter examples"
            )


def share(found: Sequence[str], right: Sequence[str]) -> float:
    return 100 * sum(a == b for a, b in zip(found, right, strict=True)) / len(right)
