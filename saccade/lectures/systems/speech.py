"""Check on speech: the model of the recipe listen-attend-spell computes what its paper describes."""

from __future__ import annotations

import copy
import io
import wave
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from saccade.config.load import load
from saccade.data.batching.batch import Batch, Frames, pad
from saccade.data.media.frames import extract_features
from saccade.data.synthetic.tones import KEYS, RATE, synthesize_dialling
from saccade.data.tokenization.tokenizers import train_tokenizers
from saccade.layers.audio.downsampling import PyramidStack
from saccade.lectures.claims import CheckResult, build_result, check, expect_at_least, expect_equal, expect_near
from saccade.lectures.references.basics import apply_linear, embed_tokens, shift_targets
from saccade.lectures.references.recurrent import run_recurrent_layer, write_with_attention
from saccade.lectures.small import max_difference, randomize_parameters
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.model.readers.media import FrameReader
from saccade.score.metrics.error_rates import error_rate

NUMBERS, LENGTHS = ["36*", "4"], [53, 21]  # frames: odd at two of the three levels of pairs
SMALL = [
    "reader.stack.dim=12", "writer.stack.dim=10", "reader.stack.dropout=0", "writer.stack.dropout=0",
    "reader.dropout=0", "writer.dropout=0", f"reader.sound.sample_rate={RATE}", "reader.sound.mel_bands=24",
]  # fmt: skip
PITCHES = (300, 700, 1200, 2000, 3000)  # hertz


@check(
    30,
    "S3:403",
    "Listen, attend and spell (Chan et al. 2016) maps speech to characters with a pyramidal BLSTM.",
    formula=r"h_i^j = \mathrm{BLSTM}(h_{i-1}^j, [h_{2i}^{j-1}, h_{2i+1}^{j-1}])",
    code=(PyramidStack, FrameReader),
    recipes=("listen-attend-spell", "listen-transformer"),
    breaks=(
        "uniform-attention",
        "pyramid-drops-frames",
        "backward-over-padding",
        "unmasked-attention",
        "context-left-out",
        "sound-ignored",
    ),
)
@torch.no_grad()
def listen_attend_spell() -> CheckResult:
    recipe: Any = load("listen-attend-spell", overrides=SMALL)
    tokenizers = train_tokenizers(recipe.tokenizer, lambda: [("", KEYS)])
    sizes = {"source_size": tokenizers.source.size, "target_size": tokenizers.target.size}
    model = randomize_parameters(build(recipe, **sizes).eval(), scale=0.2)
    predictor = recipe.task.get_predictor(recipe)(copy.deepcopy(model), recipe=recipe, tokenizers=tokenizers)
    model, sounds = model.double(), [synthesize_dialling(number) for number in NUMBERS]
    whole = [torch.from_numpy(extract_features(sound, RATE, recipe.reader.sound)).double() for sound in sounds]
    features = [one[:length] for one, length in zip(whole, LENGTHS, strict=True)]
    target = pad([tokenizers.target.encode(number) for number in NUMBERS])
    memory = model.read(Batch({"source": pad_frames(features), "target": target}))
    hidden, aux = model.write(shift_targets(target.ids), target.mask, memory)
    states = [listen_by_hand(model.reader, one) for one in features]
    written = [spell_by_hand(model, one, ids) for one, ids in zip(states, target.ids, strict=True)]
    weights, logits = aux["attention"].weights, model.writer.head(hidden)
    file = predictor.register_file(encode_wav(sounds[0]), name="sound.wav")
    [score] = predictor.score([(file, NUMBERS[0])])
    logits_of_file, _ = spell_by_hand(model, listen_by_hand(model.reader, whole[0]), target.ids[0])
    exact = logits_of_file.log_softmax(-1)[torch.arange(len(NUMBERS[0]) + 1), target.ids[0]].sum()
    loudest = find_loudest_bands(recipe.reader.sound)
    return build_result(
        expect_equal(
            "states of both recordings: frames / 8, rounded up",
            str(memory.mask.sum(1).tolist()),
            str([-(-len(one) // 8) for one in features]),
        ),
        expect_near(
            "states: difference from LSTMs in both directions over pairs of states",
            max(max_difference(row[: len(one)], one) for row, one in zip(memory.states, states, strict=True)),
            0,
            within=1e-11,
        ),
        expect_near(
            "weights: difference from the softmax over the real states",
            max(max_difference(row[:, : one.shape[1]], one) for row, (_, one) in zip(weights, written, strict=True)),
            0,
            within=1e-11,
        ),
        expect_near(
            "logits of the characters: difference from the formulas",
            max(max_difference(row, one) for row, (one, _) in zip(logits, written, strict=True)),
            0,
            within=1e-10,
        ),
        expect_near("log-probability of a dialled number for a WAV file", score, float(exact), within=0.01),
        expect_at_least(
            "tones that rise: smallest step to the loudest mel band of the next one", int(np.diff(loudest).min()), 1
        ),
        expect_near("words wrong in 'the hat sat' for 'the cat sat', in percent", rate("wer"), 100 / 3, within=1e-9),
        expect_near("characters wrong in it, in percent", rate("cer"), 100 / 11, within=1e-9),
        note="`saccade train listen-attend-spell --tiny` learns to recognize dialled numbers in a minute.",
    )


def pad_frames(features: list[Tensor]) -> Frames:
    longest = max(map(len, features))
    values = torch.stack([torch.nn.functional.pad(one, (0, 0, 0, longest - len(one)), value=1.0) for one in features])
    return Frames(values, torch.arange(longest) < torch.tensor([[len(one)] for one in features]))


def listen_by_hand(encoder: Any, frames: Tensor) -> Tensor:
    """Equation 5 of Chan et al. 2016: each layer but the first reads pairs of states, the last filled up with zeros."""
    x = apply_linear(encoder.stem.project, frames)
    for number, layer in enumerate(encoder.stack.layers):
        if number:
            rows = [*x, torch.zeros_like(x[0])]
            x = torch.stack([torch.cat((rows[i], rows[i + 1])) for i in range(0, len(x), 2)])
        x = run_recurrent_layer("lstm", layer, x, "both")[0]
    return x


def spell_by_hand(model: Model, states: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (T, V) and attention weights (T, S)."""
    x = embed_tokens(model.writer.embedding, shift_targets(ids))
    summary = states.mean(0, keepdim=True)
    found = write_with_attention("lstm", model.writer.stack, x[None], states[None], summary=summary)
    return apply_linear(model.writer.output, found.outputs[0]), found.weights[0]


def encode_wav(sound: NDArray) -> bytes:
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setparams((1, 2, RATE, len(sound), "NONE", ""))
        file.writeframes((sound.clip(-1, 1) * 32767).round().astype("<i2").tobytes())
    return data.getvalue()


def find_loudest_bands(settings: Any) -> list[int]:
    """The mel band with the largest energy during each of several pure tones, one after the other."""
    times = np.arange(RATE // 5) / RATE  # 0.2 seconds each
    sound = np.concatenate([np.sin(2 * np.pi * pitch * times) for pitch in PITCHES])
    energies = extract_features(sound, RATE, settings.model_copy(update={"normalize": False}))
    return [int(part[5:-5].mean(0).argmax()) for part in np.array_split(energies, len(PITCHES))]


def rate(unit: str) -> float:
    return error_rate(["the hat sat"], ["the cat sat"], unit=unit).value
