"""A served model: its predictor, settings and worker, and its description for clients."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saccade.config.schema import Recipe
from saccade.errors import SaccadeError
from saccade.predict.outputs import Hypothesis
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.predictors.questions import Question
from saccade.predict.search.mask_predict import is_non_autoregressive
from saccade.runs import read_examples
from saccade.serve.bodies import FormBody
from saccade.serve.decoding import DecodingSettings
from saccade.serve.worker import Worker


@dataclass(frozen=True)
class ServedModel:
    """A model of the server, with its name, settings and worker thread."""

    name: str
    predictor: Predictor
    settings: DecodingSettings
    worker: Worker
    examples: Sequence[Mapping[str, str]] = ()  # validation examples that the page shows

    @property
    def medium(self) -> str:
        """The modality of the files that it reads; empty for text."""
        return self.predictor.medium

    @property
    def takes_question(self) -> bool:
        """Whether each file needs a question."""
        return "question" in self.predictor.fields

    def build_source(self, file: str, body: FormBody) -> str:
        """Build the model's input from the key of a decoded file and, where it takes one, the question."""
        if not self.takes_question:
            return file
        return Question(file, " ".join((body.question or "").split())).line

    def build_result(self, source: str, file: str, name: str, hypotheses: Sequence[Hypothesis]) -> dict[str, Any]:
        """Build the JSON result for a file, with the client's name for it in place of the key of the decoded file."""
        result = self.predictor.describe(source, hypotheses)
        return {key: name if value == file else value for key, value in result.items()}

    def describe(self) -> dict[str, Any]:
        """Describe the model as in `/v1/models`."""
        recipe = self.predictor.recipe
        return {
            "name": self.name,
            "task": recipe.task.name,
            "reads": self.medium or "text",
            "asks": self.takes_question,
            "goes_on": self.predictor.continues_prompts,
            "at_once": is_non_autoregressive(self.predictor.model.writer),
            "input_label": recipe.task.input_label,
            "page_settings": recipe.task.page_settings,
            "languages": list(find_languages(recipe)),
            "examples": list(self.examples),
            "max_length": recipe.data.max_length,
            "settings": recipe.predict.model_dump(mode="json"),
        }


def find_examples(predictor: Predictor) -> list[dict[str, str]]:
    """Find the validation examples of a model's run that suit its inputs."""
    needed = {"file"} if predictor.medium else {"input"}
    needed |= {"question"} if "question" in predictor.fields else set()
    found = read_examples(predictor.path) if predictor.path != Path() else []
    return [item for item in found if needed <= item.keys()]


def find_languages(recipe: Recipe) -> tuple[str, ...]:
    """Find the languages of inputs and outputs, by `data.filter` or the suffixes of files: train.en, train.de."""
    if recipe.data.filter.languages:
        return recipe.data.filter.languages
    files = recipe.data.train[0].files if recipe.data.train else ()
    suffixes = tuple(Path(file).suffix[1:] for file in files)
    is_pair = len(files) == 2 and len({Path(file).stem for file in files}) == 1
    return suffixes if is_pair and all(re.fullmatch("[a-z]{2}", suffix) for suffix in suffixes) else ()


def list_form_fields(predictor: Predictor) -> list[str]:
    """List the form fields of a model in the syntax of `curl -F`; empty for text models, which take JSON."""
    if not predictor.medium:
        return []
    return ["file=@FILE", *(["question='what is it'"] if "question" in predictor.fields else [])]


def check_servable(predictors: Mapping[str, Predictor]) -> None:
    """Raise for models that cannot be served.

    Those are models whose inputs are paths (a client could open any file of this machine), models with several input
    fields for which there is no form, and models without an output.
    """
    for name, predictor in predictors.items():
        try:
            predictor.check_writes()
        except SaccadeError as error:
            raise SaccadeError(f"{name} cannot be served: {error}") from None
        if (predictor.shows_input_names or predictor.fields) and not predictor.medium:
            raise SaccadeError(f"{name} has inputs that cannot be sent over HTTP; use `saccade predict` for it")
