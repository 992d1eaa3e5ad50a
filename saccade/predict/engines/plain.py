"""The plain engines: step-by-step search and mask-predict. They are the reference for all other engines."""

from typing import cast

from saccade.config.protocols import Support
from saccade.model.model import Model
from saccade.predict.search import mask_predict
from saccade.predict.search.greedy import DecodableModel, SearchHypothesis
from saccade.predict.search.request import Request
from saccade.predict.search.run import run_search
from saccade.predict.search.teacher import get_rescoring

PLAIN_ENGINE = "plain"


class PlainSearch:
    """Greedy search, sampling and beam search with the writer's own steps."""

    name, title, non_autoregressive = PLAIN_ENGINE, "plain search", False
    failures: tuple[type[Exception], ...] = ()

    def supports(self, model: DecodableModel, request: Request) -> Support:
        return Support()

    def run(self, model: DecodableModel, request: Request) -> list[list[SearchHypothesis]]:
        return run_search(model, request)


class MaskPredict:
    """Predicts all tokens at once: mask-predict, or from copies of the source."""

    name, title, non_autoregressive = PLAIN_ENGINE, "plain mask-predict", True
    failures: tuple[type[Exception], ...] = ()

    def supports(self, model: DecodableModel, request: Request) -> Support:
        return Support()

    def run(self, model: DecodableModel, request: Request) -> list[list[SearchHypothesis]]:
        source, params = request.source["source"], mask_predict.MaskPredictParams.from_decoding(request.decoding)
        canvases, attention = mask_predict.decode_with_alignment(
            cast(Model, model), source, limits=request.limits, params=params, align=request.align
        )
        return mask_predict.collect_hypotheses(
            canvases,
            attention,
            sentences=len(request.limits),
            decoding=request.decoding,
            rescore=get_rescoring(request),
        )
