"""Grid worlds: reading maps, moves, and observations."""

import gzip

import numpy as np
import pytest

from saccade.errors import SaccadeError
from saccade_worlds.navigation.generated_worlds import generate_routes, generate_world
from saccade_worlds.navigation.maps import ACTIONS, Pose, infer_actions, mirror_pose, read_map
from saccade_worlds.navigation.observations import ObservationEncoder, build_observation_encoder
from saccade_worlds.tables import ActionWriter

# A corridor of three places from left to right; from the middle one, a way goes down.
MAP = """<?xml version="1.0"?>
<map name="T"><nodes>
  <node x="0" y="0" item="chair"/><node x="1" y="0" item=""/><node x="2" y="0" item="lamp"/><node x="1" y="1" item=""/>
</nodes><edges>
  <edge node1="0,0" node2="1,0" wall="fish" floor="blue"/><edge node1="1,0" node2="2,0" wall="tower" floor="blue"/>
  <edge node1="1,0" node2="1,1" wall="fish" floor="wood"/>
</edges></map>"""


@pytest.fixture
def corridor(tmp_path):
    (tmp_path / "t.xml.gz").write_bytes(gzip.compress(MAP.encode()))
    return read_map(str(tmp_path / "t.xml.gz"))


def test_a_map_is_read_with_its_ways_in_both_directions(corridor):
    assert corridor.name == "T" and len(corridor.poses) == 16
    assert corridor.edges[(2, 0), (1, 0)] == corridor.edges[(1, 0), (2, 0)] == ("blue", "tower")


def test_actions_lead_where_they_should(corridor):
    route = corridor.follow(Pose(0, 0, 90), ["forward", "right", "forward", "forward", "left", "stop", "left"])
    assert [str(pose) for pose in route] == ["0,0,90", "1,0,90", "1,0,180", "1,1,180", "1,1,180", "1,1,90"]
    assert infer_actions([*route[:4], route[5]]) == ["forward", "right", "forward", "left", "stop"]
    around = [Pose(0, 0, to) for to in (0, 270, 180)]
    assert infer_actions(around[::2]) == infer_actions(around) == ["right", "right", "stop"]


def test_a_mirrored_world_is_one_with_left_and_right_exchanged(corridor):
    start, exchanged = Pose(0, 0, 90), {"left": "right", "right": "left"}
    actions = ["forward", "right", "forward", "left"]
    there = corridor.follow(start, actions)
    mirror = corridor.mirror_image.follow(mirror_pose(start), [exchanged.get(action, action) for action in actions])
    assert mirror == [mirror_pose(pose) for pose in there]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no map", "is not XML"),
        ('<!DOCTYPE m [<!ENTITY a "b">]><map>&a;</map>', "declares the entity 'a'; expected plain XML"),
        ("<map/>", "has no place; expected <node"),
        ('<map><node x="0" y="a"/></map>', "<node> has no usable"),
        ('<map><node x="0" y="0"/><edge node1="0,0" floor="a" wall="b"/></map>', "<edge> has no usable 'node2'"),
        (
            MAP.replace('node2="1,1"', 'node2="2,2"'),
            r"an edge from \(1, 0\) to \(2, 2\) must join two neighbouring places",
        ),
        ("<map>" + " " * (1 << 20), "is larger than 1,048,576 bytes"),
    ],
)
def test_what_is_no_map_is_refused(text, message, tmp_path):
    (tmp_path / "bad.xml").write_text(text)
    with pytest.raises(SaccadeError, match=message):
        read_map(str(tmp_path / "bad.xml"))


def test_steps_that_nobody_can_take_are_refused(corridor):
    with pytest.raises(SaccadeError, match="no action leads from 0,0,90 to 2,0,90"):
        infer_actions([Pose(0, 0, 90), Pose(2, 0, 90)])
    with pytest.raises(SaccadeError, match="unknown action 'jump'; expected forward, left, right, stop"):
        corridor.move(Pose(0, 0, 90), "jump")


def test_observations_are_relative_to_the_direction(corridor):
    """A turn permutes the directions of an observation, and the mirrored world mirrors it."""
    eye = ObservationEncoder(("chair", "lamp"), ("blue", "wood"), ("fish", "tower"))
    sights = eye.encode_world(corridor)
    assert sights.shape == (16, eye.num_features)
    here, sides = sights[:, :3], sights[:, 3:].reshape(16, 4, eye.features_per_direction)
    at = corridor.pose_numbers
    assert here[at[Pose(2, 0, 0)]].tolist() == [0, 1, 0] and here[at[Pose(1, 0, 0)]].tolist() == [0, 0, 1]
    for turn in range(4):  # ahead, right, behind, left
        expected = np.roll(sides[at[Pose(1, 0, 0)]], -turn, 0)
        assert np.array_equal(sides[at[Pose(1, 0, 90 * turn)]], expected)
    from_left = sides[at[Pose(0, 0, 90)], 0]
    assert from_left[:5].tolist() == [1, 0, 0.5, 0.25, 0.5]  # open, goes on, two steps, the first crosses, lamp second
    assert from_left[5:7].tolist() == [1, 0]  # a blue floor
    assert from_left[-4:].tolist() == [0, 1, 0, 0]  # wood crosses at the next place, nothing farther on
    flipped = eye.encode_world(corridor.mirror_image).reshape(16, -1)
    other = corridor.mirror_image.pose_numbers[mirror_pose(Pose(1, 0, 0))]
    assert np.array_equal(flipped[other, 3:].reshape(4, -1)[[0, 3, 2, 1]], sides[at[Pose(1, 0, 0)]])


def test_a_map_with_unknown_things_is_refused(corridor):
    with pytest.raises(SaccadeError, match=r"the map T has items .* does not know: lamp; set writer.items"):
        ObservationEncoder(("chair",), ("blue", "wood"), ("fish", "tower")).encode_world(corridor)


def test_embedded_worlds_can_be_walked_in_and_others_are_held_out():
    eye = build_observation_encoder(ActionWriter())
    for name in ("worlds", "worlds-heldout"):
        for said, where, path in generate_routes(name, 60):
            actions = infer_actions(path)
            assert generate_world(where).follow(path[0], actions)[-1] == path[-1], said
            assert set(actions) <= set(ACTIONS)
            assert "left left" not in (said := " ".join(actions)) and "right left" not in said  # no turn twice in a row
        assert eye.encode_world(generate_world(f"{name}/7")).shape == (100, eye.num_features)
    maps = [{repr(generate_world(f"{name}/{n}").edges) for n in range(20)} for name in ("worlds", "worlds-heldout")]
    assert not maps[0] & maps[1]
    with pytest.raises(SaccadeError, match=r"no embedded routes 'world'; did you mean worlds\?"):
        next(generate_routes("world", 1))
    with pytest.raises(SaccadeError, match="no embedded world 'worlds/9999'; expected worlds/0 to worlds/899"):
        generate_world("worlds/9999")
