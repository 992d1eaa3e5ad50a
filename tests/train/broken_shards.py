"""Faults of the gradients and graphs of sharded models, each of which keeps shapes and finite values."""

from types import SimpleNamespace

import torch
import torch.distributed as dist

from saccade.train import capture, loop
from saccade.train.distributed import gradients
from saccade.train.distributed.gradients import GradientBuckets


def swap_places(patch):
    """The gradients of two parameters of one shape are added at each other's place."""

    def swapped(original, self, module):
        original(self, module)
        for place, one in enumerate(self.gradients):
            for later in range(place + 1, len(self.gradients)):
                other = self.gradients[later]
                if one.local.shape == other.local.shape:
                    self.gradients[place], self.gradients[later] = (
                        one._replace(local=other.local), other._replace(local=one.local)
                    )  # fmt: skip
                    return

    patch.replace(GradientBuckets.__init__, swapped)


def keep_gradients(patch):
    """Gradients of the step before are not set to 0."""
    patch.replace(GradientBuckets.zero, lambda original, self: self.attach())


def forget_a_micro_batch(patch):
    """Each micro-batch replaces the gradients of those before it."""

    def overwrite(sums, new):
        for one, other in zip(sums, new, strict=True):
            one.copy_(other)

    patch.set(gradients, "torch", SimpleNamespace(**{**vars(torch), "_foreach_add_": overwrite}))


def count_a_micro_batch_twice(patch):
    patch.replace(loop.compute_passes, lambda original, s, batch: original(s, batch) and original(s, batch))


def clip_by_the_norm_of_one_process(patch):
    patch.set(gradients, "dist", SimpleNamespace(all_reduce=lambda *arguments, **settings: None))


def keep_own_gradients(patch):
    """A process takes its part of its own gradients for the sum of those of all."""

    def take_part(output, input, op=None, group=None, async_op=False):  # its name in torch
        output.copy_(input.view(dist.get_world_size(group), -1)[dist.get_rank(group)].view_as(output))
        return SimpleNamespace(wait=lambda: None) if async_op else None

    new = "reduce_scatter_single"  # with torch 2.13
    patch.set(dist, new if hasattr(dist, new) else "reduce_scatter_tensor", take_part)


def replay_the_first_batch(patch):
    """A graph computes the loss of the batch with which it was captured."""
    patch.set(capture, "get_tensors", lambda batch: [])


def replay_the_first_scale(patch):
    """The graph of the update divides by the number of tokens of the step in which it was captured."""

    def keep_scale(original, self, scale):
        original(self, scale if self.recording is None else self.scale.clone())

    patch.replace(capture.UpdateGraph.__call__, keep_scale)


FAULTS = {
    fault.__name__: fault
    for fault in (
        swap_places, keep_gradients, forget_a_micro_batch, count_a_micro_batch_twice, clip_by_the_norm_of_one_process,
        keep_own_gradients, replay_the_first_batch, replay_the_first_scale,
    )
}  # fmt: skip
