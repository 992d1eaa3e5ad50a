"""The plain engines: search step by step, and mask-predict. All others give their outputs; they are the reference."""

from typing import cast

from saccade.config.protocols import Support
from saccade.model.model import Model
from saccade.predict.search import fill
from saccade.predict.search.greedy import DecodableModel, Found
from saccade.predict.search.request import Request
from saccade.predict.search.run import run_search

NAME = "plain"


class PlainSearch:
    """Greedy search, sampling and beam search over a writer's own steps."""

    name, title, at_once = NAME, "plain search", False
    failures: tuple[type[Exception], ...] = ()

    def supports(self, model: DecodableModel, request: Request) -> Support:
        return Support()

    def run(self, model: DecodableModel, request: Request) -> list[list[Found]]:
        return run_search(model, request)


class MaskPredict:
    """All tokens at once, and again where the model was least sure of them."""

    name, title, at_once = NAME, "plain mask-predict", True
    failures: tuple[type[Exception], ...] = ()

    def supports(self, model: DecodableModel, request: Request) -> Support:
        return Support()

    def run(self, model: DecodableModel, request: Request) -> list[list[Found]]:
        source, wanted, one = request.source["source"], fill.Wanted.of(request.decoding), cast(Model, model)
        made, looks = fill.decode_plainly(one, source, limits=request.limits, wanted=wanted, align=request.align)
        return fill.outputs(made, looks, sentences=len(request.limits), decoding=request.decoding)
