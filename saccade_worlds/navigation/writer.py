"""The writer of actions: each step also gets the observation after the actions so far (Mei et al. 2016)."""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.config.protocols import Capabilities, PositionedState, Stack
from saccade.data.batching.batch import Batch
from saccade.kernels.cpu.prepared import CpuLayout
from saccade.layers.auxiliary import Aux
from saccade.layers.dropout import Dropout
from saccade.layers.memory import Memory
from saccade.layers.packing import Packing
from saccade.model.build.model import WriterContext, build_token_model
from saccade.model.model import Model
from saccade.model.readers.tokens import Embedding
from saccade.model.writers.tokens import Step, TokenWriter
from saccade_worlds import tables
from saccade_worlds.navigation.observations import build_observation_encoder
from saccade_worlds.navigation.poses import Navigation, NavigationGraph


class ActionState(NamedTuple):
    """Decoding state of the stack, and the agent's pose in each row."""

    inner: Any
    navigation: Navigation

    @property
    def lengths(self) -> Int[Tensor, " B"]:
        lengths: Tensor = self.inner.lengths
        return lengths

    def reorder(self, indices: Int[Tensor, " C"]) -> "ActionState":
        return ActionState(self.inner.reorder(indices), self.navigation.reorder(indices))


class ActionWriter(TokenWriter):
    """A token writer whose tokens are actions of an agent; the observation after each is added to its embedding."""

    cpu_layout = CpuLayout()

    def __init__(
        self,
        embedding: Embedding,
        stack: Stack,
        *,
        output: nn.Module,
        output_scale: float = 1.0,
        observation_size: int,
        observation_dropout: float = 0.0,
    ) -> None:
        """`observation_size` is the number of features of an observation; `observation_dropout` applies to them."""
        super().__init__(embedding, stack, output=output, output_scale=output_scale)
        self.see, self.blind = nn.Linear(observation_size, embedding.tokens.embedding_dim), Dropout(observation_dropout)

    @property
    def capabilities(self) -> Capabilities:
        """No fast path: the observations of each row depend on its actions."""
        return Capabilities(linear_head=True, aux=True, attaches=True)

    def attach(self, memory: Memory, batch: Batch) -> Memory:
        """Add the worlds of the batch, and the pose in which each row starts, to the memory."""
        ground: NavigationGraph = batch["ground"]
        navigation = Navigation(ground.start_poses[:, 0], ground.transitions, ground.observations)
        return replace(memory, attached=navigation)

    def write(
        self, ids: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"] | Packing | None, memory: Memory | None
    ) -> tuple[Float[Tensor, "B T D"], Aux]:
        navigation = get_navigation(memory)
        hidden, _, _, aux = self.stack(self._embed(ids, None, navigation, navigation.follow_actions(ids)), mask, memory)
        return hidden, aux

    def start(self, memory: Memory | None, *, capacity: int, rows: int = 0) -> ActionState:
        return ActionState(super().start(memory, capacity=capacity, rows=rows), get_navigation(memory))

    def step(self, inputs: Int[Tensor, "B n"], state: PositionedState, *, align: bool = False) -> Step:
        """Decode as any token writer, with the logits of impossible actions (into a wall) at -inf."""
        step = super().step(inputs, state, align=align)
        navigation = cast(ActionState, step.state).navigation
        return step._replace(logits=step.logits.masked_fill(navigation.get_blocked_actions(), -torch.inf))

    def _advance(self, inputs: Tensor, state: PositionedState) -> tuple[Tensor, ActionState]:
        state = cast(ActionState, state)
        poses = state.navigation.follow_actions(inputs)
        x = self._embed(inputs, self._get_positions(inputs, state.inner), state.navigation, poses)
        hidden, _, inner, _ = self.stack(x, None, None, state.inner)
        return hidden, ActionState(inner, state.navigation.with_poses(poses[:, -1]))

    def _embed(
        self, ids: Tensor, positions: Tensor | None, navigation: Navigation, poses: Int[Tensor, "B T"]
    ) -> Tensor:
        return self.embedding(ids, positions) + self.see(self.blind(navigation.observations[poses]))


def get_navigation(memory: Memory | None) -> Navigation:
    assert memory is not None and isinstance(memory.attached, Navigation), "`attach` adds it"
    return memory.attached


def build_action_model(table: tables.ActionWriter, context: WriterContext) -> Model:
    size = build_observation_encoder(table).num_features
    make_writer = partial(ActionWriter, observation_size=size, observation_dropout=table.input_dropout)
    return build_token_model(table, context, make_writer)
