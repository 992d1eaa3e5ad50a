"""Convolutional writers are decoded, aligned, ensembled and loaded as any other."""

from typing import Any

import pytest
import torch

from saccade.config.schema import Decoding
from saccade.errors import SaccadeError
from saccade.kernels.cpu.prepared import is_available
from saccade.predict.engines.convert import check_convertible
from saccade.predict.predictors.predictor import Predictor

LINES = ["abc", "ge fedc ba", "a", "d d d d d d"]
STACK = {"kind": "convolution", "layers": 3, "dim": 22, "hidden_dim": 13}
BYTENET = {**STACK, "block": "residual", "dilations": [1, 2, 4], "attention": [False]}
WIDENING = {**STACK, "hidden_dim": [7, 7, 13], "kernel": [3, 3, 1]}
SYSTEMS = {
    "convs2s with widths by layer": {
        "reader": {"stack": WIDENING, "positions": {"kind": "learned", "length": 24}},
        "writer": {"stack": WIDENING, "positions": {"kind": "learned", "length": 24}, "tie": "none"},
    },
    "convs2s": {
        "reader": {"stack": STACK, "positions": {"kind": "learned", "length": 24}, "scale_embedding": False},
        "writer": {
            "stack": STACK,
            "positions": {"kind": "learned", "length": 24},
            "scale_embedding": False,
            "tie": "none",
        },
    },
    "bytenet": {
        "reader": {"stack": {**BYTENET, "unfold": [1.2, 2]}, "positions": {"kind": "none"}},
        "writer": {"stack": BYTENET, "positions": {"kind": "none"}, "tie": "none"},
    },
}
WAYS = {
    "greedy": Decoding(beam=1),
    "beam": Decoding(beam=4, n_best=4),
    "sampling": Decoding(beam=1, sample=True, seed=5),
}
both = pytest.mark.parametrize("system", SYSTEMS)


@both
@pytest.mark.parametrize("way", WAYS)
def test_scores_of_outputs_are_those_of_teacher_forcing(system: str, way: str, make_predictor: Any) -> None:
    """Although beams are reordered, rows finish early and lengths differ."""
    predictor = make_predictor(seed=3, **SYSTEMS[system])
    outputs = predictor.candidates(LINES, decoding=WAYS[way])
    assert len({len(item.ids) for row in outputs for item in row}) > 1
    for line, row in zip(LINES, outputs, strict=True):
        short = [item for item in row if "<unknown>" not in item.text and len(item.ids) < 23]
        scores = predictor.score([(line, item.text) for item in short])
        assert [item.log_prob for item in short] == pytest.approx(scores, abs=1e-4)


@both
@pytest.mark.parametrize("way", ["greedy", "beam"])
def test_a_batch_is_decoded_as_its_lines_alone(system: str, way: str, make_predictor: Any) -> None:
    predictor = make_predictor(seed=3, **SYSTEMS[system])
    together = predictor.candidates(LINES, decoding=WAYS[way])
    for line, row in zip(LINES, together, strict=True):
        [alone] = predictor.candidates([line], decoding=WAYS[way])
        assert [item.ids for item in alone] == [item.ids for item in row]


def test_alignment_of_convs2s_is_its_attention(make_predictor: Any) -> None:
    predictor = make_predictor(seed=3, **SYSTEMS["convs2s"])
    [[best, *_]] = predictor.candidates(["ge fedc ba"], decoding=WAYS["beam"], align=True)
    shown = predictor.attention("ge fedc ba", best.text).maps["writer.stack.blocks.2.cross"]
    torch.testing.assert_close(torch.tensor(best.alignment), shown[0, : len(best.ids)], atol=1e-5, rtol=0)


def test_bytenet_has_no_attention_to_align_or_display(make_predictor: Any) -> None:
    predictor = make_predictor(seed=3, **SYSTEMS["bytenet"])
    assert predictor.attention("abc", "cba").maps == {}
    with pytest.raises(SaccadeError, match="does not attend to what it reads"):
        predictor.candidates(["abc"], align=True)


def test_an_ensemble_may_mix_architectures(make_run: Any) -> None:
    """ConvS2S, ByteNet and a Transformer: log of the mean probability, token by token."""
    runs = [make_run(name, seed=3, **sections) for name, sections in SYSTEMS.items()]
    runs.append(make_run("transformer", seed=4))
    together = Predictor.load(runs, device="cpu")
    [found] = together.candidates(["abc"], decoding=Decoding(beam=3))
    assert found[0].log_prob == pytest.approx(together.score([("abc", found[0].text)])[0], abs=1e-4)
    tokens = [Predictor.load(run, device="cpu").score([("abc", "")])[0] for run in runs]  # <end> alone
    mean = torch.tensor(tokens).exp().mean().log()
    assert together.score([("abc", "")])[0] == pytest.approx(float(mean), abs=1e-4)


@both
@pytest.mark.parametrize("precision", ["fp32", "int8", "bf16"])
def test_a_run_is_loaded_in_every_precision(system: str, precision: str, make_run: Any, make_predictor: Any) -> None:
    if precision == "int8" and not is_available():
        pytest.skip("needs oneDNN")
    expected = make_predictor(seed=3, **SYSTEMS[system]).score([(line, line) for line in LINES])
    loaded = Predictor.load(make_run("one", seed=3, **SYSTEMS[system]), device="cpu", precision=precision)
    near = 1e-5 if precision == "fp32" else 0.1
    assert loaded.score([(line, line) for line in LINES]) == pytest.approx(expected, rel=near)
    assert len(loaded.predict(LINES)) == len(LINES)


def test_ctranslate2_has_no_convolutions(make_predictor: Any) -> None:
    with pytest.raises(
        SaccadeError, match=r"CTranslate2 cannot express reader\.stack\.kind = 'convolution'; use engine"
    ):
        check_convertible(make_predictor(**SYSTEMS["convs2s"]).recipe)
