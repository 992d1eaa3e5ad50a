"""Accuracy of a language model on prompted tasks: answers generated freely, or chosen among options."""

import time
from collections.abc import Sequence

from saccade.config.metric import TEXT, Score, get_metrics
from saccade.config.schema import Decoding
from saccade.errors import SaccadeError
from saccade.predict.predictors.language import LanguageModel
from saccade.predict.prompts import PromptTask, Template, get_field_text
from saccade.score.evaluate import Evaluation, Speed, score_texts

OPTIONS_FIELD = "options"  # field of a task with the options to choose from


def evaluate_answers(
    model: LanguageModel,
    tasks: Sequence[PromptTask],
    template: Template,
    *,
    examples: str = "",
    options: Sequence[str] = (),
    metrics: Sequence[str] | None = None,
    lowercase: bool = False,
    decoding: Decoding | None = None,
) -> Evaluation:
    """Score the answers of a model to tasks that contain the correct ones.

    With `options`, or if tasks have their own, the most probable option is the answer; otherwise the model generates
    one.
    """
    if not tasks:
        raise SaccadeError("there is nothing to evaluate: no tasks were given; is the file empty?")
    answers = [get_field_text(task, template.answer).strip() for task in tasks]
    prompts = [template.format_prompt(task, examples) for task in tasks]
    choices = [get_options(task, options) for task in tasks]
    if any(choices):
        check_choices(tasks, choices, answers, metrics=metrics, lowercase=lowercase)
        return evaluate_options(model, prompts, choices, answers, answer_spaces=template.answer_spaces)
    metric_names = metrics or ("accuracy",)
    kinds = model.recipe.kinds
    get_metrics(metric_names, TEXT, kinds)  # refuses an unknown one before any work is done
    begin = time.perf_counter()
    hypotheses = [outputs[0] for outputs in model.candidates(prompts, decoding=decoding, scored=False)]
    seconds = time.perf_counter() - begin
    texts = [output.text.strip() for output in hypotheses]
    generated = sum(len(output.ids) + 1 for output in hypotheses)
    scores = score_texts(texts, answers, metrics=metric_names, lowercase=lowercase, sources=prompts, kinds=kinds)
    speed = Speed(seconds, len(tasks) / seconds, generated / seconds)
    return Evaluation(scores, len(tasks), texts, speed, kinds=kinds)


def get_options(task: PromptTask, options: Sequence[str]) -> list[str]:
    """Return the options of a task: its own, or else the given ones."""
    given = task.fields.get(OPTIONS_FIELD, list(options))
    if not isinstance(given, list) or not all(isinstance(option, str) for option in given):
        raise SaccadeError(f"{task.location}: {OPTIONS_FIELD} must be a list of texts, got {given!r}")
    return given


def check_choices(
    tasks: Sequence[PromptTask],
    choices: Sequence[Sequence[str]],
    right: Sequence[str],
    *,
    metrics: Sequence[str] | None,
    lowercase: bool,
) -> None:
    """Every task must have at least two options, the correct one among them."""
    if metrics is not None or lowercase:
        raise SaccadeError("options are scored by accuracy only; leave out --metrics and --lowercase")
    for task, options, answer in zip(tasks, choices, right, strict=True):
        if len(options) < 2:
            raise SaccadeError(f"{task.location}: expected at least two options to choose from, got {len(options)}")
        if answer not in options:
            raise SaccadeError(f"{task.location}: the answer {answer!r} is none of the options {', '.join(options)}")


def evaluate_options(
    model: LanguageModel,
    prompts: Sequence[str],
    choices: Sequence[Sequence[str]],
    answers: Sequence[str],
    *,
    answer_spaces: str,
) -> Evaluation:
    """Choose options by log-probability, and by log-probability per byte, which does not favour short options."""
    begin = time.perf_counter()
    pairs = [
        (prompt, answer_spaces + option) for prompt, options in zip(prompts, choices, strict=True) for option in options
    ]
    check_prompt_lengths(model, pairs)
    values = iter(model.score(pairs))
    best, by_byte = list[str](), list[str]()
    for options in choices:
        scores = {option: next(values) for option in options}
        best.append(max(options, key=scores.__getitem__))
        by_byte.append(max(options, key=lambda option: scores[option] / max(len(option.encode()), 1)))
    seconds = time.perf_counter() - begin
    tokens = sum(len(model.tokenizers.target.encode(text)) - 1 for _, text in pairs)
    accuracies = {
        "accuracy": Score(percent_equal(best, answers), "option of the highest log-probability"),
        "accuracy per byte": Score(percent_equal(by_byte, answers), "the same, divided by the bytes of the option"),
    }
    return Evaluation(accuracies, len(answers), best, Speed(seconds, len(answers) / seconds, tokens / seconds))


def check_prompt_lengths(model: LanguageModel, pairs: Sequence[tuple[str, str]]) -> None:
    """Refuse prompts that are too long: truncation would remove examples."""
    longest = model.recipe.data.max_length
    for number, (prompt, option) in enumerate(pairs, start=1):
        tokens = sum(len(model.tokenizers.target.encode(text)) - 1 for text in (prompt, option))
        if tokens > longest:
            raise SaccadeError(
                f"prompt and option {number} have {tokens} tokens, but the model was made for {longest} "
                "(data.max_length); give fewer or shorter examples"
            )


def percent_equal(chosen: Sequence[str], answers: Sequence[str]) -> float:
    """Percentage of equal pairs."""
    return 100 * sum(a == b for a, b in zip(chosen, answers, strict=True)) / len(answers)
