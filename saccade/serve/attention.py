"""What a model looked at, as the JSON of `/v1/attention`."""

import json

from saccade.config.schema import Decoding
from saccade.layers.record import at_most
from saccade.predict.predictors.predictor import Predictor
from saccade.serve.bodies import AttentionBody, AttentionForm
from saccade.view.codec import packed


def attention_json(
    predictor: Predictor, source: str, body: AttentionBody | AttentionForm, decoding: Decoding, *, name: str, most: int
) -> bytes:
    """The attention document while an output is written: the one that is given, or what the settings find."""
    with at_most(most):
        view = predictor.view(source, body.output, decoding=decoding, title=name)
    return json.dumps(packed(view.data()) if body.packed else view.document(), ensure_ascii=False).encode()
