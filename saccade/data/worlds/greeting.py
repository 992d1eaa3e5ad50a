"""A small world of pixels: a hall full of people, one of whom is to be greeted (after Qureshi et al. 2017).

It is used as those of gymnasium are, and needs no gymnasium. A banner at the wall says which colour the guest wears.
Everybody walks about and makes the same gestures; what the guest does decides what is right: who is busy is left alone,
who stands with the back to us is called, who looks is waved at, who holds out a hand gets one.
Whatever else is done ends the visit. It ends well with the handshake.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

ACTIONS = ("wait", "call", "wave", "shake")
BUSY, AWAY, LOOKING, HAND = range(4)  # gestures; the right action for each has the same number
CELL, CELLS = 8, 4  # pixels of a person, and places along a side; the first row of places is the wall
SIDE = CELL * CELLS
PEOPLE = 3
LIMIT = 10  # steps after which the guest goes
BETTER, DONE, WRONG = 0.5, 1.0, -0.5  # rewards of what is right, of the handshake, and of what is not right
DELAY = 0.3  # of becoming busy between two gestures
STEPS = ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0))

FLOOR, WALL, SKIN, HAIR, BOOK = (206, 200, 188), (120, 116, 110), (245, 205, 165), (60, 40, 30), (255, 255, 255)
COLOURS = ((214, 40, 40), (40, 90, 214), (30, 150, 60), (240, 190, 20))
# By gesture: c clothes, s skin, h hair, b a book
SHAPES = (
    ("...hh...", "..hssh..", "..hssh..", "...ss...", ".bbbbbb.", ".bbbbbb.", "..cccc..", "..c..c.."),
    ("...hh...", "..hhhh..", "..hhhh..", "...hh...", "..cccc..", ".cccccc.", ".cccccc.", "..c..c.."),
    ("...hh...", "..hssh..", "..ssss..", "...ss...", "..cccc..", ".cccccc.", ".cccccc.", "..c..c.."),
    ("...hh...", "..hssh..", "..ssss..", "s..ss...", "ss.ccc..", ".scccccc", "..cccccc", "..c..c.."),
)


def _sprites() -> NDArray[np.uint8]:
    """(colour, gesture, CELL, CELL, 4): the last number is 1 where there is something."""
    made = np.zeros((len(COLOURS), len(SHAPES), CELL, CELL, 4), np.uint8)
    for number, colour in enumerate(COLOURS):
        paint = {"c": colour, "s": SKIN, "h": HAIR, "b": BOOK}
        for gesture, rows in enumerate(SHAPES):
            for y, row in enumerate(rows):
                for x, letter in enumerate(row):
                    if letter in paint:
                        made[number, gesture, y, x] = (*paint[letter], 1)
    return made


SPRITES = _sprites()


class Greeting:
    """One visit after the other; `reset` begins one, `step` goes on with it. Pictures are (32, 32, 3) uint8.

    What is told beside them: `matters`, the rectangle of the guest (top, left, bottom, right in pixels), and
    `is_success`.
    """

    actions: tuple[str, ...] = ACTIONS

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """A new visit; the same seed gives the same visit, as long as the same is done."""
        self._rng = np.random.default_rng(seed)
        places = self._rng.permutation(CELLS * (CELLS - 1))[:PEOPLE]
        self._places = [(int(place) // CELLS + 1, int(place) % CELLS) for place in places]
        self._colours = [int(colour) for colour in self._rng.permutation(len(COLOURS))[:PEOPLE]]
        self._gestures = [int(gesture) for gesture in self._rng.integers(0, 4, PEOPLE)]
        self._next = int(self._rng.integers(AWAY, HAND))  # what the guest, the first of them, does after this
        self._gestures[0] = BUSY if self._rng.random() < DELAY else self._next
        self._taken = 0
        return self._picture(), self._told(success=False)

    def step(self, action: int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """What is seen then, the reward, whether the visit is over, whether it was cut off (never), and more."""
        self._taken += 1
        right, waits = action == self._gestures[0], action == BUSY
        success = right and action == HAND
        over = success or not (right or waits) or self._taken == LIMIT
        if right and not waits and not success:
            self._next += 1
        reward = WRONG if not (right or waits) else 0.0 if waits else DONE if success else BETTER
        if not over:
            self._go_on(changes=right)
        return self._picture(), reward, over, False, self._told(success=success)

    def _go_on(self, *, changes: bool) -> None:
        """Everybody may take a step and do something else; the guest does the next thing when the last was answered."""
        if changes:
            self._gestures[0] = BUSY if self._rng.random() < DELAY else self._next
        for person in range(PEOPLE):
            down, right = STEPS[self._rng.integers(len(STEPS))]
            place = (self._places[person][0] + down, self._places[person][1] + right)
            if 1 <= place[0] < CELLS and 0 <= place[1] < CELLS and place not in self._places:
                self._places[person] = place
            if person and self._rng.random() < 0.5:
                self._gestures[person] = int(self._rng.integers(0, 4))

    def _picture(self) -> NDArray[np.uint8]:
        picture = np.empty((SIDE, SIDE, 3), np.uint8)
        picture[:] = FLOOR
        picture[:CELL] = WALL
        picture[1 : CELL - 1] = COLOURS[self._colours[0]]
        for (y, x), colour, gesture in zip(self._places, self._colours, self._gestures, strict=True):
            sprite = SPRITES[colour, gesture]
            part = picture[y * CELL : (y + 1) * CELL, x * CELL : (x + 1) * CELL]
            np.copyto(part, sprite[..., :3], where=sprite[..., 3:].astype(bool))
        return picture

    def _told(self, *, success: bool) -> dict[str, Any]:
        y, x = self._places[0]
        box = (y * CELL, x * CELL, (y + 1) * CELL, (x + 1) * CELL)
        return {"matters": box, "is_success": success}
