"""`--template` and `--examples` of `saccade predict` and `saccade evaluate`: few-shot prompts built from tasks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from saccade.cli.arguments import check_overrides, parse_corpora
from saccade.errors import SaccadeError

if TYPE_CHECKING:
    from saccade.predict.predictors.predictor import Predictor
    from saccade.predict.prompts import Template
    from saccade.score.evaluate import Evaluation

TemplateText = Annotated[
    str | None,
    typer.Option(
        "--template", metavar="TEXT|FILE", help=r"Prompt template for a language model: 'Q: {question}\nA: {answer}'."
    ),
]
Examples = Annotated[
    str | None,
    typer.Option("--examples", metavar="FILE", help="Few-shot examples for the template, one per row (.jsonl, .tsv)."),
]
Options = Annotated[
    str,
    typer.Option(
        "--options", metavar="A,B,...", help="With --template: multiple-choice answers, scored by likelihood."
    ),
]


class FewShotPrompt(NamedTuple):
    """A prompt template and the few-shot examples that precede each task."""

    template: Template
    examples: str

    def build_prompts(self, texts: Iterable[str], *, input: str | None) -> Iterable[str]:
        """Build a prompt for each text, or for each row where `input` is a table (.jsonl, .tsv, ...)."""
        from saccade.data.sources import table
        from saccade.predict.prompts import build_task, read_tasks

        rows = input is not None and table.get_format(Path(input))
        tasks = read_tasks(str(input)) if rows else (build_task(self.template, text) for text in texts)
        return (self.template.format_prompt(task, self.examples) for task in tasks)

    def add_stop(self, overrides: Sequence[str]) -> list[str]:
        """Stop decoding at the text that follows the answer in the template, unless the overrides set `stop`."""
        has_stop = any(word.removeprefix("predict.").startswith("stop=") for word in overrides)
        return [*overrides] if has_stop else [f"stop={json.dumps([self.template.after])}", *overrides]


def parse_prompt_options(template: str | None, examples: str | None, options: str = "") -> FewShotPrompt | None:
    """Build the few-shot prompt from `--template` and `--examples`; None where neither is given."""
    if template is None and examples is None and not options:
        return None
    if template is None:
        option = "--options" if examples is None else "--examples"
        raise SaccadeError(rf"{option} needs a prompt template: --template 'Q: {{question}}\nA: {{answer}}'")
    from saccade.predict.prompts import format_examples, parse_template

    parsed = parse_template(template)
    return FewShotPrompt(parsed, format_examples(parsed, examples))


def check_continues_prompts(predictor: Predictor) -> None:
    if not predictor.continues_prompts:
        raise SaccadeError(
            "--template builds prompts for a language model, but this run is sequence-to-sequence; leave it out"
        )


def evaluate_tasks(
    predictor: Predictor,
    prompt: FewShotPrompt,
    data: Sequence[str],
    overrides: Sequence[str],
    *,
    options: str,
    metrics: Sequence[str] | None,
    lowercase: bool,
) -> Evaluation:
    """Decode and score the answers to the tasks in the `--data` files."""
    from saccade.cli.predict import build_decoding
    from saccade.predict.prompts import read_tasks
    from saccade.score.answers import evaluate_answers

    check_continues_prompts(predictor)
    files = [name for names in parse_corpora(data) for name in names]
    if not files:
        raise SaccadeError("--template needs tasks with reference answers: --data TASKS.jsonl")
    return evaluate_answers(
        predictor,  # type: ignore[arg-type]  # checked above to be a language model
        [task for name in files for task in read_tasks(name)],
        prompt.template,
        examples=prompt.examples,
        options=[option.strip() for option in options.split(",") if option.strip()],
        metrics=metrics,
        lowercase=lowercase,
        decoding=build_decoding(predictor.recipe, prompt.add_stop(check_overrides(overrides))),
    )
