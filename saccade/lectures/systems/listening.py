"""The row about sound: what the recipe listen-attend-spell builds does what the notes write."""

from __future__ import annotations

import torch

from saccade.config.load import load
from saccade.config.schema import FrameReader
from saccade.data.media.frames import features
from saccade.data.synthetic.tones import RATE, dial
from saccade.layers.audio.downsampling import PyramidStack
from saccade.lectures.claims import Measured, check, measured, near, same
from saccade.lectures.small import VOCABULARY, apart
from saccade.model.build.model import build
from saccade.score.errors import error_rate

NUMBER = "36*"
SMALL = [f"{part}.stack.dim=12" for part in ("reader", "writer")]


@check(
    30,
    "S3:403",
    "Listen, attend, and spell (Chan et al. 2016): from sound to letters.",
    formula=r"h_i^j = \mathrm{BLSTM}(h_{i-1}^j, [h_{2i}^{j-1}, h_{2i+1}^{j-1}])",
    code=(PyramidStack,),
)
@torch.no_grad()
def listen_attend_spell() -> Measured:
    recipe = load("listen-attend-spell", overrides=SMALL)
    assert isinstance(recipe.reader, FrameReader), "it hears"
    model = build(recipe, source_size=VOCABULARY, target_size=VOCABULARY).double().eval()
    sound = torch.from_numpy(features(dial(NUMBER), RATE, recipe.reader.sound)).double()[None]
    sound = sound[:, : sound.shape[1] // 8 * 8]
    real = torch.ones(sound.shape[:2], dtype=torch.bool)
    memory, x = model.reader(sound, real), model.reader.stem(sound, real)[0]
    for number, layer in enumerate(model.reader.stack.layers):
        x = layer(x if number == 0 else x.unflatten(1, (-1, 2)).flatten(2))[0]
    state = model.writer.start(memory, capacity=1)
    step = model.writer.step(torch.ones(1, 1, dtype=torch.long), state, align=True)
    assert step.weights is not None, "it was asked for"
    return measured(
        same("frames of 10 ms for each state", sound.shape[1] / memory.states.shape[1], 8.0),
        near("states against torch's LSTMs over pairs of states", apart(memory.states, x), 0, within=1e-12),
        same("states that a letter looks at", step.weights.shape[1], memory.states.shape[1]),
        near("sum of these weights", float(step.weights.sum()), 1, within=1e-12),
        near("words wrong in 'the hat sat' for 'the cat sat', in percent", wer("the hat sat"), 100 / 3, within=1e-9),
        near(
            "letters wrong in it", error_rate(["the hat sat"], ["the cat sat"], unit="cer").value, 100 / 11, within=1e-9
        ),
        note="`saccade train listen-attend-spell --tiny` learns to hear dialled numbers in a minute.",
    )


def wer(output: str) -> float:
    return error_rate([output], ["the cat sat"]).value
