"""Draws the pictures of docs/view.md from trained runs: `python docs/pictures.py NAME RUN`, NAME being one of PICTURES.

inversion: a model of `saccade train multi30k --data train.en.gz train.fr.gz`; or of `bahdanau`, as in the paper.
order: the same recipe with German instead of French.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import saccade
from saccade.view.statistics import compute_entropy
from saccade.view.viewing import View

IMAGES = Path(__file__).parent / "images"


class Picture(NamedTuple):
    text: str
    theme: str = "light"
    heads: bool = False  # all heads of the layer, else only the clearest one


PICTURES = {
    "inversion": Picture("A little girl in a pink dress is playing with a black dog on the green grass ."),
    "order": Picture("A young man is trying to catch a big fish with his hands ."),
    "order-dark": Picture("A young man is trying to catch a big fish with his hands .", theme="dark"),
    "heads": Picture("Two dogs are playing in the snow .", heads=True),
}


def find_clearest_head(view: View) -> tuple[int, int]:
    """Layer and head of the cross-attention that is closest to a word alignment: sharp, with every source word covered.

    Only the upper half of the layers counts: heads of lower ones often align the previous token, one row too late.
    """
    found = {}
    layers = max(entry.layer for entry in view.maps if entry.part == "cross")
    for entry in view.maps:
        if entry.part == "cross" and 2 * entry.layer > layers:
            covered = entry.weights.max(1).mean(1)  # largest weight of each source word
            scores = covered - 0.1 * compute_entropy(entry.weights)
            found |= {(entry.layer, head + 1): float(score) for head, score in enumerate(scores)}
    return max(found, key=lambda place: found[place])


def main(name: str, run: str) -> None:
    picture = PICTURES[name]
    view = saccade.load(run).view(picture.text)
    layer, head = find_clearest_head(view)
    chosen = None if picture.heads else head
    path = view.save(IMAGES / f"view-{name}.png", layer=layer, head=chosen, words=True, theme=picture.theme)
    print(f"{path}: layer {layer}, head {head}: {view.output}")


if __name__ == "__main__":
    main(*sys.argv[1:])
