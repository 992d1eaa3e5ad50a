"""Joint CTC/attention decoding: with all weight on one of them, it alone decides."""

import pytest
import torch

from saccade.config.load import load
from saccade.config.schema import Decoding
from saccade.data.batching.batch import Batch, Frames
from saccade.data.tokenization.tokenizers import END, PAD, START
from saccade.errors import SaccadeError
from saccade.model.build.model import build
from saccade.predict.decode import decode
from saccade.predict.search.joint import add_ctc
from saccade.predict.search.request import Request

V = 9
SMALL = [
    "writer.ctc=true",
    "objectives.0.ctc_weight=0.3",
    "reader.sound.mel_bands=5",
    "reader.stack.dim=12",
    "writer.stack.dim=12",
]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(3)
    recipe = load("listen-attend-spell", tiny=True, overrides=SMALL)
    made = build(recipe, source_size=V, target_size=V).eval()
    torch.nn.init.normal_(made.ctc.output.weight)
    with torch.no_grad():
        made.ctc.output.bias[[START, END]] = -1e3  # nobody says these
    return made


def batch():
    mask = torch.arange(31) < torch.tensor([31, 17])[:, None]
    return Batch({"source": Frames(torch.randn(2, 31, 5, generator=torch.Generator().manual_seed(1)), mask)})


@torch.no_grad()
def outputs(model, weight: float, **settings):
    decoding = Decoding(ctc_weight=weight, length_penalty=0.0, **settings)
    found = decode(model, Request([6, 6], decoding, batch())).hypotheses
    return [row[0].ids for row in found], [row[0].log_prob for row in found]


@torch.no_grad()
def test_logits_are_a_weighted_mean_of_both(model):
    memory = model.read(batch())
    tokens = torch.tensor([[START], [START]])
    attention = model.writer.step(tokens, model.writer.start(memory, capacity=5)).logits.log_softmax(-1)
    sums = {}
    for weight in (0.25, 0.5):
        joint = add_ctc(model, weight)
        sums[weight] = joint.step(tokens, joint.start(memory, capacity=5)).logits
    said = (sums[0.5] - 0.5 * attention) / 0.5
    own = slice(PAD + 1, None)
    torch.testing.assert_close(sums[0.25][:, own], (0.75 * attention + 0.25 * said)[:, own])
    torch.testing.assert_close(said[:, own].exp().sum(1), torch.ones(2))


@torch.no_grad()
def test_normalization_in_the_search_keeps_joint_scores(model):
    """Where both disagree, every continuation is improbable."""
    memory, tokens = model.read(batch()), torch.tensor([[START], [START]])
    joint = add_ctc(model, 0.5)
    logits = joint.step(tokens, joint.start(memory, capacity=5)).logits
    assert logits[:, PAD + 1 :].exp().sum(1).max() < 0.999
    torch.testing.assert_close(logits.log_softmax(-1), logits, atol=1e-5, rtol=0)


def test_with_almost_all_weight_on_ctc_scores_are_those_of_ctc(model):
    ids, scores = outputs(model, 0.9999, beam=6)
    assert any(ids)
    with torch.no_grad():
        memory = model.read(batch())
        logs, lengths = model.ctc(memory), memory.mask.sum(1)
    for row in range(2):
        part = logs[row : row + 1, : lengths[row]].transpose(0, 1)
        text, size = torch.tensor([ids[row]]), torch.tensor([len(ids[row])])
        loss = torch.nn.functional.ctc_loss(part, text, lengths[row : row + 1], size, reduction="sum")
        assert scores[row] == pytest.approx(-loss.item(), abs=0.02)


def test_beams_of_rows_do_not_mix(model):
    both, scores = outputs(model, 0.3, beam=4)
    for row in range(2):
        alone = Batch(
            {"source": Frames(*(x[row : row + 1] for x in (batch()["source"].values, batch()["source"].mask)))}
        )
        with torch.no_grad():
            [[best]] = decode(
                model, Request([6], Decoding(ctc_weight=0.3, length_penalty=0.0, beam=4), alone)
            ).hypotheses
        assert best.ids == both[row] and best.log_prob == pytest.approx(scores[row], abs=1e-4)


def test_a_run_without_the_head_is_refused():
    plain = build(load("listen-attend-spell", tiny=True), source_size=V, target_size=V)
    with pytest.raises(SaccadeError, match="needs a single run that was trained with writer.ctc = true"):
        add_ctc(plain, 0.3)
    assert add_ctc(plain, 0.0) is plain.writer


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["writer.ctc=true"], "a head that no objective trains"),
        (["objectives.0.ctc_weight=0.3"], "needs a CTC head; set writer.ctc = true"),
        (["predict.ctc_weight=0.3"], "predict.ctc_weight = 0.3 needs writer.ctc = true"),
    ],
)
def test_inconsistent_settings_are_refused(changes, message):
    with pytest.raises(SaccadeError, match=message):
        load("listen-attend-spell", tiny=True, overrides=changes)


def test_ctc_needs_a_reader():
    with pytest.raises(SaccadeError, match="over the states of a reader, but there is none"):
        load("gpt2", overrides=["writer.ctc=true"])
