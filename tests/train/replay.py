"""CUDA graphs on the CPU: a recorder that logs operators instead of launching them, and runs them again when replayed.

As on a GPU, recording changes nothing, a replay runs no Python, reads and writes the same memory, and takes random
numbers from the generators as they are then; reading a value on the host fails. Collective operations and the memory
that FSDP2 frees and allocates are part of a recording.
"""

import contextlib
import functools
from unittest import mock

import torch
from torch.distributed import Work
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from saccade.layers.losses import cross_entropy
from saccade.train import assemble, loop
from saccade.train.batches import layout
from saccade.train.batches.pack import pack_batch
from saccade.train.capture import Recording
from saccade.train.distributed.parts import get_local


class OperatorLog(TorchDispatchMode):
    """Logs operators and their outputs, and the earlier values of what they change."""

    def __init__(self):
        super().__init__()
        self.calls, self.changed = [], {}

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        assert operator is not torch.ops.aten._local_scalar_dense.default, "a CUDA graph cannot wait for a value"
        kwargs = kwargs or {}
        for argument, value in zip(operator._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for tensor in tree_leaves(value):
                    self.changed.setdefault(id(tensor), (tensor, tensor.clone()))
        outputs = operator(*args, **kwargs)
        self.calls.append((operator, args, kwargs, outputs))
        return outputs

    def __enter__(self):
        resize, wait = torch.UntypedStorage.resize_, Work.wait

        def log_resize(storage, size):
            self.calls.append((resize, (storage, size), {}, None))
            return resize(storage, size)

        def wait_unlogged(work, *arguments):  # gloo may copy its result now, and again after a replay
            with _disable_current_modes():
                return wait(work, *arguments)

        self.patches = contextlib.ExitStack()
        self.patches.enter_context(mock.patch.object(torch.UntypedStorage, "resize_", log_resize))
        self.patches.enter_context(mock.patch.object(Work, "wait", wait_unlogged))
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.patches.close()

    def undo(self):
        for tensor, value in reversed(self.changed.values()):  # they may share memory
            if get_local(tensor).untyped_storage().size():  # not of a gathered parameter, which is freed
                tensor.copy_(value)

    def replay(self):
        for operator, args, kwargs, outputs in self.calls:
            found = operator(*args, **kwargs)
            for old, new in zip(tree_leaves(outputs), tree_leaves(found), strict=True):
                if isinstance(old, torch.Tensor):
                    old, new = get_local(old), get_local(new)
                    if old.data_ptr() != new.data_ptr():
                        old.copy_(new)
                elif isinstance(new, torch.ScriptObject) and operator.namespace == "c10d":
                    Work.unbox(new).wait()


class OperatorRecorder:
    """Takes the place of GraphRecorder; counts what was recorded and replayed."""

    counts = {"recorded": 0, "replayed": 0}

    def __init__(self, generator):
        self.generator = generator

    def run(self, function):
        return function()

    def record(self, function):
        states = torch.get_rng_state(), self.generator.get_state()
        with OperatorLog() as log:
            result = function()
        with torch.no_grad():
            log.undo()
        torch.set_rng_state(states[0]), self.generator.set_state(states[1])
        self.counts["recorded"] += 1

        def replay():
            self.counts["replayed"] += 1
            with torch.no_grad():
                log.replay()

        return Recording(replay, result)


def build_optimizer(build, *arguments):
    """Build an optimizer that reads the learning rate from memory, as on a GPU."""
    optimizer = build(*arguments)
    for group in optimizer.param_groups:
        group["lr"] = torch.zeros(())
    return optimizer


def compute_loss_rows(*arguments):
    """Mask the rows of the loss without asking whether any must be masked, as on a GPU."""
    with mock.patch.object(torch.Tensor, "all", lambda self: False):
        compute_reference(*arguments)


compute_reference = cross_entropy.compute_loss_rows_reference


@contextlib.contextmanager
def gpu_steps(*, graphs):
    """Batches are packed as on a GPU, with few shapes; steps are recorded and replayed if `graphs`."""
    packed = lambda settings, **others: functools.partial(pack_batch, budget=settings.batch_tokens)  # noqa: E731
    optimizer = functools.partial(build_optimizer, assemble.build_optimizer)
    OperatorRecorder.counts = {"recorded": 0, "replayed": 0}
    with (
        mock.patch.object(layout, "choose_transform", packed),
        mock.patch.object(layout, "should_capture", lambda recipe, *, ranks, **others: graphs and ranks.tensor == 1),
        mock.patch.object(assemble, "build_optimizer", optimizer),
        mock.patch.object(loop, "GraphRecorder", OperatorRecorder),
        mock.patch.object(cross_entropy, "compute_loss_rows_reference", compute_loss_rows),
    ):
        yield OperatorRecorder.counts
