"""Attention weights as the JSON of `/v1/attention`."""

import json

from saccade.config.schema import Decoding
from saccade.layers.record import limit_weights
from saccade.predict.predictors.predictor import Predictor
from saccade.serve.bodies import AttentionBody, AttentionForm
from saccade.view.codec import pack_document


def compute_attention_json(
    predictor: Predictor,
    source: str,
    body: AttentionBody | AttentionForm,
    decoding: Decoding,
    *,
    name: str,
    max_weights: int,
) -> bytes:
    """Compute the attention document of a given output, or of the model's own output with these decoding settings."""
    with limit_weights(max_weights):
        view = predictor.view(source, body.output, decoding=decoding, title=name)
    return json.dumps(pack_document(view.data()) if body.packed else view.document(), ensure_ascii=False).encode()
