"""Which predictor puts a model to use, by its task."""

from saccade.config.schema import JoinedReader, MediaReader, PermutedWriter, Recipe
from saccade.predict.encoder import Encoder
from saccade.predict.labels import Labeller
from saccade.predict.language import LanguageModel
from saccade.predict.media import Describer, MediaLabeller
from saccade.predict.media_encoder import MediaEncoder
from saccade.predict.permuted import PermutedEncoder
from saccade.predict.player import Player
from saccade.predict.predictor import Predictor
from saccade.predict.questions import QuestionAnswerer, QuestionWriter
from saccade.predict.restoring import Restorer
from saccade.predict.walking import Walker

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
        return QuestionAnswerer if recipe.task == "label" else QuestionWriter
    if isinstance(recipe.reader, MediaReader):
        return {"label": MediaLabeller, "encode": MediaEncoder, "interact": Player}.get(recipe.task, Describer)
    return PermutedEncoder if isinstance(recipe.writer, PermutedWriter) else BY_TASK[recipe.task]
