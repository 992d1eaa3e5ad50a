"""Deliberately broken blocks for pictures."""

import torch
from broken_registry import breaks, puts

from saccade.layers.vision import joining
from saccade.layers.vision.grid_attention import GridAttention
from saccade.model.readers.media import PictureReader
from saccade.model.writers import patches as patch_writer


@breaks(66)
def a_gate_that_is_open_from_the_beginning(patch):
    whole = GridAttention.__init__

    def opened(self, channels, *, positions_per_state=1):
        whole(self, channels, positions_per_state=positions_per_state)
        torch.nn.init.ones_(self.gamma)

    patch.setattr(GridAttention, "__init__", opened)


@breaks(105)
def positions_that_nobody_adds(patch):
    whole = PictureReader.forward

    def without(self, pictures, mask):
        positions, self.positions = self.positions, None
        try:
            return whole(self, pictures, mask)
        finally:
            self.positions = positions

    patch.setattr(PictureReader, "forward", without)


@breaks(106)
def hidden_patches_that_are_seen(patch):
    patch.setattr(patch_writer, "paint_patches", lambda pictures, hidden, patch: pictures)


puts(29, owner=joining, normalize_cells=lambda states: states)  # a bright cell attracts attention because it is bright
