"""Deliberately broken picture readers, attention and pages."""

from dataclasses import replace

import numpy as np
from broken_registry import breaks, puts

from saccade.layers.attention.alignment import NeighborhoodAttention
from saccade.layers.blocks.recurrent_writer import InitialState
from saccade.model.readers.media import PictureReader
from saccade.view.background import Background
from saccade.view.viewing import View

puts(25, owner=InitialState, summarize=lambda self, memory: memory.states.amax(1))
puts(33, owner=NeighborhoodAttention, project_keys=lambda self, memory: self.score.key(memory.states))


@breaks(26)
def cells_from_top_to_bottom(patch):
    def cells(self, weights):
        return np.asarray(weights).reshape(-1, *self.grid[::-1]).transpose(0, 2, 1)

    patch.setattr(Background, "to_grid", cells)


@breaks(27)
def words_from_behind(patch):
    whole = View.data

    def data(self):
        turned = [replace(entry, weights=entry.weights[:, ::-1]) for entry in self.maps]
        return whole(replace(self, maps=turned))

    patch.setattr(View, "data", data)


@breaks(28)
def every_second_cell(patch):
    whole = PictureReader.forward

    def forward(self, pictures, mask):
        memory = whole(self, pictures, mask)
        return replace(memory, states=memory.states[:, ::2], mask=memory.mask[:, ::2])

    patch.setattr(PictureReader, "forward", forward)
