"""Decode one request with the first engine that supports it; compute the length limits of outputs."""

from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

from saccade.config.schema import Decoding
from saccade.errors import SaccadeError
from saccade.kernels.failures import report_failure
from saccade.predict.engines.cpu_fused import CpuFused
from saccade.predict.engines.ctranslate import CTranslate2, Translator
from saccade.predict.engines.engine import Decision, DecodingResult, Engine
from saccade.predict.engines.graphs import CudaGraphs
from saccade.predict.engines.mask_predict_graphs import MaskPredictGraphs
from saccade.predict.engines.plain import MaskPredict, PlainSearch
from saccade.predict.search import mask_predict
from saccade.predict.search.greedy import DecodableModel
from saccade.predict.search.request import Request

MIN_LENGTH_LIMIT = 50  # tokens; a short source may need a long output: nine words may describe 48 actions

# In order of preference, after CTranslate2. The last two are the reference and support every request.
ENGINES: tuple[Engine, ...] = (CudaGraphs(), MaskPredictGraphs(), CpuFused(), MaskPredict(), PlainSearch())

# Names of engines that raised an error with a model; they are not tried again with it.
_failed: WeakKeyDictionary[DecodableModel, set[str]] = WeakKeyDictionary()

# How many steps each model was asked to decode at most; None for a model that engines are prepared for at once.
_requested_steps: WeakKeyDictionary[DecodableModel, int | None] = WeakKeyDictionary()


def decode(
    model: DecodableModel,
    request: Request,
    *,
    translator: Translator | None = None,
    engines: Sequence[Engine] | None = None,
) -> DecodingResult:
    """Return the n_best hypotheses of each row, decoded by the first engine that supports the request.

    `translator` is a run loaded for CTranslate2. `engines` restricts the choice; by default all engines are tried.
    """
    if engines is None:
        engines, request = (CTranslate2(translator, ENGINES), *ENGINES), count_steps(model, request)
    non_autoregressive, declined = mask_predict.is_non_autoregressive(model.writer), dict[str, str]()
    if non_autoregressive:
        mask_predict.check_mask_predict_options(request.decoding, prefix=request.prefix, writer=model.writer)
    else:
        mask_predict.check_autoregressive_options(request.decoding)
        request.check_prompt_options()
    for engine in (one for one in engines if one.non_autoregressive == non_autoregressive):
        if engine.name in _failed.get(model, ()):
            declined[engine.name] = "it failed with this model before"
        elif not (support := engine.supports(model, request)):
            declined[engine.name] = support.reason
        else:
            try:
                return DecodingResult(engine.run(model, request), Decision(engine.name, declined))
            except engine.failures as error:
                report_failure(engine.name, error, f"decoding continues without {engine.title}, which failed: {error}")
                _failed.setdefault(model, set()).add(engine.name)
                declined[engine.name] = f"it failed ({type(error).__name__})"
    raise AssertionError("the plain engines support every request")


def count_steps(model: DecodableModel, request: Request) -> Request:
    """Return the request with the number of steps of those before it, and add its own steps to them."""
    before = _requested_steps.setdefault(model, 0)
    if before is not None:
        _requested_steps[model] = before + max(request.limits)
    return replace(request, steps_before=before)


def prepare_at_once(model: DecodableModel) -> None:
    """Let engines that take seconds to prepare decode from the first request on, as for a server."""
    _requested_steps[model] = None


def count_rows_per_input(model: DecodableModel, decoding: Decoding) -> int:
    """Return how many rows of the batch one input occupies while it is decoded."""
    if mask_predict.is_non_autoregressive(model.writer):
        return mask_predict.MaskPredictParams.from_decoding(decoding).lengths
    return decoding.n_best if decoding.sample else decoding.beam


def compute_length_limits(
    lengths: Sequence[int], *, decoding: Decoding, max_length: int, prefix: Sequence[int] = ()
) -> list[int]:
    """Return the maximum number of tokens of each output, END not counted.

    `lengths` are those of the sources; `max_length` is data.max_length of the run. Without a limit in `decoding`, an
    output may have twice the tokens of its source and 20 more.
    """
    allowed = max_length - 1  # one position is for END
    shortest = max(decoding.min_length, len(prefix))
    longest = allowed if decoding.max_length is None else decoding.max_length
    if longest > allowed:
        raise SaccadeError(
            f"max_length must be at most {allowed}, one less than data.max_length of the run, got {longest}; lower it"
        )
    if shortest > longest:
        raise SaccadeError(
            f"an output of at least {shortest} tokens was requested (min_length = {decoding.min_length}, prefix of "
            f"{len(prefix)} tokens), but at most {longest} are allowed; raise max_length or lower the other"
        )
    if decoding.max_length is not None:
        return [longest] * len(lengths)
    return [min(longest, max(shortest, MIN_LENGTH_LIMIT, 2 * length + 20)) for length in lengths]
