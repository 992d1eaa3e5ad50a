"""Fixtures: a toy writer that is a random table, for exhaustive search, and a real model with random weights."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import tokenizers
import torch
from tokenizers import Regex, decoders, models, pre_tokenizers
from torch import Tensor

from saccade.config.load import save, validate
from saccade.data.tokenization.tokenizers import END, PAD, SPECIAL_TOKENS, START, UNKNOWN, Tokenizer, Tokenizers
from saccade.model.build.model import build
from saccade.model.run import named_weights, write_tensors
from saccade.model.writers.tokens import Step
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.search.greedy import compute_length_penalty
from saccade.runs import RECIPE, WEIGHTS

V, S = 7, 5  # three letters beside the four special tokens; length of a source
LETTERS = [token for token in range(V) if token not in (PAD, START, END, UNKNOWN)]


@dataclass(frozen=True)
class ToyState:
    history: Tensor  # (R,) the number of everything read so far

    def reorder(self, indices: Tensor) -> "ToyState":
        return ToyState(self.history[indices])


class ToyWriter:
    """A writer whose distribution depends on all previous tokens; records the number of rows of each step."""

    def __init__(self, *, seed: int = 0, length: int = 4, scale: float = 2.0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.size = V**length * 11
        self.table = torch.randn(self.size, V, generator=generator) * scale
        self.rows: list[int] = []

    def start(self, sentences: int) -> ToyState:
        return ToyState(torch.arange(sentences) * 13)

    def step(self, inputs: Tensor, state: ToyState, *, align: bool = False) -> Step:
        self.rows.append(inputs.shape[0])
        history = (state.history * V + inputs[:, -1]) % self.size
        weights = torch.nn.functional.one_hot(history % S, S).float() if align else None
        return Step(self.table[history], ToyState(history), weights)

    def replay(self, ids: list[int], sentence: int) -> tuple[float, list[int]]:
        """Return the log-probability of an output, END included, and the attended position of each token."""
        state, total, positions = ToyState(torch.tensor([sentence * 13])), 0.0, []
        for seen, token in zip([START, *ids], [*ids, END], strict=True):
            logits, state, _ = self.step(torch.tensor([[seen]]), state)
            total += float(logits.log_softmax(-1)[0, token])
            positions.append(int(state.history % S))
        return total, positions[:-1]

    def exhaustive(self, sentence: int, *, limit: int, alpha: float) -> list[tuple[float, list[int]]]:
        """Return every output of at most `limit` letters with its score, best first."""
        every = (list(ids) for n in range(limit + 1) for ids in itertools.product(LETTERS, repeat=n))
        scored = [(self.replay(ids, sentence)[0] / compute_length_penalty(len(ids) + 1, alpha), ids) for ids in every]
        return sorted(scored, reverse=True)


@pytest.fixture
def toy() -> type[ToyWriter]:
    return ToyWriter


def characters(letters: str) -> Tokenizer:
    core = tokenizers.Tokenizer(
        models.WordLevel({piece: i for i, piece in enumerate([*SPECIAL_TOKENS, *letters])}, "<unknown>")
    )
    core.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    core.decoder = decoders.Fuse()
    return Tokenizer(core)


@pytest.fixture
def make_predictor() -> Callable[..., Predictor]:
    """Factory of Transformers with random weights over letters."""

    def make(*, seed: int = 0, letters: str = "abcdefg ", norm: str = "pre", **sections: dict) -> Predictor:
        stack = {"layers": 2, "dim": 22, "heads": 11, "ff": 13, "norm": norm}
        values = {
            "data": {"max_length": 24},
            "reader": {"stack": stack},
            "writer": {"stack": stack, "tie": "none"},
            **sections,
        }
        recipe = validate(values, origin="test")
        both = characters(letters)
        torch.manual_seed(seed)
        model = build(recipe, source_size=both.size, target_size=both.size)
        with torch.no_grad():
            model.writer.output.weight.mul_(4.0)  # sharp enough for outputs of different lengths
        return Predictor(model, recipe=recipe, tokenizers=Tokenizers(both, both))

    return make


@pytest.fixture
def make_run(make_predictor: Callable[..., Predictor], tmp_path: Path) -> Callable[..., Path]:
    """Factory of run folders with such a model."""

    def make(name: str, **settings) -> Path:
        folder, predictor = tmp_path / name, make_predictor(**settings)
        folder.mkdir()
        save(predictor.recipe, folder / RECIPE)
        predictor.tokenizers.save(folder)
        write_tensors(named_weights(predictor.model), folder / WEIGHTS)
        return folder

    return make
