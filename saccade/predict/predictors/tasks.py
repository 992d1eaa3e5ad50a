"""Which predictor puts a model to use, by its task."""

from saccade.config.schema import JoinedReader, MediaReader, PermutedWriter, Recipe
from saccade.predict.predictors.encoder import Encoder
from saccade.predict.predictors.labels import Labeller
from saccade.predict.predictors.language import LanguageModel
from saccade.predict.predictors.media import Describer, MediaLabeller
from saccade.predict.predictors.media_encoder import MediaEncoder
from saccade.predict.predictors.permuted import PermutedEncoder
from saccade.predict.predictors.player import Player
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.predictors.questions import QuestionAnswerer, QuestionWriter
from saccade.predict.predictors.restoring import Restorer
from saccade.predict.predictors.walking import Walker

BY_TASK: dict[str, type[Predictor]] = {
    "translate": Predictor,
    "describe": Predictor,  # by a user's own reader
    "walk": Walker,
    "write": LanguageModel,
    "restore": Restorer,
    "label": Labeller,
    "encode": Encoder,
}


def predictor_of(recipe: Recipe) -> type[Predictor]:
    if isinstance(recipe.reader, JoinedReader):
        return QuestionAnswerer if recipe.task.name == "label" else QuestionWriter
    if isinstance(recipe.reader, MediaReader):
        return {"label": MediaLabeller, "encode": MediaEncoder, "interact": Player}.get(recipe.task.name, Describer)
    return PermutedEncoder if isinstance(recipe.writer, PermutedWriter) else BY_TASK[recipe.task.name]
