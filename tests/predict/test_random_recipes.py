"""Every engine against the plain search, on random recipes: the same scores and outputs, or a refusal in one line."""

import importlib.util
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
import tokenizers
import torch
from random_recipes import OTHER_KEYS, VALUES, Case, draw_case
from tokenizers.models import WordLevel
from torch import Tensor

from saccade.config import schema
from saccade.config.schema import Decoding
from saccade.data.batching.batch import Batch
from saccade.data.tokenization.tokenizers import END, SPECIAL_TOKENS, UNKNOWN, Tokenizer, Tokenizers
from saccade.errors import SaccadeError
from saccade.kernels.cpu import prepared
from saccade.model.inference import SCALE_SUFFIX, load_quantized_weights, prepack_weights, quantize_weights
from saccade.model.model import Model
from saccade.model.run import Run, named_weights, write_tensors
from saccade.predict.decode import ENGINES
from saccade.predict.engines.convert import CONVERTED_KEYS
from saccade.predict.engines.cpu_fused import CpuFused
from saccade.predict.engines.ctranslate import CTranslate2, Translator
from saccade.predict.engines.engine import Engine
from saccade.predict.engines.graphs import CudaGraphs
from saccade.predict.engines.mask_predict_graphs import MaskPredictGraphs
from saccade.predict.engines.plain import MaskPredict, PlainSearch
from saccade.predict.search.greedy import SearchHypothesis
from saccade.predict.search.likelihood import compute_token_log_probs
from saccade.runs import WEIGHTS

FAST_CASES, ALL_CASES = 20, 200  # for each engine
CLOSE = {"rel": 2e-4, "abs": 5e-4}  # of sums of log-probabilities in float32
INT8_ERROR = 0.35  # nats per token; random weights without norms or residuals amplify the rounding of activations
INT8_RELATIVE_ERROR = 0.15

Outputs = list[list[SearchHypothesis]]


# ---- the reference


def score_targets(model: Model, batch: Batch, skip: int = 0) -> list[float]:
    """Return the log-probability of each target without its first `skip` tokens."""
    with torch.inference_mode():
        return compute_token_log_probs(model, batch)[:, skip:].sum(1).tolist()


def score_given(model: Model, case: Case) -> list[float]:
    return score_targets(model, case.make_batch(case.rows, case.targets))


def score_outputs(model: Model, case: Case, row: int, outputs: list[SearchHypothesis]) -> list[float]:
    """Return the log-probabilities of outputs of a row, in a pass over the whole of each."""
    prompt = case.prompts[row][1:] if case.prompts else []
    targets = [[*prompt, *item.ids, END] for item in outputs]
    return score_targets(model, case.make_batch([row] * len(targets), targets), skip=len(prompt))


def search(model: Model, case: Case, engine: Engine, decoding: Decoding) -> Outputs | None:
    """Return the hypotheses that an engine finds; None if it does not support the request."""
    request = case.make_request(decoding)
    with torch.inference_mode():
        return engine.run(model, request) if engine.supports(model, request) else None


def search_plain(model: Model, case: Case, decoding: Decoding) -> Outputs:
    found = search(model, case, MaskPredict() if case.is_parallel else PlainSearch(), decoding)
    assert found is not None
    return found


def list_searches(case: Case) -> list[Decoding]:
    """Greedy search, and beam search as drawn; mask-predict as drawn."""
    greedy = Decoding(beam=1, min_length=case.decoding.min_length)
    return [case.decoding] if case.is_parallel else [greedy, case.decoding]


def assert_same_outputs(found: Outputs, expected: Outputs, case: Case, reference: Model) -> None:
    """Scores are equal, and tokens too, unless two outputs are equally good: some models forget their position."""
    for row, got, plain in zip(case.rows, found, expected, strict=True):
        assert [item.score for item in got] == pytest.approx([item.score for item in plain], **CLOSE)
        log_probs = [item.log_prob for item in plain]
        if case.is_parallel or [item.ids for item in got] == [item.ids for item in plain]:
            assert [item.ids for item in got] == [item.ids for item in plain]
        else:
            log_probs = score_outputs(reference, case, row, got)
        assert [item.log_prob for item in got] == pytest.approx(log_probs, **CLOSE)


def assert_engine_agrees(model: Model, case: Case, engine: Engine, reference: Model) -> bool:
    """Compare an engine with the plain search of the reference; return whether it supported all searches."""
    found = [(decoding, search(model, case, engine, decoding)) for decoding in list_searches(case)]
    for decoding, outputs in found:
        if outputs is not None:
            assert_same_outputs(outputs, search_plain(reference, case, decoding), case, reference)
    return all(outputs is not None for _, outputs in found)


# ---- one check for each engine; it returns whether the engine supported the case


def check_plain(case: Case, folder: Path) -> bool:
    """Steps with a cache give the probabilities of a pass over the whole output, and rows do not affect each other."""
    for row, value in zip(case.rows, score_given(case.model, case), strict=True):
        alone = score_targets(case.model, case.make_batch([row], [case.targets[row]]))
        assert alone == pytest.approx([value], **CLOSE)
    for decoding in [] if case.is_parallel else list_searches(case):
        for row, found in zip(case.rows, search_plain(case.model, case, decoding), strict=True):
            expected = score_outputs(case.model, case, row, found)
            assert [item.log_prob for item in found] == pytest.approx(expected, **CLOSE)
    return True


def check_static(case: Case, folder: Path) -> bool:
    """The search on static buffers, which CUDA graphs replay; here its steps are plain calls."""
    if not case.is_parallel:
        return assert_engine_agrees(case.model, case, CudaGraphs(device_type="cpu"), case.model)
    engine = MaskPredictGraphs(device_type="cpu")
    search(case.model, case, engine, case.decoding)  # a shape that occurs for the first time is declined
    return assert_engine_agrees(case.model, case, engine, case.model)


def check_packed(case: Case, folder: Path) -> bool:
    """Packed float32 weights as on a CPU, with the plain search and with fused steps in C."""
    model = deepcopy(case.model)
    prepack_weights(model)
    assert score_given(model, case) == pytest.approx(score_given(case.model, case), **CLOSE)
    for decoding in list_searches(case):
        assert_same_outputs(
            search_plain(model, case, decoding), search_plain(case.model, case, decoding), case, case.model
        )
    return not case.is_parallel and assert_engine_agrees(model, case, CpuFused(), case.model)


def round_weights(model: Model, tensors: dict[str, Tensor]) -> Model:
    """Return a copy that computes in float32 with the weights of int8: how much the model depends on their rounding."""
    rounded = deepcopy(model)
    for name, weight in named_weights(rounded).items():
        if (scale := tensors.get(name + SCALE_SUFFIX)) is not None:
            weight.copy_((tensors[name].flatten(0, -2) * scale.view(-1, 1)).view_as(weight))
    return rounded


def check_int8(case: Case, folder: Path) -> bool:
    """int8 weights: near float32 in the scores of given outputs; fused steps equal to its own plain search."""
    model = deepcopy(case.model)
    tensors = quantize_weights(case.model)
    load_quantized_weights(model, tensors)
    rounded = round_weights(case.model, tensors)
    exact, near, other = (score_given(one, case) for one in (case.model, model, rounded))
    for target, a, b, c in zip(case.targets, exact, near, other, strict=True):
        assert abs(a - b) <= INT8_ERROR * len(target) + INT8_RELATIVE_ERROR * abs(a) + 6 * abs(a - c), (a, b, c)
    return not case.is_parallel and assert_engine_agrees(model, case, CpuFused(), model)


def make_tokenizer(size: int) -> Tokenizer:
    tokens = [*SPECIAL_TOKENS, *(str(i) for i in range(len(SPECIAL_TOKENS), size))]
    return Tokenizer(
        tokenizers.Tokenizer(WordLevel({token: i for i, token in enumerate(tokens)}, SPECIAL_TOKENS[UNKNOWN]))
    )


def check_ctranslate2(case: Case, folder: Path) -> bool:
    """CTranslate2: the scores of given outputs, and greedy search."""
    folder.mkdir()
    write_tensors(named_weights(case.model), folder / WEIGHTS)
    both = Tokenizers(*(make_tokenizer(size) for size in case.sizes))
    try:
        translator = Translator(Run(folder, case.recipe, both, case.model), precision="fp32")
    except SaccadeError as error:
        assert "\n" not in str(error) and str(error).endswith("; use engine torch")
        return False
    scores = translator.score(case.sources, [target[:-1] for target in case.targets])
    assert scores == pytest.approx(score_given(case.model, case), **CLOSE)
    greedy = list_searches(case)[0]
    found = search(case.model, case, CTranslate2(translator, ENGINES), greedy)
    assert (found is None) == bool(case.prefix)
    if found is not None:
        assert_same_outputs(found, search_plain(case.model, case, greedy), case, case.model)
    return True


CHECKS: dict[str, Callable[[Case, Path], bool]] = {
    "plain": check_plain, "static": check_static, "packed": check_packed, "int8": check_int8,
    "ctranslate2": check_ctranslate2,
}  # fmt: skip
LEAST_SUPPORTED = {"plain": 1.0, "static": 0.5, "packed": 0.3, "int8": 0.3, "ctranslate2": 0.3}  # share of the cases
# Half of the cases have no other keys than these, so that more of them are supported.
FUSED_KEYS = {
    schema.TokenReader: set(schema.TokenReader.model_fields),
    schema.TokenWriter: {"scale_embedding", "tie", "start_token", "output_bias"},
    schema.TransformerStack: {"norm", "norm_epsilon", "bias", "attention_bias", "head_dim", "share_layers"},
    schema.Sinusoidal: {"layout", "frequencies"},
    schema.Learned: {"length"},
}
SUPPORTED_KEYS = {"packed": FUSED_KEYS, "int8": FUSED_KEYS, "ctranslate2": CONVERTED_KEYS}


def run_cases(name: str, seeds: range, folder: Path) -> None:
    """Check one engine; every failure is reported with its seed and settings."""
    if name in ("packed", "int8") and not prepared.is_available():
        pytest.skip("needs a torch with oneDNN")
    if name == "ctranslate2" and importlib.util.find_spec("ctranslate2") is None:
        pytest.skip("ctranslate2 is not installed")
    failures, supported = [], 0
    for seed in seeds:
        case = draw_case(seed, SUPPORTED_KEYS.get(name) if seed % 2 else None)
        try:
            supported += CHECKS[name](case, folder / str(seed))
        except Exception as error:
            failures.append(f"{case.describe()}\n    {type(error).__name__}: {str(error)[:600]}")
    assert not failures, f"{len(failures)} of {len(seeds)} cases with {name}:\n" + "\n".join(failures)
    assert supported >= LEAST_SUPPORTED[name] * len(seeds), f"{name} supported {supported} of {len(seeds)} cases only"


@pytest.mark.parametrize("name", CHECKS)
def test_an_engine_agrees_with_the_plain_search_or_refuses(name: str, tmp_path: Path) -> None:
    run_cases(name, range(FAST_CASES), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
def test_an_engine_agrees_with_the_plain_search_or_refuses_all_cases(name: str, tmp_path: Path) -> None:
    run_cases(name, range(FAST_CASES, FAST_CASES + ALL_CASES), tmp_path)


def test_every_key_that_changes_a_model_is_drawn() -> None:
    """A new key of one of these tables must be drawn too, or listed as one that changes no model of this kind."""
    missing = [
        f"{table.__name__}.{key}"
        for table, values in VALUES.items()
        for key in table.model_fields.keys() - values.keys() - OTHER_KEYS
    ]
    assert not missing
