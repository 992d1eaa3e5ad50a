"""Checks on captions as a user gets them: the text for a picture, and the attention maps of its words."""

from __future__ import annotations

import base64
import copy
import io
import json
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from saccade.config.load import load
from saccade.data.tokenization.tokenizers import END, PAD, START, UNKNOWN, train_tokenizers
from saccade.lectures.claims import (
    CheckResult,
    Comparison,
    build_result,
    check,
    expect_at_least,
    expect_equal,
    expect_near,
)
from saccade.lectures.small import max_difference, randomize_parameters
from saccade.lectures.systems.captions import (
    CELL,
    GRID,
    HIGH,
    SMALL,
    SMALL_TRANSFORMER,
    WIDE,
    compute_logits,
    encode_picture,
    write_words,
)
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.predict.predictors.media import PictureCodec
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.predictors.text import TextPresenter
from saccade.view.background import Background
from saccade.view.spotlight import darken_unattended
from saccade.view.viewing import View

SENTENCES = ["a dog is standing on a floor", "a stop sign is on a road", "people are sitting on a boat"]
MAX_WORDS = 6
SPACE = "␣"  # marks the beginning of a word in labels


@dataclass
class Captioner:
    """A captioning model as `saccade predict` and `saccade view` use it, and its copy in float64 for the formulas."""

    predictor: Predictor
    exact: Model

    def add_picture(self, picture: NDArray[np.uint8]) -> str:
        """Give the predictor a PNG file; returns its name."""
        data = io.BytesIO()
        Image.fromarray(picture.transpose(1, 2, 0)).save(data, "PNG")
        return self.predictor.register_file(data.getvalue(), name="picture.png")

    def encode(self, sentence: str) -> list[int]:
        return self.predictor.tokenizers.target.encode(sentence)

    def compute_log_probs(self, picture: NDArray[np.uint8], ids: list[int]) -> Tensor:
        """Log-probabilities of the word after each of the words so far, by the formulas."""
        return compute_logits(self.exact, torch.from_numpy(picture)[None], torch.tensor([ids]))[0].log_softmax(-1)

    def search(self, picture: NDArray[np.uint8]) -> tuple[list[int], float]:
        """Greedy search by the formulas: the words, and the log-probability of them and END."""
        ids = [START]
        while len(ids) <= MAX_WORDS:
            log_probs = self.compute_log_probs(picture, ids)[-1]
            log_probs[[PAD, START, UNKNOWN]] = -torch.inf  # which are no words
            best = int(log_probs.argmax())
            if best == END:
                break
            ids.append(best)
        return ids[1:], self.score(picture, [*ids[1:], END])

    def score(self, picture: NDArray[np.uint8], ids: list[int]) -> float:
        log_probs = self.compute_log_probs(picture, [START, *ids[:-1]])
        return float(log_probs[torch.arange(len(ids)), ids].sum())

    def compute_weights(self, picture: NDArray[np.uint8], ids: list[int]) -> NDArray:
        """Attention weights (words, cells) of a caption, END last, by the formulas of show-attend-tell."""
        states = encode_picture(self.exact.reader, torch.from_numpy(picture)[None])
        return write_words(self.exact, states, torch.tensor([[START, *ids[:-1]]])).weights[0].numpy()


def build_captioner(name: str, changes: list[str]) -> Captioner:
    recipe = load(name, overrides=[*changes, "predict.beam=1", f"predict.max_length={MAX_WORDS}"])
    tokenizers = train_tokenizers(recipe.tokenizer, lambda: [("", sentence) for sentence in SENTENCES])
    sizes = {"source_size": tokenizers.source.size, "target_size": tokenizers.target.size}
    model = randomize_parameters(build(recipe, **sizes).eval(), scale=0.5)
    exact = copy.deepcopy(model).double()
    predictor = recipe.task.get_predictor(recipe)(model, recipe=recipe, tokenizers=tokenizers)
    return Captioner(predictor, exact)


def sample_picture() -> NDArray[np.uint8]:
    return torch.randint(60, 256, (3, HIGH, WIDE), dtype=torch.uint8).numpy()  # no pixel is black


@check(
    26,
    "S3:332-345,1944",
    "Sample captions are shown with one attention map for each word.",
    formula=r"a_t \in R^{H \times W} \to \mathrm{picture}",
    code=(TextPresenter, PictureCodec, View, darken_unattended, Background),
    recipes=("show-attend-tell", "show-attend-tell-transformer"),
    breaks=(
        "uniform-attention",
        "view-cells-in-column-order",
        "spotlight-off",
        "maps-of-one-word",
        "grid-in-column-order",
    ),
)
@torch.no_grad()
def one_map_for_each_word() -> CheckResult:
    captioner, picture = build_captioner("show-attend-tell", SMALL), sample_picture()
    source = captioner.add_picture(picture)
    view = captioner.predictor.view(source)
    [words] = captioner.predictor.predict([source])
    weights = captioner.compute_weights(picture, captioner.encode(words))
    panels = draw_panels(view)
    brightness = [measure_brightness(panel, panels[0]) for panel in panels[1:]]
    ratios = [float(row[light.argmax()] / row.max()) for row, light in zip(weights, brightness, strict=False)]
    names = [label.removeprefix(SPACE) for label in view.labels["target"]]
    return build_result(
        expect_equal("words of the maps", " ".join(names), f"{words} <end>"),
        expect_equal(
            "rows and columns of the first, second and last cell",
            " ".join([*view.labels["source"][:2], view.labels["source"][-1]]),
            f"1,1 1,2 {GRID[0]},{GRID[1]}",
        ),
        expect_near(
            "weights of the maps: difference from the formula",
            float(np.abs(view.maps[0].weights[0] - weights).max()),
            0,
            within=1e-5,
        ),
        expect_equal("pictures that are drawn: the original, and one for each map", len(panels), len(weights) + 1),
        expect_near(
            "first picture: largest difference from the pixels", measure_difference(panels[0], picture), 0, within=0.0
        ),
        expect_at_least("weight of the brightest cell over the largest weight, least of all words", min(ratios), 0.6),
        expect_at_least(
            "smallest correlation of brightness and weights of the cells, over the words",
            min(correlate(*pair) for pair in zip(brightness, weights, strict=False)),
            0.9,
        ),
        note="`saccade view RUN PICTURE --png maps.png` draws the attention map of each word over the picture.",
    )


def draw_panels(view: View) -> list[NDArray]:
    """Save the view as SVG, and read the pictures in it."""
    with TemporaryDirectory() as folder:
        text = view.save(Path(folder) / "maps.svg").read_text("utf-8")
    found = re.findall(r'href="data:image/png;base64,([^"]+)"', text)
    images = [Image.open(io.BytesIO(base64.b64decode(data))) for data in found]
    return [np.asarray(image.convert("RGB"), dtype=float)[::-1] for image in images]  # SVG counts rows from below


def measure_difference(panel: NDArray, picture: NDArray[np.uint8]) -> float:
    return float(np.abs(scale_down(panel) - picture.transpose(1, 2, 0)).max())


def scale_down(panel: NDArray) -> NDArray:
    """The picture in its own size, from a drawing that is larger."""
    rows, columns = (
        (np.arange(size) + 0.5) * side / size for size, side in zip((HIGH, WIDE), panel.shape, strict=False)
    )
    return panel[rows.astype(int)][:, columns.astype(int)]


def measure_brightness(panel: NDArray, original: NDArray) -> NDArray:
    """The mean brightness of each cell relative to the original picture."""
    ratio = (scale_down(panel) / scale_down(original)).mean(-1)
    return ratio.reshape(GRID[0], CELL, GRID[1], CELL).mean((1, 3)).ravel()


def correlate(one: NDArray, other: NDArray) -> float:
    a, b = one - one.mean(), other - other.mean()
    return float(a @ b / max(1e-12, np.sqrt((a @ a) * (b @ b))))


@check(
    27,
    "S3:347-388",
    "Attention weights are like saccades: at each step the focus moves on.",
    formula=r"a_1 \to a_2 \to a_3",
    code=(View, TextPresenter),
    recipes=("show-attend-tell", "show-attend-tell-transformer"),
    breaks=(
        "uniform-attention",
        "additive-score-ignores-query",
        "view-in-reverse",
        "maps-of-one-word",
        "picture-ignored",
    ),
)
@torch.no_grad()
def saccades() -> CheckResult:
    captioner, picture = build_captioner("show-attend-tell", SMALL), sample_picture()
    source, sentence = captioner.add_picture(picture), SENTENCES[0]
    page = captioner.predictor.view(source, sentence).html()
    document = read_document(page)
    [entry] = document["maps"]
    played, expected = read_weights(entry)[0], captioner.compute_weights(picture, captioner.encode(sentence))
    moved = np.abs(np.diff(played, axis=0)).sum(-1) / 2
    labels = [label.removeprefix(SPACE) for label in document["labels"]["target"]]
    return build_result(
        expect_equal("words in the order in which they are played", " ".join(labels), f"{sentence} <end>"),
        expect_near(
            "weights in the HTML page, step by step: difference from the formula",
            float(np.abs(played - expected).max()),
            0,
            within=1e-5,
        ),
        expect_at_least("share of the attention that moves from each step to the next", float(moved.min()), 1e-3),
        expect_equal("grid of the picture in the HTML page", str(document["background"]["grid"]), str([*GRID])),
        expect_near(
            "picture in the HTML page: largest difference from the pixels",
            measure_difference(read_picture(document["background"]["image"]), picture),
            0,
            within=0.0,
        ),
        expect_at_least("playback controls in the HTML page", page.count('"aria-label": "Player"'), 1),
        note="`saccade view RUN PICTURE --html page.html`: the Play button steps from word to word.",
    )


def read_document(page: str) -> dict[str, Any]:
    """The data of the attention page."""
    [data] = re.findall(r'<script type="application/json" id="document">(.*?)</script>', page, re.DOTALL)
    document: dict[str, Any] = json.loads(data)
    return document


def read_weights(entry: dict[str, Any]) -> NDArray:
    """Weights (heads, rows, columns) as the page decodes them: deflated float32."""
    data = zlib.decompress(base64.b64decode(entry["weights"]["data"]))
    return np.frombuffer(data, "<f4").reshape(entry["shape"])


def read_picture(url: str) -> NDArray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB"), dtype=float)


@check(
    28,
    "S3:394",
    "Show, attend and tell maps a picture to text.",
    formula=r"X = \mathrm{picture}, \quad Y = \mathrm{text}",
    code=(Predictor, PictureCodec),
    recipes=("show-attend-tell", "show-attend-tell-transformer"),
    breaks=(
        "uniform-attention",
        "picture-ignored",
        "grid-in-column-order",
        "cells-without-positions",
        "writer-reads-its-targets",
    ),
)
@torch.no_grad()
def from_a_picture_to_text() -> CheckResult:
    compared: list[Comparison] = []
    for name, changes in (("show-attend-tell", SMALL), ("show-attend-tell-transformer", SMALL_TRANSFORMER)):
        captioner, pictures = build_captioner(name, changes), [sample_picture(), sample_picture()]
        files = [captioner.add_picture(picture) for picture in pictures]
        predictor, target = captioner.predictor, captioner.predictor.tokenizers.target
        outputs = [found[0] for found in predictor.candidates(files)]
        expected = [captioner.search(picture) for picture in pictures]
        ids = captioner.encode(SENTENCES[0])
        scores, exact = (
            predictor.score([(file, SENTENCES[0]) for file in files]),
            [captioner.score(p, ids) for p in pictures],
        )
        compared += [
            expect_equal(
                f"{name}: captions of two pictures",
                "; ".join(item.text for item in outputs),
                "; ".join(target.decode(words) for words, _ in expected),
            ),
            expect_near(
                f"{name}: log-probabilities of the captions, largest difference from the formulas",
                max_difference(
                    *map(torch.tensor, ([item.log_prob for item in outputs], [total for _, total in expected]))
                ),
                0,
                within=1e-4,
            ),
            expect_near(
                f"{name}: log-probabilities of a given sentence, largest difference from the formulas",
                max_difference(torch.tensor(scores), torch.tensor(exact)),
                0,
                within=1e-4,
            ),
            expect_at_least(
                f"{name}: difference of its log-probability between the two pictures", abs(scores[0] - scores[1]), 1e-3
            ),
        ]
    return build_result(*compared, note="`saccade predict RUN picture.jpg` prints the caption.")
