"""`--template` and `--examples` of `saccade predict` and `saccade evaluate`: prompts that are made, not typed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from saccade.cli.arguments import corpora, overrides
from saccade.errors import SaccadeError

if TYPE_CHECKING:
    from saccade.predict.predictors.predictor import Predictor
    from saccade.predict.prompts import Template
    from saccade.score.evaluate import Evaluation

TemplateText = Annotated[
    str | None,
    typer.Option("--template", metavar="TEXT|FILE", help=r"Prompts of a language model: 'Q: {question}\nA: {answer}'."),
]
Examples = Annotated[
    str | None, typer.Option("--examples", metavar="FILE", help="Solved tasks for the template, one a row: .jsonl ...")
]
Options = Annotated[
    str, typer.Option("--options", metavar="TEXTS", help="With --template: answers to choose from, by commas.")
]


class Asked(NamedTuple):
    """How tasks become prompts."""

    template: Template
    examples: str

    def prompts(self, texts: Iterable[str], *, input: str | None) -> Iterable[str]:
        """A prompt for each text, or for each row of a file with columns."""
        from saccade.data.sources import table
        from saccade.predict.prompts import read_tasks, typed

        rows = input is not None and table.kind(Path(input))
        tasks = read_tasks(str(input)) if rows else (typed(self.template, text) for text in texts)
        return (self.template.prompt(task, self.examples) for task in tasks)

    def ends(self, changes: Sequence[str]) -> list[str]:
        """Settings in which outputs end where the template goes on, unless they say another stop."""
        told = any(word.removeprefix("predict.").startswith("stop=") for word in changes)
        return [*changes] if told else [f"stop={json.dumps([self.template.after])}", *changes]


def asked(template: str | None, examples: str | None, options: str = "") -> Asked | None:
    """What these options say together."""
    if template is None and examples is None and not options:
        return None
    if template is None:
        option = "--options" if examples is None else "--examples"
        raise SaccadeError(
            rf"{option} needs a template that makes prompts: --template 'Q: {{question}}\nA: {{answer}}'"
        )
    from saccade.predict.prompts import examples_text, parse

    parsed = parse(template)
    return Asked(parsed, examples_text(parsed, examples))


def check_goes_on(predictor: Predictor) -> None:
    if not predictor.goes_on:
        raise SaccadeError(
            "--template makes prompts for a language model, but this run reads one text and writes another"
        )


def evaluate_tasks(
    predictor: Predictor,
    asked: Asked,
    data: Sequence[str],
    changes: Sequence[str],
    *,
    options: str,
    metrics: Sequence[str] | None,
    lowercase: bool,
) -> Evaluation:
    """Scores the answers to the tasks of files."""
    from saccade.cli.predict import settings
    from saccade.predict.prompts import read_tasks
    from saccade.score.answers import evaluate_answers

    check_goes_on(predictor)
    files = [name for names in corpora(data) for name in names]
    if not files:
        raise SaccadeError("--template needs tasks with their right answers: --data TASKS.jsonl")
    return evaluate_answers(
        predictor,  # type: ignore[arg-type]  # one that goes on from a prompt is a language model
        [task for name in files for task in read_tasks(name)],
        asked.template,
        examples=asked.examples,
        options=[option.strip() for option in options.split(",") if option.strip()],
        metrics=metrics,
        lowercase=lowercase,
        decoding=settings(predictor.recipe, asked.ends(overrides(changes))),
    )
