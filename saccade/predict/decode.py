"""One request decoded by the first engine that can; and how long outputs may be."""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from saccade.config.schema import Decoding
from saccade.errors import SaccadeError
from saccade.kernels.failures import report_failure
from saccade.predict.engines.cpu_fused import CpuFused
from saccade.predict.engines.ctranslate import CTranslate2, Translator
from saccade.predict.engines.engine import Decision, Decoded, Engine
from saccade.predict.engines.fill_graphs import MaskPredictGraphs
from saccade.predict.engines.graphs import CudaGraphs
from saccade.predict.engines.plain import MaskPredict, PlainSearch
from saccade.predict.search import fill
from saccade.predict.search.greedy import DecodableModel
from saccade.predict.search.request import Request

SHORTEST = 50  # tokens that an output may have, however short its source: nine words may ask for 48 actions

# In the order of preference, after CTranslate2; the last two are the reference, and can always.
ENGINES: tuple[Engine, ...] = (CudaGraphs(), MaskPredictGraphs(), CpuFused(), MaskPredict(), PlainSearch())

# Engines that have failed, by the model that they failed with: they are not tried again.
_failed: WeakKeyDictionary[DecodableModel, set[str]] = WeakKeyDictionary()


def decode(
    model: DecodableModel,
    request: Request,
    *,
    translator: Translator | None = None,
    engines: Sequence[Engine] | None = None,
) -> Decoded:
    """The n_best outputs of each row, by the first engine that supports the request.

    `translator` is a run that was loaded for CTranslate2; `engines` are those to choose from, all by default.
    """
    engines = (CTranslate2(translator, ENGINES), *ENGINES) if engines is None else engines
    fills, declined = fill.fills(model.writer), dict[str, str]()
    if fills:
        fill.check_filling(request.decoding, prefix=request.prefix)
    else:
        fill.check_stepwise(request.decoding)
        request.check_prompted()
    for engine in (one for one in engines if one.at_once == fills):
        if engine.name in _failed.get(model, ()):
            declined[engine.name] = "it failed with this model before"
        elif not (support := engine.supports(model, request)):
            declined[engine.name] = support.reason
        else:
            try:
                return Decoded(engine.run(model, request), Decision(engine.name, declined))
            except engine.failures as error:
                report_failure(engine.name, error, f"decoding goes on without {engine.title}, which failed: {error}")
                _failed.setdefault(model, set()).add(engine.name)
                declined[engine.name] = f"it failed ({type(error).__name__})"
    raise AssertionError("the plain engines support every request")


def copies(model: DecodableModel, decoding: Decoding) -> int:
    """Rows that one sentence takes in the batch."""
    if fill.fills(model.writer):
        return fill.Wanted.of(decoding).lengths
    return decoding.n_best if decoding.sample else decoding.beam


def length_limits(lengths: Sequence[int], *, decoding: Decoding, longest: int, prefix: Sequence[int] = ()) -> list[int]:
    """How many tokens each output may have, END not counted, given the lengths of the sources and data.max_length."""
    room = longest - 1  # the model was trained on `longest` positions, END among them
    least = max(decoding.min_length, len(prefix))
    most = room if decoding.max_length is None else decoding.max_length
    if most > room:
        raise SaccadeError(
            f"max_length must be at most {room}, one less than data.max_length of the run, got {most}; lower it"
        )
    if least > most:
        raise SaccadeError(
            f"an output of at least {least} tokens was asked for (min_length = {decoding.min_length}, prefix of "
            f"{len(prefix)} tokens), but at most {most} are allowed; raise max_length or ask for less"
        )
    if decoding.max_length is not None:
        return [most] * len(lengths)
    return [min(most, max(least, SHORTEST, 2 * length + 20)) for length in lengths]
