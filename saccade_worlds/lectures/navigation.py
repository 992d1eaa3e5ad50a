"""Check on navigation: the model of the recipe listen-attend-walk computes what its paper describes."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from saccade.config.load import load
from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.tokenizers import train_tokenizers
from saccade.lectures.claims import CheckResult, Comparison, build_result, check, expect_equal, expect_near
from saccade.lectures.references.basics import apply_linear, embed_tokens, shift_targets
from saccade.lectures.references.recurrent import Step, average, run_recurrent_layer, write_with_attention
from saccade.lectures.small import max_difference, randomize_parameters
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.model.readers.tokens import TokenReader
from saccade_worlds.navigation.maps import Pose
from saccade_worlds.navigation.observations import ObservationEncoder, build_observation_encoder
from saccade_worlds.navigation.poses import NavigationGraph
from saccade_worlds.navigation.route_store import Atlas
from saccade_worlds.navigation.routes import NavigationInput
from saccade_worlds.navigation.writer import ActionWriter

SMALL = [
    "reader.stack.dim=12", "writer.stack.dim=14", "reader.dropout=0", "writer.dropout=0", "writer.input_dropout=0",
    "reader.stack.dropout=0", "writer.stack.dropout=0",
]  # fmt: skip
WALKS = [
    NavigationInput("turn left and walk to the chair", "embedded:worlds/0", Pose(3, 4, 0)),
    NavigationInput("walk on", "embedded:worlds/1", Pose(2, 4, 90)),
]
ACTIONS = ["left forward right forward stop", "forward left forward stop"]


class Walked(NamedTuple):
    """A small model with two instructions, and the actions that they ask for."""

    model: Model
    encoder: ObservationEncoder
    target: Any  # tokenizer of actions
    source: Any  # batch fields
    actions: Any
    ground: NavigationGraph
    predictor: Any


def prepare_walks() -> Walked:
    recipe = load("listen-attend-walk", overrides=SMALL)
    settings: Any = recipe.writer  # the table of kind "actions"
    tokenizers = train_tokenizers(
        recipe.tokenizer, lambda: [(walk.instruction, actions) for walk, actions in zip(WALKS, ACTIONS, strict=True)]
    )
    model = build(recipe, source_size=tokenizers.source.size, target_size=tokenizers.target.size)
    model, encoder = randomize_parameters(model.eval(), scale=0.5), build_observation_encoder(settings)
    predictor = recipe.task.get_predictor(recipe)(copy.deepcopy(model), recipe=recipe, tokenizers=tokenizers)
    atlas = Atlas(WALKS, encoder=encoder, target=tokenizers.target)
    found = atlas.collate([atlas.get_pose_number(walk) for walk in WALKS])
    ground = NavigationGraph(found.start_poses, found.mask, found.transitions, found.observations.double())
    source = pad([tokenizers.source.encode(walk.instruction) for walk in WALKS])
    actions = pad([tokenizers.target.encode(line) for line in ACTIONS])
    return Walked(model.double(), encoder, tokenizers.target, source, actions, ground, predictor)


@check(
    31,
    "S3:406",
    "Listen, attend and walk (Mei et al. 2016) maps instructions to actions in a world.",
    formula=r"z_t = \sum_j \alpha_{tj} (x_j; h_j)",
    code=(TokenReader, ActionWriter),
    recipes=("listen-attend-walk",),
    breaks=(
        "uniform-attention",
        "aligner-without-words",
        "aligner-without-states",
        "pose-never-changes",
        "agent-is-blind",
        "walls-do-not-block",
        "unmasked-attention",
    ),
)
@torch.no_grad()
def listen_attend_walk() -> CheckResult:
    walked = prepare_walks()
    model, actions = walked.model, walked.actions
    memory = model.read(Batch({"source": walked.source, "ground": walked.ground}))
    levels = read_by_hand(model, walked.source.ids, walked.source.mask)
    inputs = shift_targets(actions.ids)
    hidden, aux = model.write(inputs, actions.mask, memory)
    expected = write_by_hand(walked, inputs, levels)
    logits = apply_linear(model.writer.output, expected.outputs)
    lines = [json.dumps({"instruction": walk.instruction, "map": walk.map, "start": [*walk.start]}) for walk in WALKS]
    scores = torch.tensor(walked.predictor.score([*zip(lines, ACTIONS, strict=True)]), dtype=torch.float64)
    chosen = logits.log_softmax(-1).gather(-1, actions.ids[..., None])[..., 0] * actions.mask
    real = walked.source.mask[..., None]
    return build_result(
        expect_near(
            "attended vectors: difference from (h_j; x_j), a BLSTM and its inputs",
            max_difference(memory.states * real, levels * real),
            0,
            within=1e-11,
        ),
        expect_near(
            "weights of the aligner: difference from the formula",
            max_difference(aux["attention"].weights, expected.weights),
            0,
            within=1e-11,
        ),
        expect_near(
            "logits of the actions, each after what is seen at its pose: difference from the formulas",
            max_difference(model.writer.head(hidden)[actions.mask], logits[actions.mask]),
            0,
            within=1e-10,
        ),
        expect_near(
            "log-probabilities of both routes by the predictor: difference from the formulas",
            max_difference(scores, chosen.sum(1)),
            0,
            within=1e-4,
        ),
        expect_equal("observations in which free ways and items agree with the map", *count_true_observations(walked)),
        *compare_steps(walked, memory, inputs, logits),
        note="`saccade train listen-attend-walk --tiny` learns to navigate in unseen worlds in two minutes.",
    )


def read_by_hand(model: Model, ids: Tensor, mask: Tensor) -> Tensor:
    """(h_j; x_j) of each word: the states of a bidirectional LSTM, and the embedded words."""
    [layer] = model.reader.stack.layers
    x = embed_tokens(model.reader.embedding, ids)
    rows = []
    for row, real in zip(x, mask, strict=True):
        states = run_recurrent_layer("lstm", layer, row[real], "both")[0]
        rows.append(torch.nn.functional.pad(torch.cat((states, row[real]), -1), (0, 0, 0, len(row) - len(states))))
    return torch.stack(rows)


def move_by_hand(walk: NavigationInput, pose: Pose, action: str) -> Pose:
    """The pose after an action: turns by 90 degrees, or one step ahead where the map has an edge."""
    x, y, direction = pose
    if action != "forward":
        return Pose(x, y, (direction + {"left": -90, "right": 90}.get(action, 0)) % 360)
    step = {0: (0, -1), 90: (1, 0), 180: (0, 1), 270: (-1, 0)}[direction]  # up, right, down, left
    ahead = (x + step[0], y + step[1])
    return Pose(*ahead, direction) if ((x, y), ahead) in walk.world.edges else pose


def list_poses(walk: NavigationInput, actions: Sequence[str]) -> list[Pose]:
    """The pose at each step: at the start, and after each action so far."""
    poses = [walk.start]
    for action in actions:
        poses.append(move_by_hand(walk, poses[-1], action))
    return poses


def write_by_hand(walked: Walked, inputs: Tensor, levels: Tensor) -> Step:
    """The writer's formulas; the input of each step is the last action plus what is seen after it."""
    writer, mask = walked.model.writer, walked.source.mask
    x = embed_tokens(writer.embedding, inputs)
    for row, (walk, line) in enumerate(zip(WALKS, ACTIONS, strict=True)):
        views = torch.from_numpy(walked.encoder.encode_world(walk.world)).double()
        numbers = [walk.world.pose_numbers[pose] for pose in list_poses(walk, line.split())]
        x[row, : len(numbers)] += apply_linear(writer.see, views[numbers])
    return write_with_attention("lstm", writer.stack, x, levels, mask, summary=average(levels, mask))


def count_true_observations(walked: Walked) -> tuple[int, int]:
    """Poses of both maps whose features name the item there and the directions without a wall, and all poses."""
    encoder, right = walked.encoder, 0
    start, width = len(encoder.items) + 1, encoder.features_per_direction
    poses = [(walk, pose) for walk in WALKS for pose in walk.world.poses]
    for (walk, pose), features in zip(poses, walked.ground.observations.tolist(), strict=True):
        turned = [Pose(pose.x, pose.y, (pose.direction + side) % 360) for side in (0, 90, 180, 270)]
        moves = [move_by_hand(walk, one, "forward") != one for one in turned]
        items = [name == walk.world.items[pose.x, pose.y] for name in encoder.items]
        right += [features[start + i * width] for i in range(4)] == moves and features[: len(items)] == items
    return right, len(poses)


def compare_steps(walked: Walked, memory: Any, inputs: Tensor, logits: Tensor) -> list[Comparison]:
    """Decode step by step: logits as for whole sequences, actions into a wall impossible, the pose that is reached."""
    writer, names = walked.model.writer, {name: walked.target.encode(name)[0] for name in ("forward", "left", "right")}
    state, missed, wrong = writer.start(memory, capacity=inputs.shape[1]), 0.0, 0
    for t, token in enumerate(inputs.unbind(1)):
        step = writer.step(token[:, None], state)
        state = step.state
        for row, (walk, line) in enumerate(zip(WALKS, ACTIONS, strict=True)):
            if t < len(line.split()) + 1:
                pose = list_poses(walk, line.split())[t]
                blocked = {i for name, i in names.items() if move_by_hand(walk, pose, name) == pose}
                possible = step.logits[row].isfinite()
                wrong += {*(~possible).nonzero()[:, 0].tolist()} != blocked
                missed = max(missed, max_difference(step.logits[row][possible], logits[row, t][possible]))
    numbers = (state.navigation.poses - torch.tensor([0, len(WALKS[0].world.poses)])).tolist()
    ends = [walk.world.poses[number] for walk, number in zip(WALKS, numbers, strict=True)]
    expected = [list_poses(walk, line.split())[-1] for walk, line in zip(WALKS, ACTIONS, strict=True)]
    return [
        expect_near("logits of possible actions, step by step: difference from the formulas", missed, 0, within=1e-10),
        expect_equal("steps at which other actions are impossible than those into a wall", wrong, 0),
        expect_equal("final poses of both routes", "; ".join(map(str, ends)), "; ".join(map(str, expected))),
    ]
