"""The waiting room: what its pictures tell, and that only the place tells who is the guest."""

import numpy as np
import pytest

from saccade_worlds.playing.greeting import AWAY, BUSY, CELL, HAND, MAX_STEPS
from saccade_worlds.playing.waiting_room import BAR_DEPTH, BOOK, COLUMNS, POSTURE_DEPTHS, ROWS, SEATS, WaitingRoom

WIDTH = COLUMNS * CELL
POSTURES = {depth: posture for posture, depth in POSTURE_DEPTHS.items()}


def read_seat(picture):
    """The cell that the heights of both bars name, as the depth camera sees them."""
    column, row = ((picture[:CELL, x, 3] == BAR_DEPTH).sum() * 4 // CELL for x in (WIDTH // 4, 3 * WIDTH // 4))
    return row - 1, column - 1


def read_action(picture):
    """The right action, from the picture alone: a book in the color picture, else the posture in the depth picture."""
    row, column = read_seat(picture)
    part = picture[row * CELL : (row + 1) * CELL, column * CELL : (column + 1) * CELL]
    if (part[..., :3] == BOOK).all(-1).any():
        return BUSY
    return POSTURES[int(part[..., 3].max())]


def play(seed, choose):
    world = WaitingRoom()
    picture, info = world.reset(seed=seed)
    over, steps = False, 0
    while not over:
        picture, _, over, _, info = world.step(choose(picture))
        steps += 1
    return info["is_success"], steps


def test_the_right_action_is_read_at_the_called_seat():
    played = [play(seed, read_action) for seed in range(100)]
    assert all(success or steps == MAX_STEPS for success, steps in played)  # the guest may be busy for too long
    assert np.mean([success for success, _ in played]) > 0.95


@pytest.mark.parametrize(("offset", "most"), [(1, 0.35), (3, 0.35)])
def test_another_seat_does_not_tell_the_right_action(offset, most):
    def choose(picture):
        other = picture.copy()
        seat = SEATS[(SEATS.index(read_seat(picture)) + offset) % len(SEATS)]
        other[:CELL, :, 3] = 0
        other[CELL - CELL * (seat[1] + 1) // 4 : CELL, : WIDTH // 2, 3] = BAR_DEPTH
        other[CELL - CELL * (seat[0] + 1) // 4 : CELL, WIDTH // 2 :, 3] = BAR_DEPTH
        return read_action(other)

    assert np.mean([play(seed, choose)[0] for seed in range(100)]) < most


def test_people_look_alike_whoever_is_the_guest():
    world = WaitingRoom()
    world.reset(seed=3)
    pictures = []
    for world._guest in range(len(SEATS)):
        pictures.append(world._render())
        assert read_seat(pictures[-1]) == SEATS[world._guest]
    assert all((picture[CELL:] == pictures[0][CELL:]).all() for picture in pictures)
    assert len({picture[:CELL].tobytes() for picture in pictures}) == len(SEATS)
    assert len({picture[:CELL, :, :3].tobytes() for picture in pictures}) == len(SEATS)  # both cameras see the board
    assert len({picture[:CELL, :, 3].tobytes() for picture in pictures}) == len(SEATS)


def test_a_posture_is_seen_by_the_depth_camera_alone_and_a_book_by_the_color_camera():
    world = WaitingRoom()
    world.reset(seed=3)
    world._postures[:], world._books[:] = AWAY, False
    before = world._render()
    world._postures[2] = HAND
    leaning = world._render()
    assert (leaning[..., :3] == before[..., :3]).all() and (leaning[..., 3] != before[..., 3]).any()
    world._books[2] = True
    reading = world._render()
    row, column = SEATS[2]
    part = np.s_[row * CELL : (row + 1) * CELL, column * CELL : (column + 1) * CELL]
    assert (reading[..., :3] != leaning[..., :3]).any()
    assert set(reading[part][..., 3].ravel()) == set(leaning[part][..., 3].ravel())  # no other depth, only its outline


def test_a_seed_is_an_episode_and_the_box_is_that_of_the_guest():
    first, second = WaitingRoom(), WaitingRoom()
    picture, info = first.reset(seed=5)
    assert (picture == second.reset(seed=5)[0]).all() and picture.shape == (ROWS * CELL, WIDTH, 4)
    row, column = read_seat(picture)
    assert info["matters"] == (row * CELL, column * CELL, (row + 1) * CELL, (column + 1) * CELL)
    assert (first.step(BUSY)[0] == second.step(BUSY)[0]).all()
    assert any((WaitingRoom().reset(seed=seed)[0] != picture).any() for seed in range(3))
