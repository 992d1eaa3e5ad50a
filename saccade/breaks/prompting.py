"""Breaks of prompts, of what continues them, and of sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from saccade.breaks.patching import Patch
from saccade.breaks.registry import break_code
from saccade.config.schema import Decoding
from saccade.predict.predictors.language import PromptCodec
from saccade.predict.predictors.parts import LoadedModel
from saccade.predict.prompts import PromptTask, Template
from saccade.predict.search import greedy, prompted


@break_code("prompt-not-read", "A language model reads only the last token of its prompt.")
def drop_prompt(patch: Patch) -> None:
    def encode(original: Any, self: PromptCodec, texts: Sequence[str], *args: Any, **settings: Any) -> list[list[int]]:
        rows = original(self, texts, *args, **settings)
        return [[row[0], *row[1:][-1:]] for row in rows]

    patch.replace(PromptCodec.encode_prompts, encode)


@break_code("prompt-in-the-completion", "A completion begins with its prompt.")
def keep_prompt(patch: Patch) -> None:
    def decode(original: Any, self: PromptCodec, row: list[int], ids: Sequence[int]) -> str:
        return self.tokenizers.target.decode([*row[1:], *ids])

    patch.replace(PromptCodec.decode_after, decode)


@break_code("prompt-cut-at-its-end", "Of a prompt that is too long, the first tokens are kept instead of the last.")
def cut_end(patch: Patch) -> None:
    def encode(original: Any, self: PromptCodec, texts: Sequence[str], *args: Any, **settings: Any) -> list[list[int]]:
        rows = original(self, texts, *args, **settings)
        return [[row[0], *self.encode_text(text)[: len(row) - 1]] for text, row in zip(texts, rows, strict=True)]

    patch.replace(PromptCodec.encode_prompts, encode)


@break_code("examples-left-out", "A few-shot prompt has no examples.")
def drop_examples(patch: Patch) -> None:
    def format_prompt(original: Any, self: Template, task: PromptTask, examples: str = "") -> str:
        return str(original(self, task))

    patch.replace(Template.format_prompt, format_prompt)


@break_code("stop-ignored", "Outputs do not end before a stop string.")
def ignore_stops(patch: Patch) -> None:
    patch.replace(prompted.find_first_stop, lambda original, text, stops: None)


@break_code("seed-ignored", "Sampling always uses the same random numbers.")
def ignore_seed(patch: Patch) -> None:
    def make_generator(original: Any, self: LoadedModel, decoding: Decoding) -> torch.Generator | None:
        return torch.Generator(self.device).manual_seed(1) if decoding.sample else None

    patch.replace(LoadedModel.make_generator, make_generator)


@break_code("greedy-sampling", "Sampling chooses the most probable token.")
def sample_greedily(patch: Patch) -> None:
    def build_sampler(original: Any, warpers: Any, generator: torch.Generator) -> greedy.Chooser:
        def choose(logits: Tensor) -> Tensor:
            return logits.argmax(-1)

        return choose

    patch.replace(greedy.build_sampler, build_sampler)
