"""A deliberately broken set encoder that depends on the order."""

from dataclasses import replace

from broken_registry import breaks

from saccade.model.writers.labels import LabelWriter


@breaks(104)
def the_first_stands_for_all(patch):
    whole = LabelWriter.forward

    def forward(self, memory):
        return whole(self, replace(memory, states=memory.states[:, :1], mask=memory.mask[:, :1]))

    patch.setattr(LabelWriter, "forward", forward)
