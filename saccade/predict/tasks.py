"""Which predictor puts a model to use, by its task."""

from saccade.config.schema import MediaReader, PermutedWriter, Recipe
from saccade.predict.encoder import Encoder
from saccade.predict.labels import Labeller
from saccade.predict.language import LanguageModel
from saccade.predict.media import Describer, MediaLabeller
from saccade.predict.permuted import PermutedEncoder
from saccade.predict.predictor import Predictor
from saccade.predict.restoring import Restorer

BY_TASK: dict[str, type[Predictor]] = {
    "translate": Predictor,
    "describe": Predictor,  # by a user's own reader
    "write": LanguageModel,
    "restore": Restorer,
    "label": Labeller,
    "encode": Encoder,
}


def predictor_of(recipe: Recipe) -> type[Predictor]:
    if isinstance(recipe.reader, MediaReader):
        return MediaLabeller if recipe.task == "label" else Describer
    return PermutedEncoder if isinstance(recipe.writer, PermutedWriter) else BY_TASK[recipe.task]
