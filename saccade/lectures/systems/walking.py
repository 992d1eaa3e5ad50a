"""The row about walking: what the recipe listen-attend-walk builds does what its paper writes."""

from __future__ import annotations

import torch

from saccade.config.load import load
from saccade.config.schema import ActionWriter as Settings
from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.tokenizers import START, train_tokenizers
from saccade.data.worlds.maps import Pose
from saccade.data.worlds.route_store import Atlas
from saccade.data.worlds.routes import Walk
from saccade.data.worlds.sights import eye_of
from saccade.lectures.claims import Measured, check, measured, near, same
from saccade.lectures.small import apart
from saccade.model.build.model import build
from saccade.model.readers.tokens import TokenReader
from saccade.model.writers.actions import ActionWriter
from saccade.model.writers.tokens import shift_right

SMALL = ["reader.stack.dim=12", "writer.stack.dim=14"]
WALK = Walk("turn left and walk to the chair", "embedded:worlds/0", Pose(3, 4, 0))
ACTIONS = "left forward right forward stop"


@check(
    31,
    "S3:406",
    "Listen, attend, and walk (Mei et al. 2016): from instructions to moves.",
    formula=r"z_t = \sum_j \alpha_{tj} (x_j; h_j)",
    code=(TokenReader, ActionWriter),
)
@torch.no_grad()
def listen_attend_walk() -> Measured:
    torch.manual_seed(1)
    recipe = load("listen-attend-walk", overrides=SMALL)
    assert isinstance(recipe.writer, Settings), "it walks"
    tokenizers = train_tokenizers(recipe.tokenizer, lambda: [(WALK.instruction, ACTIONS)])
    model = build(recipe, source_size=tokenizers.source.size, target_size=tokenizers.target.size).double().eval()
    atlas = Atlas([WALK], eye=eye_of(recipe.writer), target=tokenizers.target)
    source, target = pad([tokenizers.source.encode(WALK.instruction)]), pad([tokenizers.target.encode(ACTIONS)])
    ground = atlas.field([atlas.number(WALK)])
    ground = type(ground)(ground.start, ground.mask, ground.moves, ground.sights.double())
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
    told = torch.cat([s.logits for s in steps])
    open_ = told.isfinite()  # no wall stands there
    end = WALK.world.poses[int(state.walking.poses)]
    elsewhere = memory.walking.at((memory.walking.poses + 1) % len(ground.moves))
    other = model.writer.head(model.writer(seen, target.mask, type(memory)(**{**vars(memory), "walking": elsewhere})))
    return measured(
        near(
            "what is looked at, against (h_j; x_j)", apart(memory.states, torch.cat((states, words), -1)), 0, within=0.0
        ),
        near(
            "logits at once against step by step, where there is no wall",
            apart(at_once[0][open_], told[open_]),
            0,
            within=1e-9,
        ),
        same("where the actions end", str(end), str(WALK.world.walked(WALK.start, ACTIONS.split())[-1])),
        same("other actions likely from another place", bool(apart(at_once, other) > 1e-3), True),
        note="`saccade train listen-attend-walk --tiny` learns to walk in worlds that it never saw, in two minutes.",
    )
