"""Which predictor puts a model to use, by its task."""

from saccade.config.schema import PermutedWriter, Recipe
from saccade.predict.encoder import Encoder
from saccade.predict.labels import Labeller
from saccade.predict.language import LanguageModel
from saccade.predict.permuted import PermutedEncoder
from saccade.predict.predictor import Predictor
from saccade.predict.restoring import Restorer

BY_TASK: dict[str, type[Predictor]] = {
    "translate": Predictor,
    "write": LanguageModel,
    "restore": Restorer,
    "label": Labeller,
    "encode": Encoder,
}


def predictor_of(recipe: Recipe) -> type[Predictor]:
    return PermutedEncoder if isinstance(recipe.writer, PermutedWriter) else BY_TASK[recipe.task]
