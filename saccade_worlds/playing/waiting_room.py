"""A waiting room, seen by a color and by a depth camera, in which one seat is called (after Qureshi et al. 2017).

A board at the wall tells the seat of the guest: the heights of its two bars are column and row. The bars are raised, so
that both cameras see them. Everybody looks alike; only the place tells who is the guest. The color camera shows who is
busy with a book, the depth camera who leans back, sits upright or leans forward: right is to wait while the guest is
busy, and else to call, to wave, or to shake a hand. All else is as in `Greeting`, but nobody walks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from saccade_worlds.playing.greeting import (
    AWAY,
    BUSY,
    BUSY_PROBABILITY,
    CELL,
    FLOOR,
    HAIR,
    HAND,
    LOOKING,
    SHAPES,
    SKIN,
    WALL,
    Greeting,
)

ROWS, COLUMNS = 4, 4  # cells of the picture; the first row is the wall
SEATS = [(row, column) for row in (1, 3) for column in range(COLUMNS)]
CHANGE_PROBABILITY = 0.5  # that anybody but the guest takes another posture and takes or leaves a book
BOARD, BAR, CLOTHES, BOOK = (235, 235, 235), (20, 20, 20), (90, 110, 150), (255, 255, 255)
# values of the depth camera, larger for what is nearer
WALL_DEPTH, BOARD_DEPTH, FLOOR_DEPTH, BAR_DEPTH = 20, 40, 60, 90
POSTURE_DEPTHS = {AWAY: 110, LOOKING: 170, HAND: 240}  # leaning back, upright, leaning forward


def _build_sprite(rows: tuple[str, ...]) -> tuple[NDArray[np.bool_], NDArray[np.uint8]]:
    """Return which pixels of a cell a person covers, and their colors."""
    paint = {"c": CLOTHES, "s": SKIN, "h": HAIR, "b": BOOK}
    covered = np.array([[letter in paint for letter in row] for row in rows])
    return covered, np.array([paint[letter] for row in rows for letter in row if letter in paint], np.uint8)


SPRITES = {False: _build_sprite(SHAPES[LOOKING]), True: _build_sprite(SHAPES[BUSY])}  # by whether there is a book


class WaitingRoom(Greeting):
    """The environment; observations are pictures (32, 32, 4) uint8: red, green, blue and depth.

    info has `matters`, the box of the guest (top, left, bottom, right in pixels), and `is_success`.
    """

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Start an episode; the seed determines it, given the same actions."""
        self._rng = np.random.default_rng(seed)
        self._guest, self._num_steps = int(self._rng.integers(len(SEATS))), 0
        self._places = [SEATS[self._guest]]
        self._next_gesture = int(self._rng.integers(AWAY, HAND))
        self._postures, self._books = self._sample_people()
        self._show_next_gesture()
        return self._render(), self._get_info(success=False)

    def _sample_people(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Sample a posture for each seat, and whether there is a book."""
        return self._rng.integers(AWAY, HAND + 1, len(SEATS)), self._rng.random(len(SEATS)) < 0.5

    def _move_people(self, *, advance_guest: bool) -> None:
        """Change people at random; the guest makes the next gesture if `advance_guest`."""
        changes = self._rng.random(len(SEATS)) < CHANGE_PROBABILITY
        changes[self._guest] = False
        postures, books = self._sample_people()
        self._postures = np.where(changes, postures, self._postures)
        self._books = np.where(changes, books, self._books)
        if advance_guest:
            self._show_next_gesture()

    def _show_next_gesture(self) -> None:
        """Let the guest make the next gesture, or take a book and any posture."""
        busy = bool(self._rng.random() < BUSY_PROBABILITY)
        self._gestures = [BUSY if busy else self._next_gesture]
        self._books[self._guest] = busy
        self._postures[self._guest] = self._rng.integers(AWAY, HAND + 1) if busy else self._next_gesture

    def _render(self) -> NDArray[np.uint8]:
        picture = np.empty((ROWS * CELL, COLUMNS * CELL, 4), np.uint8)
        picture[:] = (*FLOOR, FLOOR_DEPTH)
        picture[:CELL] = (*WALL, WALL_DEPTH)
        row, column = SEATS[self._guest]
        for bar, height in zip(np.split(picture[:CELL], 2, axis=1), (column + 1, row + 1), strict=True):
            bar[1:, 1:-1] = (*BOARD, BOARD_DEPTH)
            bar[CELL - height * CELL // 4 :, 1:-1] = (*BAR, BAR_DEPTH)
        for seat, (row, column) in enumerate(SEATS):
            part = picture[row * CELL : (row + 1) * CELL, column * CELL : (column + 1) * CELL]
            covered, colors = SPRITES[bool(self._books[seat])]
            part[covered, :3], part[covered, 3] = colors, POSTURE_DEPTHS[int(self._postures[seat])]
        return picture
