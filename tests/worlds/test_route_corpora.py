"""Instructions with routes: files in the format of SAIL, augmentation, and tokenization."""

import gzip
import json

import numpy as np
import pytest

from saccade.config.load import load
from saccade.config.schema import Corpus
from saccade.data.batching.batches import collate_batch
from saccade.data.prepare import prepare
from saccade.errors import SaccadeError
from saccade_worlds.navigation.routes import hash_routes, parse_navigation_input, read_routes

MAP = """<map name="T"><nodes>
  <node x="0" y="0" item="chair"/><node x="1" y="0" item=""/><node x="2" y="0" item="lamp"/><node x="1" y="1" item=""/>
</nodes><edges>
  <edge node1="0,0" node2="1,0" wall="fish" floor="blue"/><edge node1="1,0" node2="2,0" wall="tower" floor="blue"/>
  <edge node1="1,0" node2="1,1" wall="fish" floor="wood"/>
</edges></map>"""
LINES = [
    {"instruction": "Turn Right, and walk down", "map": "t.xml", "path": [[1, 0, 90], [1, 0, 180], [1, 1, 180]]},
    {"instruction": "face the chair", "map": "t.xml", "path": [[1, 0, -1], [1, 0, 270]]},
    {"instruction": "you are at a lamp", "map": "t.xml", "path": [[2, 0, 0]]},
]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "t.xml").write_text(MAP)
    write(tmp_path, LINES)
    return tmp_path


def write(folder, lines):
    (folder / "routes.jsonl.gz").write_bytes(gzip.compress("".join(f"{json.dumps(x)}\n" for x in lines).encode()))


def corpus(folder, *, alone=False):
    files = [str(folder / "routes.jsonl.gz")] if alone else [str(folder / "t.xml"), str(folder / "routes.jsonl.gz")]
    return Corpus(files=tuple(files))


def rows(folder, *, varied=False, mirror=False):
    return [row for route in read_routes(corpus(folder)) for row in route.iter_rows(augment=varied, mirror=mirror)]


def test_routes_become_actions(folder):
    found = rows(folder)
    assert [actions for *_, actions in found][::2] == ["right forward stop", "stop"]
    values = json.loads(found[0][1])
    assert values == {"instruction": "Turn Right, and walk down", "map": str(folder / "t.xml"), "start": [1, 0, 90]}
    assert [*read_routes(corpus(folder, alone=True))] == [*read_routes(corpus(folder))]


def test_a_missing_direction_is_augmented_in_training_and_fixed_in_validation(folder):
    mine = [row for row in rows(folder, varied=True) if row[0] == 2]
    assert [json.loads(line)["start"] for _, line, _ in mine] == [[1, 0, 0], [1, 0, 90], [1, 0, 180], [1, 0, 270]]
    assert [actions for *_, actions in mine] == ["left stop", "right right stop", "right stop", "stop"]
    [tested] = [row for row in rows(folder) if row[0] == 2]
    assert tested in mine


def test_mirrored_routes_end_at_the_mirrored_place(folder):
    found = rows(folder, varied=True, mirror=True)
    plain, mirror = found[0], found[1]
    assert mirror[2] == "left forward stop"
    there, walk = parse_navigation_input(plain[1], where="x"), parse_navigation_input(mirror[1], where="x")
    assert walk.instruction == "Turn left, and walk down" and walk.is_mirrored
    ends = [one.world.follow(one.start, text.split())[-1] for one, text in ((there, plain[2]), (walk, mirror[2]))]
    assert (ends[0].x, ends[0].y) == (-ends[1].x, ends[1].y) == (1, 1)


def test_the_key_knows_the_map(folder):
    before = hash_routes(corpus(folder))
    (folder / "t.xml").write_text(MAP.replace("chair", "sofa"))
    assert hash_routes(corpus(folder)) != before
    assert parse_navigation_input(rows(folder)[0][1], where="x").world.items[0, 0] == "sofa"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"instruction": 3}, r"routes.jsonl.gz:1 has no route; expected a text 'instruction'"),
        ({"path": []}, "has no route"),
        ({"path": [[1, 0, 45]]}, r"\[1, 0, 45\] is not a pose; .* a direction of 0, 90, 180, 270, -1"),
        ({"path": [[1, 0, 90], [1, 0, -1]]}, r"\[1, 0, -1\] is not a pose"),
        ({"path": [[1, 0, 90], [9, 0, 90]]}, "9, 0 is not a place of the map T; is it another map"),
        ({"path": [[0, 0, 90], [2, 0, 90]]}, "routes.jsonl.gz:1: no action leads from 0,0,90 to 2,0,90"),
    ],
)
def test_invalid_routes_are_refused(change, message, folder):
    write(folder, [{**LINES[0], **change}])
    with pytest.raises(SaccadeError, match=message):
        [*read_routes(corpus(folder))]


def test_a_map_that_is_not_there_is_reported(folder):
    write(folder, [{**LINES[0], "map": "other.xml"}])
    with pytest.raises(
        SaccadeError, match=r"the map 'other.xml' is not a file in the same folder; give the map before it"
    ):
        [*read_routes(corpus(folder, alone=True))]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("walk", "line 1: not valid JSON"),
        ("[1]", 'line 1 is not a JSON object; expected {"instruction"'),
        ('{"map": "a"}', "line 1 has no text under 'instruction', got None"),
        ('{"instruction": "a", "map": "embedded:worlds/0"}', "line 1: None is not a pose"),
        (
            '{"instruction": "a", "map": "embedded:worlds/0", "start": [0, 99, 0]}',
            "there is no pose 0,99,0 in the map",
        ),
        ('{"instruction": "a", "map": "none.xml", "start": [0, 0, 0]}', "none.xml not found"),
    ],
)
def test_lines_that_cannot_be_followed_are_refused(line, message):
    with pytest.raises(SaccadeError, match=message):
        parse_navigation_input(line, where="line 1")


def test_a_batch_has_the_graph_of_its_worlds(folder):
    files = ["data.valid=0.0", "train.metric=loss", f"data.train={[*corpus(folder).files]}"]
    recipe = load("listen-attend-walk", overrides=files)
    data = prepare(recipe, cache=folder / "cache", report=lambda _: None)
    assert len(data.train) == 2 * (1 + 4 + 1)  # mirrored too
    again = prepare(recipe, cache=folder / "cache", report=lambda _: None)  # from the cache
    batch, same = (collate_batch(found.train, np.array([0, 1, 11])) for found in (data, again))
    ground = batch["ground"]
    assert [x.tolist() for x in ground.tensors] == [x.tolist() for x in same["ground"].tensors]
    assert ground.transitions.shape == (32, data.tokenizers.target.size) and ground.observations.shape[0] == 32
    pose, ends = ground.start_poses[:, 0], []
    for row, ids in enumerate(batch["target"].ids):
        at = pose[row]
        for token in ids:
            at = ground.transitions[at, token]
        ends.append(int(at))
    world = parse_navigation_input(rows(folder)[0][1], where="x").world
    assert str(world.poses[ends[0]]) == "1,1,180"
    assert ends[1] == 16 + [str(pose) for pose in world.mirror_image.poses].index("-1,1,180")
    assert batch.counts["ground"] == 3
