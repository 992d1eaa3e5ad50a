"""One optimizer step against the same computed by hand."""

import contextlib
import copy
from types import SimpleNamespace

import pytest
import small
import torch

from saccade.config.schema import Train
from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.tokenizers import START
from saccade.errors import SaccadeError
from saccade.model.build.model import build
from saccade.model.writers.tokens import shift_right
from saccade.train import loop
from saccade.train.distributed.ranks import Ranks
from saccade.train.loss import Meter, MicroBatchLoss
from saccade.train.machine import MemoryTracker
from saccade.train.objectives.objectives import next_token_loss
from saccade.train.objectives.terms import Term
from saccade.train.optimizer import build_optimizer, freeze
from saccade.train.profiling.profile import StepProfiler
from saccade.train.session import Progress, Session

CPU = torch.device("cpu")
FIRST = Batch({"source": pad([[5, 6, 2], [7, 2]]), "target": pad([[6, 5, 4, 9, 2], [7, 2]])})
SECOND = Batch({"source": pad([[8, 2]]), "target": pad([[8, 2]])})


class FixedBatches:
    """A prefetcher of given batches."""

    epoch, wait_seconds, state = 0.5, 0.0, {}

    def __init__(self, batches):
        self.batches = iter(batches)

    def next_batch(self):
        self.untransformed = next(self.batches)
        return self.untransformed

    def load_parts(self, untransformed, parts):
        return untransformed.split(parts)


def session(batches, *, objectives=(next_token_loss,), dropout=0.0, **train):
    recipe = small.small(**{"accumulate": len(batches), **train}, stack={**small.STACK, "dropout": dropout})
    recipe = recipe.model_copy(
        update={part: getattr(recipe, part).model_copy(update={"dropout": dropout}) for part in ("reader", "writer")}
    )
    torch.manual_seed(3)
    model = build(recipe, source_size=11, target_size=11)
    loss = MicroBatchLoss(model, objectives=objectives, settings=recipe.train, device=CPU)
    empty = dict.fromkeys(("run", "tokenizers", "valid", "log", "average"))
    return Session(
        recipe=recipe, model=model, loss=loss, ddp_loss=loss, optimizer=build_optimizer(recipe.train.optimizer, model),
        learning_rate=lambda step: 0.01, prefetcher=FixedBatches(batches), valid_pairs=[], ranks=Ranks(),
        device=CPU, meter=Meter(CPU),
        memory=MemoryTracker(recipe.train, model, CPU), generator=torch.Generator(), progress=Progress(),
        profiler=StepProfiler(False, prefetcher=None, device=CPU), **empty,
    )  # fmt: skip


def test_loss_is_divided_by_the_targets_of_all_micro_batches():
    s = session([FIRST, SECOND])
    by_hand = copy.deepcopy(s.model)
    total = 0.0
    for batch in (FIRST, SECOND):
        target = batch["target"]
        logits = by_hand.writer.head(by_hand.writer(shift_right(target.ids, START), target.mask, by_hand.read(batch)))
        total += torch.nn.functional.cross_entropy(
            logits[target.mask], target.ids[target.mask], label_smoothing=0.1, reduction="sum"
        )
    (total / 9).backward()  # 7 and 2 target tokens

    loop.optimizer_step(s)

    for expected, parameter in zip(by_hand.parameters(), s.model.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad)
    assert s.meter.read(Ranks())["loss"] == pytest.approx(total.item() / 9)
    assert s.progress.step == 1


def test_gradients_are_clipped_to_the_norm():
    free, clipped = session([FIRST]), session([FIRST], clip=0.01)

    loop.optimizer_step(free), loop.optimizer_step(clipped)

    norms = [torch.nn.utils.get_total_norm([p.grad for p in s.model.parameters()]) for s in (free, clipped)]
    assert norms[0] > 0.1 and norms[1] == pytest.approx(0.01, rel=1e-3)


def test_recomputed_activations_give_the_same_gradients_with_dropout():
    plain, again = session([FIRST], dropout=0.3), session([FIRST], dropout=0.3, recompute=True)
    assert again.model.reader.stack.recompute and not plain.model.reader.stack.recompute

    loop.optimizer_step(plain), loop.optimizer_step(again)

    for expected, parameter in zip(plain.model.parameters(), again.model.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad)


def test_terms_with_counts_of_their_own_are_means():
    def pull(model, batch, generator):
        return {"pull": Term(model.writer.output.weight.sum(), 5, 2.0), "seen": Term(torch.tensor(7.0), 7, 0.0)}

    s = session([FIRST], objectives=(next_token_loss, pull))
    plain = session([FIRST])

    loop.optimizer_step(s), loop.optimizer_step(plain)

    difference = s.model.writer.output.weight.grad - plain.model.writer.output.weight.grad
    torch.testing.assert_close(difference, torch.full_like(difference, 2.0 / 5))
    values = s.meter.read(Ranks())
    assert values["loss"] == pytest.approx(values["next-token"] + 2.0 * values["pull"], rel=1e-5)
    assert values["seen"] == 1.0


def test_frozen_reader_does_not_move():
    s = session([FIRST, FIRST])
    before = copy.deepcopy(s.model.state_dict())
    freeze(s.model, ["reader"])
    s.optimizer = build_optimizer(Train().optimizer, s.model)

    loop.optimizer_step(s)

    moved = {name for name, tensor in s.model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved and not any(name.startswith("reader.") for name in moved)


def test_time_left_is_that_of_the_budget_which_ends_first():
    s = session([FIRST], steps=100, minutes=10.0, epochs=2)
    s.progress = Progress(step=10, seconds=60.0, epoch=0.5)

    assert loop.estimate_seconds_left(s) == pytest.approx(180.0)  # the epochs end first: 60 s * (2 / 0.5 - 1)


def test_a_term_with_a_count_of_its_own_is_a_mean_in_each_micro_batch():
    """0.5 in one of 7 target tokens and 3 in one of 2: 7/9 * 2/4 + 2/9 * 3/1."""
    values = {7: (2.0, 4), 2: (3.0, 1)}

    def pull(model, batch, generator):
        total, count = values[batch.counts["target"]]
        return {"pull": Term(total * model.writer.output.weight.sum(), torch.tensor(count), 1.0)}

    s, plain = session([FIRST, SECOND], objectives=(next_token_loss, pull)), session([FIRST, SECOND])

    loop.optimizer_step(s), loop.optimizer_step(plain)

    difference = s.model.writer.output.weight.grad - plain.model.writer.output.weight.grad
    torch.testing.assert_close(difference, torch.full_like(difference, 7 / 9 * 2 / 4 + 2 / 9 * 3 / 1))


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_loss_that_is_no_number_in_another_process_stops_this_one(tmp_path, elsewhere):
    s = session([FIRST])
    loop.optimizer_step(s)
    s.checked_step, s.run = 0, tmp_path
    s.ranks = SimpleNamespace(any_rank=lambda flag, device: flag or elsewhere)

    with pytest.raises(SaccadeError, match="at step 1 ") if elsewhere else contextlib.nullcontext():
        loop.check_finite_loss(s)
