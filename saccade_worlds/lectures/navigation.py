"""Check on navigation: the model of the recipe listen-attend-walk computes what its paper describes."""

from __future__ import annotations

from typing import Any

import torch

from saccade.config.load import load
from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.tokenizers import START, train_tokenizers
from saccade.lectures.claims import CheckResult, build_result, check, expect_equal, expect_near
from saccade.lectures.small import max_difference
from saccade.model.build.model import build
from saccade.model.readers.tokens import TokenReader
from saccade.model.writers.tokens import shift_right
from saccade_worlds.navigation.maps import Pose
from saccade_worlds.navigation.observations import build_observation_encoder
from saccade_worlds.navigation.route_store import Atlas
from saccade_worlds.navigation.routes import NavigationInput
from saccade_worlds.navigation.writer import ActionWriter

SMALL = ["reader.stack.dim=12", "writer.stack.dim=14"]
WALK = NavigationInput("turn left and walk to the chair", "embedded:worlds/0", Pose(3, 4, 0))
ACTIONS = "left forward right forward stop"


@check(
    31,
    "S3:406",
    "Listen, attend and walk (Mei et al. 2016) maps instructions to actions in a world.",
    formula=r"z_t = \sum_j \alpha_{tj} (x_j; h_j)",
    code=(TokenReader, ActionWriter),
)
@torch.no_grad()
def listen_attend_walk() -> CheckResult:
    torch.manual_seed(1)
    recipe = load("listen-attend-walk", overrides=SMALL)
    settings: Any = recipe.writer  # the table of kind "actions"
    tokenizers = train_tokenizers(recipe.tokenizer, lambda: [(WALK.instruction, ACTIONS)])
    model = build(recipe, source_size=tokenizers.source.size, target_size=tokenizers.target.size).double().eval()
    atlas = Atlas([WALK], encoder=build_observation_encoder(settings), target=tokenizers.target)
    source, target = pad([tokenizers.source.encode(WALK.instruction)]), pad([tokenizers.target.encode(ACTIONS)])
    ground = atlas.collate([atlas.get_pose_number(WALK)])
    ground = type(ground)(ground.start_poses, ground.mask, ground.transitions, ground.observations.double())
    memory = model.read(Batch({"source": source, "ground": ground}))
    words = model.reader.embedding(source.ids)
    states = model.reader.stack(words, source.mask)[0]
    seen = shift_right(target.ids, START)
    at_once = model.writer.head(model.writer(seen, target.mask, memory))
    state, steps = model.writer.start(memory, capacity=seen.shape[1]), []
    for token in seen.unbind(1):
        step = model.writer.step(token[:, None], state, align=True)
        state = step.state
        steps.append(step)
    stepwise = torch.cat([s.logits for s in steps])
    possible = stepwise.isfinite()  # actions without a wall in the way
    end = WALK.world.poses[int(state.navigation.poses)]
    elsewhere = memory.attached.with_poses((memory.attached.poses + 1) % len(ground.transitions))
    other = model.writer.head(model.writer(seen, target.mask, type(memory)(**{**vars(memory), "attached": elsewhere})))
    return build_result(
        expect_near(
            "attended vectors: difference from (h_j; x_j)",
            max_difference(memory.states, torch.cat((states, words), -1)),
            0,
            within=0.0,
        ),
        expect_near(
            "logits: difference of parallel and step-by-step computation, for possible actions",
            max_difference(at_once[0][possible], stepwise[possible]),
            0,
            within=1e-9,
        ),
        expect_equal("final pose after the actions", str(end), str(WALK.world.follow(WALK.start, ACTIONS.split())[-1])),
        expect_equal("logits change with the starting pose", bool(max_difference(at_once, other) > 1e-3), True),
        note="`saccade train listen-attend-walk --tiny` learns to navigate in unseen worlds in two minutes.",
    )
