"""Breaks of readers of pictures and sound, and of the systems built on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from saccade.breaks.attention import change_weights
from saccade.breaks.patching import Patch
from saccade.breaks.registry import break_code
from saccade.data.synthetic import molecules
from saccade.layers.attention.alignment import NeighborhoodAttention
from saccade.layers.attention.positions import Learned
from saccade.layers.audio import downsampling
from saccade.layers.blocks import recurrent
from saccade.layers.memory import Memory
from saccade.layers.record import is_recording, record_weights
from saccade.layers.vision import joining, patches
from saccade.layers.vision.grid_attention import GridAttention
from saccade.layers.vision.patches import PatchEmbedding, ResNetCells
from saccade.model.readers.media import FrameReader, PictureReader
from saccade.model.writers import labels
from saccade.model.writers.patches import compute_patch_errors
from saccade.train.objectives import terms

# ---- pictures


@break_code("picture-ignored", "Readers of pictures read a grey picture whatever they are given.")
def ignore_pictures(patch: Patch) -> None:
    def forward(original: Any, self: PictureReader, pictures: Tensor, mask: Tensor) -> Memory:
        found: Memory = original(self, torch.full_like(pictures, 128), mask)
        return found

    patch.replace(PictureReader.forward, forward)


@break_code("grid-in-column-order", "The cells of a feature map are listed column by column.")
def list_columns_first(patch: Patch) -> None:
    def forward(original: Any, self: ResNetCells, pictures: Tensor) -> Tensor:
        cells: Tensor = original(self, pictures)
        high = next(n for n in range(int(cells.shape[1] ** 0.5), 0, -1) if cells.shape[1] % n == 0)
        return cells.unflatten(1, (high, -1)).transpose(1, 2).flatten(1, 2)

    patch.replace(ResNetCells.forward, forward)


@break_code("cells-without-positions", "Readers of pictures add no positions.")
def leave_out_positions(patch: Patch) -> None:
    def forward(original: Any, self: PictureReader, pictures: Tensor, mask: Tensor) -> Memory:
        positions, self.positions = self.positions, None
        try:
            found: Memory = original(self, pictures, mask)
        finally:
            self.positions = positions
        return found

    patch.replace(PictureReader.forward, forward)


@break_code("columns-left-out", "The LSTM over the columns of a picture reads zeros.")
def leave_out_columns(patch: Patch) -> None:
    def forward(original: Any, self: PictureReader, pictures: Tensor, mask: Tensor) -> Memory:
        memory: Memory = original(self, pictures, mask)
        if self.columns is None:
            return memory
        columns = torch.zeros_like(memory.states.unflatten(1, self.grid)[:, 0])
        return replace(memory, final=self.columns(columns, None)[2])

    patch.replace(PictureReader.forward, forward)


# ---- attention


@break_code("softmax-over-halves", "The softmax of attention normalizes each half of the keys to a sum of 1/2.")
def normalize_halves(patch: Patch) -> None:
    def compute(values: Tensor, mask: Tensor | None) -> Tensor:
        values = values if mask is None else values.masked_fill(~mask, -1e30)
        half = values.shape[-1] // 2
        return torch.cat((values[..., :half].softmax(-1), values[..., half:].softmax(-1)), -1) / 2

    change_weights(patch, compute)


@break_code("attention-without-neighbours", "Keys of show-attend-read leave out the neighbouring cells.")
def leave_out_neighbours(patch: Patch) -> None:
    patch.replace(NeighborhoodAttention.build_neighbor_mask, lambda original, self: torch.zeros_like(original(self)))


@break_code("neighbours-with-the-center", "Keys of show-attend-read count a cell among its own neighbours.")
def include_center(patch: Patch) -> None:
    patch.replace(NeighborhoodAttention.build_neighbor_mask, lambda original, self: torch.ones_like(original(self)))


@break_code("class-token-left-out", "The class token of a picture is zero.")
def leave_out_class_token(patch: Patch) -> None:
    def forward(original: Any, self: PictureReader, pictures: Tensor, mask: Tensor) -> Memory:
        first = self.first
        if first is None:
            return original(self, pictures, mask)
        self.first = torch.nn.Parameter(torch.zeros_like(first))
        try:
            found: Memory = original(self, pictures, mask)
        finally:
            self.first = first
        return found

    patch.replace(PictureReader.forward, forward)


@break_code("class-token-not-read", "A class is predicted from the last state in place of the first.")
def read_last_state(patch: Patch) -> None:
    def pool(original: Any, memory: Memory, pooling: str) -> Tensor:
        states: Tensor = original(memory, "last" if pooling == "first" else pooling)
        return states

    patch.replace(labels.pool_states, pool)


@break_code("patches-in-column-order", "The patches of a picture are embedded column by column.")
def embed_columns_first(patch: Patch) -> None:
    def forward(original: Any, self: PatchEmbedding, pictures: Tensor) -> Tensor:
        cells: Tensor = original(self, pictures)
        wide = pictures.shape[-1] // self.patch
        return cells.unflatten(1, (-1, wide)).transpose(1, 2).flatten(1, 2)

    patch.replace(PatchEmbedding.forward, forward)


@break_code("patches-transposed", "The pixels of each patch are read column by column.")
def transpose_patches(patch: Patch) -> None:
    def forward(original: Any, self: PatchEmbedding, pictures: Tensor) -> Tensor:
        size = self.patch
        blocks = pictures.unflatten(3, (-1, size)).unflatten(2, (-1, size))
        turned = blocks.transpose(3, 5).flatten(4, 5).flatten(2, 3)
        cells: Tensor = original(self, turned)
        return cells

    patch.replace(PatchEmbedding.forward, forward)


@break_code("grid-attention-open-at-first", "The gate of self-attention inside a CNN begins at 1 in place of 0.")
def open_grid_attention(patch: Patch) -> None:
    def create(original: Any, self: GridAttention, *args: Any, **settings: Any) -> None:
        original(self, *args, **settings)
        torch.nn.init.ones_(self.gamma)

    patch.replace(GridAttention.__init__, create)


@break_code("grid-attention-without-residual", "Self-attention inside a CNN returns what it attends to alone.")
def leave_out_grid_residual(patch: Patch) -> None:
    patch.replace(GridAttention.forward, lambda original, self, x: original(self, x) - x)


@break_code("grid-attention-scaled", "Self-attention inside a CNN divides its scores by 2.")
def scale_grid_attention(patch: Patch) -> None:
    def forward(original: Any, self: GridAttention, x: Tensor) -> Tensor:
        with self.query.register_forward_hook(lambda module, given, query: query / 2):
            y: Tensor = original(self, x)
        return y

    patch.replace(GridAttention.forward, forward)


# ---- sound


@break_code("sound-ignored", "Readers of sound read silence whatever they are given.")
def ignore_sound(patch: Patch) -> None:
    patch.replace(
        FrameReader.forward, lambda original, self, frames, mask: original(self, torch.zeros_like(frames), mask)
    )


@break_code("pyramid-drops-frames", "Pyramidal layers drop every second state in place of concatenating pairs.")
def drop_frames(patch: Patch) -> None:
    def concat(original: Any, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        pairs, halved = original(x, mask)
        first = pairs[..., : x.shape[-1]]
        return torch.cat((first, first), -1), halved

    patch.replace(downsampling.concat_pairs, concat)


@break_code("backward-over-padding", "The backward direction of a recurrent layer begins with the padding.")
def begin_with_padding(patch: Patch) -> None:
    patch.replace(recurrent.reverse_sequences, lambda original, x, lengths: x.flip(1))


# ---- questions about pictures


@break_code("second-hop-left-out", "Multi-hop attention stops after its first hop.")
def stop_after_first_hop(patch: Patch) -> None:
    def forward(original: Any, self: joining.Hops, picture: Memory, question: Memory) -> Memory:
        cells = joining.normalize_cells(picture.states)
        weights = self.attend_by_words(cells, picture.padding, question)
        state = self.question(joining.summarize_question(question)) + (weights @ self.evidence[0](cells))[:, 0]
        if is_recording():
            record_weights(self, weights[:, None])
        return joining.to_single_state(state.relu())

    patch.replace(joining.Hops.forward, forward)


@break_code("words-averaged", "The first hop scores a cell by the mean of all words in place of the best one.")
def average_words(patch: Patch) -> None:
    def attend(original: Any, self: joining.Hops, cells: Tensor, mask: Tensor, question: Memory) -> Tensor:
        real = question.padding[..., None]
        inputs: Any = question.inputs
        mean = ((inputs * real).sum(1, keepdim=True) / real.sum(1, keepdim=True)).expand_as(inputs)
        weights: Tensor = original(self, cells, mask, replace(question, inputs=mean))
        return weights

    patch.replace(joining.Hops.attend_by_words, attend)


@break_code("one-glimpse", "All glimpses of a question have the attention weights of the first one.")
def repeat_glimpse(patch: Patch) -> None:
    def forward(original: Any, self: joining.Glimpses, picture: Memory, question: Memory) -> Memory:
        weight = self.energy.weight
        before = weight.detach().clone()
        with torch.no_grad():
            weight.copy_(before[:1].expand_as(before))
            found: Memory = original(self, picture, question)
            weight.copy_(before)
        return found

    patch.replace(joining.Glimpses.forward, forward)


@break_code("question-ignored", "The summary of a question is zero, whatever is asked.")
def ignore_question(patch: Patch) -> None:
    patch.replace(joining.summarize_question, lambda original, question: 0 * original(question))


@break_code("cells-not-normalized", "Bright cells of a picture attract the attention of a question.")
def keep_norms(patch: Patch) -> None:
    patch.replace(joining.normalize_cells, lambda original, states: states)


# ---- sets, sessions and molecules


@break_code("set-of-one-element", "The mean of the states of a sequence is that of its first element alone.")
def pool_first_element(patch: Patch) -> None:
    def pool(original: Any, memory: Memory, pooling: str) -> Tensor:
        states: Tensor = original(memory, "first" if pooling == "mean" else pooling)
        return states

    patch.replace(labels.pool_states, pool)


@break_code("items-without-positions", "Learned positions of sequences are all the same.")
def repeat_position(patch: Patch) -> None:
    patch.replace(Learned.forward, lambda original, self, positions: original(self, 0 * positions))


@break_code("molecules-always-valid", "Every text passes as a valid molecule.")
def accept_molecules(patch: Patch) -> None:
    patch.replace(molecules.find_smiles_error, lambda original, text: "")


# ---- objectives


@break_code("masked-patches-visible", "Masked patches of a picture stay visible.")
def show_masked_patches(patch: Patch) -> None:
    patch.replace(patches.paint_patches, lambda original, pictures, hidden, *, patch: pictures.float())


@break_code("loss-of-all-patches", "The loss of masked image modelling counts visible patches too.")
def count_all_patches(patch: Patch) -> None:
    def compute(original: Any, *args: Any, **settings: Any) -> Any:
        errors = original(*args, **settings)
        return errors._replace(is_masked=torch.ones_like(errors.is_masked))

    patch.replace(compute_patch_errors, compute)


@break_code("consistency-left-out", "R-Drop learns from the cross-entropy of both passes alone.")
def leave_out_consistency(patch: Patch) -> None:
    def compute(original: Any, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
        smoothed, nll, divergence = original(*args[:-1], 0.0)
        return smoothed, nll, 0 * divergence

    patch.replace(terms.compute_r_drop_losses, compute)


@break_code("one-dropout-pass", "R-Drop compares a pass with itself.")
def compare_with_itself(patch: Patch) -> None:
    def compute(original: Any, head: Any, hidden: Tensor, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
        first = hidden[: len(hidden) // 2]
        found: tuple[Tensor, Tensor, Tensor] = original(head, torch.cat((first, first)), *args)
        return found

    patch.replace(terms.compute_r_drop_losses, compute)
