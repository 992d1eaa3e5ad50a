"""Reformer in training: hash rotations are sampled at each step, and identically in a resumed run."""

from pathlib import Path

import small
from small import read_metrics, weights

from saccade.config.load import validate
from saccade.train import api

STACK = {
    "layers": 2, "dim": 12, "heads": 2, "ff": 17, "norm": "pre", "dropout": 0.1, "residual": "reversible",
    "attention": ["local", "lsh"], "chunks": {"length": 4, "hashes": 2},
}  # fmt: skip


def train(path: Path, **settings: object) -> Path:
    recipe = validate({
        "name": "long",
        "task": "language-model",
        "data": {
            "train": [{"files": ["embedded:sentences"], "examples": 60}],
            "valid": [{"files": ["embedded:sentences-heldout"], "examples": 20}],
            "max_length": 30,
            "cross_document": True,
        },
        "tokenizer": {"kind": "characters"},
        "reader": {"kind": "none"},
        "writer": {"stack": STACK, "tie": "none", "positions": {"kind": "axial", "shape": [5, 6]}},
        "train": {**small.TRAIN, **settings},
    })  # fmt: skip
    api.train(recipe, run=path)
    return path


def test_a_resumed_run_ends_with_the_same_bytes(tmp_path: Path) -> None:
    whole, part = train(tmp_path / "whole"), train(tmp_path / "part", steps=9)
    api.train(resume=part, overrides=["train.steps=24"])
    assert weights(part, 24) == weights(whole, 24)
    lines = [line for line in read_metrics(whole) if line["event"] == "valid"]
    assert lines[-1]["nll"] < lines[0]["nll"]
