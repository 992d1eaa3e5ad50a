"""A model that is served: what it takes, and what clients are told of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from saccade.errors import SaccadeError
from saccade.predict.outputs import Hypothesis
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.predictors.questions import Question
from saccade.predict.search.fill import fills
from saccade.serve.bodies import FormBody
from saccade.serve.decoding import Settings
from saccade.serve.worker import Worker


@dataclass(frozen=True)
class Served:
    """One model that is served."""

    name: str
    predictor: Predictor
    settings: Settings
    worker: Worker

    @property
    def medium(self) -> str:
        """What kind of files it reads; nothing where it reads texts."""
        return self.predictor.medium

    @property
    def asks(self) -> bool:
        """Whether a question comes with each file."""
        return "question" in self.predictor.fields

    def source(self, file: str, body: FormBody) -> str:
        """What the model is given for a file, and for what is asked about it."""
        if not self.asks:
            return file
        return Question(file, " ".join((body.question or "").split())).line

    def result(self, source: str, file: str, sent: str, found: Sequence[Hypothesis]) -> dict[str, Any]:
        """What is said about a file, by the name with which it was sent: that may look like something else."""
        said = self.predictor.described(source, found)
        return {key: sent if value == file else value for key, value in said.items()}

    def described(self) -> dict[str, Any]:
        """What a client may want to know of it."""
        recipe = self.predictor.recipe
        return {
            "name": self.name,
            "task": recipe.task.name,
            "reads": self.medium or "text",
            "asks": self.asks,
            "goes_on": self.predictor.goes_on,
            "at_once": fills(self.predictor.model.writer),
            "max_length": recipe.data.max_length,
            "settings": recipe.predict.model_dump(mode="json"),
        }


def form_of(predictor: Predictor) -> list[str]:
    """The fields of a form for a model, as curl takes them; none where it reads texts."""
    if not predictor.medium:
        return []
    return ["file=@FILE", *(["question='what is it'"] if "question" in predictor.fields else [])]


def check_inputs(predictors: Mapping[str, Predictor]) -> None:
    """A model that takes the names of files would open those of this machine for whoever asks; others take several
    things at once, for which there is no form, or have no answer at all.
    """
    for name, predictor in predictors.items():
        try:
            predictor.check_writes()
        except SaccadeError as error:
            raise SaccadeError(f"{name} cannot be served: {error}") from None
        if (predictor.names_inputs or predictor.fields) and not predictor.medium:
            raise SaccadeError(f"{name} reads what cannot be sent to it; use `saccade predict` for it")
