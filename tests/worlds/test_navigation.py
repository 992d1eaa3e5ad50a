"""Navigation: poses computed by hand."""

import torch

from saccade_worlds.navigation.poses import Navigation

# Three poses in a ring: token 1 goes on, token 2 goes back, token 0 stays.
MOVES = torch.tensor([[0, 1, 2], [1, 2, 0], [2, 0, 1]])


def test_what_leads_nowhere_is_blocked_where_it_would_lead_on_elsewhere():
    moves = MOVES.clone()
    moves[2, 1] = 2  # a wall
    walking = Navigation(torch.tensor([2, 0, 2]), moves, torch.zeros(3, 5))
    assert walking.get_blocked_actions().tolist() == [[False, True, False], [False] * 3, [False, True, False]]


def test_poses_follow_the_tokens_of_their_rows():
    walking = Navigation(torch.tensor([0, 2]), MOVES, torch.zeros(3, 5))
    poses = walking.follow_actions(torch.tensor([[1, 1, 0, 2], [2, 0, 1, 1]]))
    assert poses.tolist() == [[1, 2, 2, 1], [1, 1, 2, 0]]
    later = walking.with_poses(poses[:, -1]).reorder(torch.tensor([1, 1, 0]))
    assert later.poses.tolist() == [0, 0, 1] and later.follow_actions(torch.tensor([[1], [2], [0]])).tolist() == [
        [1],
        [2],
        [1],
    ]
