"""Routes as rows of ids: an instruction, the number of the pose at which it begins, and actions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from saccade.data.batching.batch import Ground, Media, Tokens
from saccade.data.store.arrays import Store
from saccade.data.tokenization.encode import Tally
from saccade.data.tokenization.tokenizer import Tokenizer, Tokenizers
from saccade.data.worlds.maps import ACTIONS, World
from saccade.data.worlds.routes import Walk, parse_walk, world_of
from saccade.data.worlds.sights import Eye, eye_of
from saccade.errors import SaccadeError

SIDES = ("source", "ground", "target")


class Atlas:
    """Worlds whose poses are numbered one world after the other: where each token leads, and what is seen."""

    def __init__(self, walks: Iterable[Walk], *, eye: Eye, target: Tokenizer) -> None:
        self._eye, self._actions, self._width = eye, action_ids(target), target.size
        named = dict.fromkeys((walk.map, walk.mirrored) for walk in walks)
        self._places = {name: place for place, name in enumerate(named)}
        self._worlds = [world_of(name, mirrored=turned) for name, turned in named]
        self._starts = np.cumsum([0, *(len(world.poses) for world in self._worlds)])
        self._tables: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    @classmethod
    def of(cls, parts: Sequence[Any], target: Tokenizer) -> Atlas:
        """All worlds of the parts of a corpus, in the order in which their rows name them."""
        walks = (parse_walk(line, where=part.name) for part in parts for _, line, _ in part.rows())
        return cls(walks, eye=eye_of(parts[0].walks), target=target)

    @property
    def size(self) -> int:
        return int(self._starts[-1])

    def number(self, walk: Walk) -> int:
        """That of the pose at which a walk begins."""
        place = self._places[walk.map, walk.mirrored]
        return int(self._starts[place]) + self._worlds[place].numbers[walk.start]

    def field(self, numbers: Sequence[int] | np.ndarray) -> Ground:
        """The worlds of some poses, and where in them these are."""
        numbers = np.asarray(numbers, dtype=np.int64)
        at = np.searchsorted(self._starts, numbers, side="right") - 1
        used = np.unique(at)
        tables = [self._table(int(place)) for place in used]
        firsts = np.cumsum([0, *(len(moves) for moves, _ in tables)])
        moves = np.concatenate([moves + first for (moves, _), first in zip(tables, firsts, strict=False)])
        sights = np.concatenate([sights for _, sights in tables])
        start = numbers - self._starts[at] + firsts[np.searchsorted(used, at)]
        return Ground(
            torch.from_numpy(start[:, None]),
            torch.ones(len(numbers), 1, dtype=torch.bool),
            torch.from_numpy(moves),
            torch.from_numpy(sights),
        )

    def _table(self, place: int) -> tuple[np.ndarray, np.ndarray]:
        if place not in self._tables:
            world = self._worlds[place]
            self._tables[place] = (moves_of(world, self._actions, self._width), self._eye.sights(world))
        return self._tables[place]


def action_ids(target: Tokenizer) -> dict[str, int]:
    """The one id of each action that changes the pose."""
    found = {action: target.encode(action)[:-1] for action in ACTIONS if action != "stop"}
    for action, ids in found.items():
        if len(ids) != 1:
            raise SaccadeError(f"the action {action!r} is {len(ids)} tokens, expected one; set tokenizer.kind = words")
    return {action: ids[0] for action, ids in found.items()}


def moves_of(world: World, actions: dict[str, int], width: int) -> np.ndarray:
    """The number of the pose to which each token leads from each pose; most tokens lead nowhere."""
    table = np.repeat(np.arange(len(world.poses), dtype=np.int64)[:, None], width, 1)
    for action, column in actions.items():
        table[:, column] = [world.numbers[world.moved(pose, action)] for pose in world.poses]
    return table


class RouteStore(Store):
    """Rows whose middle side is a number of the atlas."""

    def __init__(self, folder: Path, atlas: Atlas, *, weights: Sequence[float]) -> None:
        super().__init__(folder, weights=weights)
        self._atlas = atlas

    def collate(self, rows: np.ndarray, *, side: int, variant: int = 0) -> Tokens | Media | Ground:
        if self.sides[side] != "ground":
            return super().collate(rows, side=side, variant=variant)
        return self._atlas.field(self.gather(rows, side=side)[0])


class RouteEncoder:
    """Blocks of rows to ids."""

    def __init__(self, tokenizers: Tokenizers, atlas: Atlas, *, limit: int | None) -> None:
        self._tokenizers, self._atlas, self._limit = tokenizers, atlas, limit
        self.largest = max(tokenizers.source.size, tokenizers.target.size, atlas.size)

    def plain(self, block: list[Any], corpus: int, tally: Tally) -> list[list[list[int]]]:
        """The ids of the rows of a block that are kept, side by side."""
        tally.total += len(block)
        walks = [parse_walk(line, where="a row") for _, line, _ in block]
        said = self._tokenizers.source.encode_all([walk.instruction for walk in walks])
        done = self._tokenizers.target.encode_all([actions for *_, actions in block])
        sides: list[list[list[int]]] = [[], [], []]
        for (line, _, actions), walk, words, ids in zip(block, walks, said, done, strict=True):
            if not walk.instruction.strip():
                tally.drop(tally.empty, corpus, line)
            elif self._limit is not None and max(len(words), len(ids)) > self._limit:
                tally.drop(tally.long, corpus, line)
            else:
                tally.bytes += len(actions.encode())
                for side, row in zip(sides, (words, [self._atlas.number(walk)], ids), strict=True):
                    side.append(row)
        return sides

    def variant(self, number: int, plain: list[list[list[int]]]) -> list[list[list[int]]]:
        """There is only one."""
        return plain


def instructions(rows: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """The texts of rows, for a tokenizer to learn from."""
    return ((parse_walk(line, where="a row").instruction, actions) for line, actions in rows)
