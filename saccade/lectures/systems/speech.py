"""Check on speech: the model of the recipe listen-attend-spell computes what its paper describes."""

from __future__ import annotations

import torch

from saccade.config.load import load
from saccade.config.schema import FrameReader
from saccade.data.media.frames import extract_features
from saccade.data.synthetic.tones import RATE, synthesize_dialling
from saccade.layers.audio.downsampling import PyramidStack
from saccade.lectures.claims import CheckResult, build_result, check, expect_equal, expect_near
from saccade.lectures.small import VOCABULARY_SIZE, max_difference
from saccade.model.build.model import build
from saccade.score.metrics.error_rates import error_rate

DIALLED_NUMBER = "36*"
SMALL = [f"{part}.stack.dim=12" for part in ("reader", "writer")]


@check(
    30,
    "S3:403",
    "Listen, attend and spell (Chan et al. 2016) maps speech to characters with a pyramidal BLSTM.",
    formula=r"h_i^j = \mathrm{BLSTM}(h_{i-1}^j, [h_{2i}^{j-1}, h_{2i+1}^{j-1}])",
    code=(PyramidStack,),
)
@torch.no_grad()
def listen_attend_spell() -> CheckResult:
    recipe = load("listen-attend-spell", overrides=SMALL)
    assert isinstance(recipe.reader, FrameReader), "the recipe reads sound"
    model = build(recipe, source_size=VOCABULARY_SIZE, target_size=VOCABULARY_SIZE).double().eval()
    sound = torch.from_numpy(extract_features(synthesize_dialling(DIALLED_NUMBER), RATE, recipe.reader.sound)).double()[
        None
    ]
    sound = sound[:, : sound.shape[1] // 8 * 8]
    real = torch.ones(sound.shape[:2], dtype=torch.bool)
    memory, x = model.reader(sound, real), model.reader.stem(sound, real)[0]
    for number, layer in enumerate(model.reader.stack.layers):
        x = layer(x if number == 0 else x.unflatten(1, (-1, 2)).flatten(2))[0]
    state = model.writer.start(memory, capacity=1)
    step = model.writer.step(torch.ones(1, 1, dtype=torch.long), state, align=True)
    assert step.weights is not None, "align=True returns weights"
    return build_result(
        expect_equal("frames of 10 ms for each state", sound.shape[1] / memory.states.shape[1], 8.0),
        expect_near(
            "states: difference from PyTorch LSTMs over pairs of states",
            max_difference(memory.states, x),
            0,
            within=1e-12,
        ),
        expect_equal("states that a character attends to", step.weights.shape[1], memory.states.shape[1]),
        expect_near("sum of these weights", float(step.weights.sum()), 1, within=1e-12),
        expect_near(
            "words wrong in 'the hat sat' for 'the cat sat', in percent",
            compute_wer("the hat sat"),
            100 / 3,
            within=1e-9,
        ),
        expect_near(
            "characters wrong in 'the hat sat' for 'the cat sat', in percent",
            error_rate(["the hat sat"], ["the cat sat"], unit="cer").value,
            100 / 11,
            within=1e-9,
        ),
        note="`saccade train listen-attend-spell --tiny` learns to recognize dialled numbers in a minute.",
    )


def compute_wer(output: str) -> float:
    return error_rate([output], ["the cat sat"]).value
