"""A small environment of pixels: a hall with people, one of whom is to be greeted (after Qureshi et al. 2017).

It has the interface of gymnasium without needing it. A banner at the wall has the color that the guest wears. Everybody
moves and makes the same gestures; the gesture of the guest determines the right action: wait while the guest is busy,
call when the guest faces away, wave when the guest looks at us, shake the hand that the guest holds out. Another action
ends the episode, except waiting; the handshake ends it with success.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

ACTIONS = ("wait", "call", "wave", "shake")
BUSY, AWAY, LOOKING, HAND = range(4)  # gestures; the right action for each has the same index
CELL, CELLS = 8, 4  # pixels of a cell, cells along a side; the first row of cells is the wall
SIDE = CELL * CELLS
PEOPLE = 3
MAX_STEPS = 10
# of a right action, of the handshake, of a wrong action
PROGRESS_REWARD, SUCCESS_REWARD, FAILURE_REWARD = (
    0.5,
    1.0,
    -0.5,
)
BUSY_PROBABILITY = 0.3  # that the guest is busy before the next gesture
MOVES = ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0))

FLOOR, WALL, SKIN, HAIR, BOOK = (206, 200, 188), (120, 116, 110), (245, 205, 165), (60, 40, 30), (255, 255, 255)
COLORS = ((214, 40, 40), (40, 90, 214), (30, 150, 60), (240, 190, 20))
# By gesture: c clothes, s skin, h hair, b book
SHAPES = (
    ("...hh...", "..hssh..", "..hssh..", "...ss...", ".bbbbbb.", ".bbbbbb.", "..cccc..", "..c..c.."),
    ("...hh...", "..hhhh..", "..hhhh..", "...hh...", "..cccc..", ".cccccc.", ".cccccc.", "..c..c.."),
    ("...hh...", "..hssh..", "..ssss..", "...ss...", "..cccc..", ".cccccc.", ".cccccc.", "..c..c.."),
    ("...hh...", "..hssh..", "..ssss..", "s..ss...", "ss.ccc..", ".scccccc", "..cccccc", "..c..c.."),
)


def _build_sprites() -> NDArray[np.uint8]:
    """Return (color, gesture, CELL, CELL, 4): RGB, and 1 for pixels that are not transparent."""
    sprites = np.zeros((len(COLORS), len(SHAPES), CELL, CELL, 4), np.uint8)
    for number, color in enumerate(COLORS):
        paint = {"c": color, "s": SKIN, "h": HAIR, "b": BOOK}
        for gesture, rows in enumerate(SHAPES):
            for y, row in enumerate(rows):
                for x, letter in enumerate(row):
                    if letter in paint:
                        sprites[number, gesture, y, x] = (*paint[letter], 1)
    return sprites


SPRITES = _build_sprites()


class Greeting:
    """The environment; observations are pictures (32, 32, 3) uint8.

    info has `matters`, the box of the guest (top, left, bottom, right in pixels), and `is_success`.
    """

    actions: tuple[str, ...] = ACTIONS

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Start an episode; the seed determines it, given the same actions."""
        self._rng = np.random.default_rng(seed)
        places = self._rng.permutation(CELLS * (CELLS - 1))[:PEOPLE]
        self._places = [(int(place) // CELLS + 1, int(place) % CELLS) for place in places]
        self._colors = [int(colour) for colour in self._rng.permutation(len(COLORS))[:PEOPLE]]
        self._gestures = [int(gesture) for gesture in self._rng.integers(0, 4, PEOPLE)]
        self._next_gesture = int(self._rng.integers(AWAY, HAND))  # of the guest, who is the first person
        self._gestures[0] = BUSY if self._rng.random() < BUSY_PROBABILITY else self._next_gesture
        self._num_steps = 0
        return self._render(), self._get_info(success=False)

    def step(self, action: int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Return observation, reward, terminated, truncated (always False) and info."""
        self._num_steps += 1
        right, waits = action == self._gestures[0], action == BUSY
        success = right and action == HAND
        over = success or not (right or waits) or self._num_steps == MAX_STEPS
        if right and not waits and not success:
            self._next_gesture += 1
        reward = (
            FAILURE_REWARD if not (right or waits) else 0.0 if waits else SUCCESS_REWARD if success else PROGRESS_REWARD
        )
        if not over:
            self._move_people(advance_guest=right)
        return self._render(), reward, over, False, self._get_info(success=success)

    def _move_people(self, *, advance_guest: bool) -> None:
        """Move people and change their gestures at random; the guest makes the next gesture if `advance_guest`."""
        if advance_guest:
            self._gestures[0] = BUSY if self._rng.random() < BUSY_PROBABILITY else self._next_gesture
        for person in range(PEOPLE):
            down, right = MOVES[self._rng.integers(len(MOVES))]
            place = (self._places[person][0] + down, self._places[person][1] + right)
            if 1 <= place[0] < CELLS and 0 <= place[1] < CELLS and place not in self._places:
                self._places[person] = place
            if person and self._rng.random() < 0.5:
                self._gestures[person] = int(self._rng.integers(0, 4))

    def _render(self) -> NDArray[np.uint8]:
        picture = np.empty((SIDE, SIDE, 3), np.uint8)
        picture[:] = FLOOR
        picture[:CELL] = WALL
        picture[1 : CELL - 1] = COLORS[self._colors[0]]
        for (y, x), colour, gesture in zip(self._places, self._colors, self._gestures, strict=True):
            sprite = SPRITES[colour, gesture]
            part = picture[y * CELL : (y + 1) * CELL, x * CELL : (x + 1) * CELL]
            np.copyto(part, sprite[..., :3], where=sprite[..., 3:].astype(bool))
        return picture

    def _get_info(self, *, success: bool) -> dict[str, Any]:
        y, x = self._places[0]
        box = (y * CELL, x * CELL, (y + 1) * CELL, (x + 1) * CELL)
        return {"matters": box, "is_success": success}
