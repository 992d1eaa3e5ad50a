"""Routes of a corpus as rows, and tokenized: an instruction, the number of the start pose, and actions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from saccade.data.batching.batch import Field
from saccade.data.sources.corpus import CorpusSplit
from saccade.data.store.arrays import Store
from saccade.data.tokenization.encode import EncodingCounts
from saccade.data.tokenization.tokenizer import Tokenizer, Tokenizers
from saccade.errors import SaccadeError
from saccade_worlds.navigation.maps import ACTIONS, GridWorld
from saccade_worlds.navigation.observations import ObservationEncoder, build_observation_encoder
from saccade_worlds.navigation.poses import NavigationGraph
from saccade_worlds.navigation.routes import (
    NavigationInput,
    Route,
    Row,
    hash_routes,
    load_world,
    parse_navigation_input,
    read_routes,
)
from saccade_worlds.tables import ActionWriter

ROUTE_SIDES = ("source", "ground", "target")


class Atlas:
    """Several worlds with consecutively numbered poses, and their transitions and observations."""

    def __init__(self, walks: Iterable[NavigationInput], *, encoder: ObservationEncoder, target: Tokenizer) -> None:
        self._encoder, self._actions, self._vocabulary_size = encoder, get_action_ids(target), target.size
        named = dict.fromkeys((walk.map, walk.is_mirrored) for walk in walks)
        self._places = {name: place for place, name in enumerate(named)}
        self._worlds = [load_world(name, mirrored=turned) for name, turned in named]
        self._starts = np.cumsum([0, *(len(world.poses) for world in self._worlds)])
        self._tables: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    @property
    def size(self) -> int:
        return int(self._starts[-1])

    def get_pose_number(self, walk: NavigationInput) -> int:
        """Return the number of the start pose of an input."""
        place = self._places[walk.map, walk.is_mirrored]
        return int(self._starts[place]) + self._worlds[place].pose_numbers[walk.start]

    def collate(self, numbers: Sequence[int] | np.ndarray) -> NavigationGraph:
        """Build the batch field of some start poses: the graph of their worlds, and the poses in it."""
        numbers = np.asarray(numbers, dtype=np.int64)
        world_of = np.searchsorted(self._starts, numbers, side="right") - 1
        used = np.unique(world_of)
        tables = [self._get_tables(int(place)) for place in used]
        firsts = np.cumsum([0, *(len(moves) for moves, _ in tables)])
        moves = np.concatenate([moves + first for (moves, _), first in zip(tables, firsts, strict=False)])
        sights = np.concatenate([sights for _, sights in tables])
        start = numbers - self._starts[world_of] + firsts[np.searchsorted(used, world_of)]
        return NavigationGraph(
            torch.from_numpy(start[:, None]),
            torch.ones(len(numbers), 1, dtype=torch.bool),
            torch.from_numpy(moves),
            torch.from_numpy(sights),
        )

    def _get_tables(self, place: int) -> tuple[np.ndarray, np.ndarray]:
        if place not in self._tables:
            world = self._worlds[place]
            self._tables[place] = (
                build_transitions(world, self._actions, self._vocabulary_size),
                self._encoder.encode_world(world),
            )
        return self._tables[place]


def get_action_ids(target: Tokenizer) -> dict[str, int]:
    """Return the token id of each action that changes the pose."""
    found = {action: target.encode(action)[:-1] for action in ACTIONS if action != "stop"}
    for action, ids in found.items():
        if len(ids) != 1:
            raise SaccadeError(
                f"the action {action!r} is {len(ids)} tokens, expected one; set tokenizer.kind = instruction"
            )
    return {action: ids[0] for action, ids in found.items()}


def build_transitions(world: GridWorld, actions: dict[str, int], vocabulary_size: int) -> np.ndarray:
    """Return the next pose for each pose and token (poses, vocabulary); tokens that are no actions stay."""
    table = np.repeat(np.arange(len(world.poses), dtype=np.int64)[:, None], vocabulary_size, 1)
    for action, column in actions.items():
        table[:, column] = [world.pose_numbers[world.move(pose, action)] for pose in world.poses]
    return table


class RouteStore(Store):
    """Tokenized routes; the side `ground` is the number of the start pose in the atlas."""

    def __init__(self, folder: Path, atlas: Atlas, *, weights: Sequence[float]) -> None:
        super().__init__(folder, weights=weights)
        self._atlas = atlas

    def collate(self, rows: np.ndarray, *, side: int, variant: int = 0) -> Field:
        if self.sides[side] != "ground":
            return super().collate(rows, side=side, variant=variant)
        return self._atlas.collate(self.gather(rows, side=side)[0])


class RouteCodec:
    """Encodes blocks of routes, and opens what was encoded."""

    def __init__(self, tokenizers: Tokenizers, atlas: Atlas, *, max_length: int | None) -> None:
        self._tokenizers, self._atlas, self._max_length = tokenizers, atlas, max_length
        self.id_bound = max(tokenizers.source.size, tokenizers.target.size, atlas.size)

    def encode_block(self, block: list[Any], corpus: int, counts: EncodingCounts) -> list[list[list[int]]]:
        """Return the ids of each side of the rows that are kept."""
        counts.total += len(block)
        walks = [parse_navigation_input(line, where="a row") for _, line, _ in block]
        instructions = self._tokenizers.source.encode_all([walk.instruction for walk in walks])
        encoded_actions = self._tokenizers.target.encode_all([actions for *_, actions in block])
        sides: list[list[list[int]]] = [[], [], []]
        for (line, _, actions), walk, instruction, ids in zip(block, walks, instructions, encoded_actions, strict=True):
            if not walk.instruction.strip():
                counts.count_dropped(counts.empty, corpus, line)
            elif self._max_length is not None and max(len(instruction), len(ids)) > self._max_length:
                counts.count_dropped(counts.long, corpus, line)
            else:
                counts.num_bytes += len(actions.encode())
                for side, row in zip(sides, (instruction, [self._atlas.get_pose_number(walk)], ids), strict=True):
                    side.append(row)
        return sides

    def encode_variant(self, number: int, plain: list[list[list[int]]]) -> list[list[list[int]]]:
        """Return the plain ids: there is no dropout."""
        return plain

    def open_store(self, folder: Path, *, weights: Sequence[float]) -> RouteStore:
        return RouteStore(folder, self._atlas, weights=weights)


@dataclass(frozen=True)
class RouteSplit(CorpusSplit):
    """Routes; with `augment` also mirrored, and from every direction where the first one is not given."""

    writer: ActionWriter = field(default_factory=ActionWriter)  # of the model

    def hash_corpus(self) -> str:
        return f"{hash_routes(self.corpus)} {self.augment} {self.writer.mirror}"

    def read_examples(self) -> Iterator[Route]:
        return read_routes(self.corpus)

    def find_columns(self) -> tuple[str, ...]:
        return ()  # those of routes are fixed

    def expand(self, example: Route) -> Iterator[Row]:
        return example.iter_rows(augment=self.augment, mirror=self.writer.mirror)

    def iter_texts(self) -> Iterator[tuple[str, str]]:
        return iter_route_texts((line, actions) for _, line, actions in self.iter_rows())

    def build_row_codec(
        self, splits: Sequence[CorpusSplit], tokenizers: Tokenizers, *, max_length: int | None
    ) -> RouteCodec:
        """Encode with the atlas of all worlds of the splits, in the order of their rows."""
        walks = (parse_navigation_input(line, where=part.name) for part in splits for _, line, _ in part.iter_rows())
        atlas = Atlas(walks, encoder=build_observation_encoder(self.writer), target=tokenizers.target)
        return RouteCodec(tokenizers, atlas, max_length=max_length)

    def get_row_noun(self, sides: tuple[str, ...]) -> str:
        return "route"


def iter_route_texts(rows: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Yield instruction and actions of each row, to train tokenizers on."""
    return ((parse_navigation_input(line, where="a row").instruction, actions) for line, actions in rows)
