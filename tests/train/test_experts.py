"""Models with experts in training: balancing loss with every objective, resuming, compilation, load."""

import json
import signal

import pytest
import small
import torch

from saccade.config.load import validate
from saccade.data.batching.batch import Batch, pad
from saccade.errors import SaccadeError
from saccade.layers.blocks.experts import Experts
from saccade.model.build.model import build
from saccade.train.batches.pack import pack_batch
from saccade.train.objectives.objectives import compute_terms, next_token_loss, r_drop_loss
from saccade.train.objectives.terms import Term
from saccade.train.profiling.loads import compute_expert_loads

EXPERTS = {"count": 4, "top_k": 2, "hidden_dim": 9}
STACK = {**small.STACK, "experts": {**EXPERTS, "balance_weight": 0.1}}
TRAIN = {"ema": 0.9, "keep_checkpoints": 2}
RECURRENT = {
    side: {
        "stack": {"kind": "recurrent", "dim": 14, "layers": 2, "dropout": 0.1, "experts": EXPERTS, **more},
        "positions": {"kind": "none"},
    }
    for side, more in (("reader", {}), ("writer", {"attention": "additive"}))
}


@pytest.fixture
def model():
    torch.manual_seed(3)
    stack = {**STACK, "dropout": 0.0}
    made = build(
        validate({"reader": {"stack": stack}, "writer": {"stack": stack}}, origin="test"),
        source_size=13,
        target_size=13,
    )
    for part in made.modules():
        if isinstance(part, Experts):
            torch.nn.init.normal_(part.gate.clean.weight)
    return made


def compute_terms_of_batch(model, batch, *objectives):
    torch.manual_seed(5)
    return compute_terms(objectives, model, batch, torch.Generator().manual_seed(1))


def own(model, batch, generator):
    """A custom objective without code for experts."""
    states = model.read(batch).states
    return {"own": Term(states.square().sum(), states.shape[0], 1.0)}


@pytest.mark.parametrize("objective", [next_token_loss, r_drop_loss, own])
def test_every_objective_gets_the_balance(model, batch, objective):
    terms = compute_terms_of_batch(model, batch, objective)
    assert list(terms)[-2:] == ["balance", "load"]
    assert (terms["balance"].count, terms["balance"].weight, terms["load"].weight) == (1, 1.0, 0.0)
    assert terms["load"].sum > 1
    terms["balance"].sum.backward()
    gate = model.reader.stack.blocks[0].feedforward.gate
    assert gate.clean.weight.grad.abs().sum() > 0 and gate.spread.weight.grad.abs().sum() > 0


def test_without_experts_there_are_no_such_terms(batch):
    plain = build(small.small(), source_size=13, target_size=13)
    assert set(compute_terms_of_batch(plain, batch, next_token_loss)) == {"next-token", "nll"}


@torch.no_grad()
def test_the_balance_does_not_see_padding(model, batch):
    model.eval()
    whole = compute_terms_of_batch(model, batch, next_token_loss)
    for packed in (pack_batch(batch), pack_batch(batch, budget=256)):
        row = compute_terms_of_batch(model, packed, next_token_loss)
        for name in ("balance", "load"):
            torch.testing.assert_close(row[name].sum, whole[name].sum)


@pytest.mark.parametrize("kind", ["transformer", "recurrent"])
def test_killed_and_resumed_is_bit_identical(run_in_process, tmp_path, kind):
    whole, run = tmp_path / "whole", tmp_path / "run"
    train = {**TRAIN, **({"stack": STACK} if kind == "transformer" else {"parts": RECURRENT})}
    assert run_in_process(small.train_or_resume, str(whole), train) == 0

    assert run_in_process(small.train_and_die, str(run), train, "batch", 39) == -signal.SIGKILL
    assert run_in_process(small.train_or_resume, str(run), train) == 0

    assert small.weights(run) == small.weights(whole)
    assert small.weights(run, 24) == small.weights(whole, 24)


@pytest.mark.parametrize(
    ("backend", "recompute"), [("eager", False), pytest.param("aot_eager", True, marks=pytest.mark.slow)]
)
def test_blocks_with_experts_compile_without_breaks(run_in_process, tmp_path, backend, recompute):
    train = {"steps": 4, "valid_every": 4, "report_every": 1, "stack": {**STACK, "dropout": 0.0}, "pack": False}
    train["recompute"] = recompute
    small.api.train(small.small(**train), run=tmp_path / "eager")

    assert run_in_process(small.train_compiled, str(tmp_path / "compiled"), train, backend, []) == 0

    assert json.loads((tmp_path / "compiled/counts.json").read_text())["breaks"] == 0
    read = [small.read_metrics(tmp_path / run) for run in ("eager", "compiled")]
    for one, other in zip(*read, strict=True):
        assert other["loss"] == pytest.approx(one["loss"], abs=1e-4)
        assert other["balance"] == pytest.approx(one["balance"], abs=1e-4)


def test_a_transformer_with_experts_learns_and_uses_all_of_them(tmp_path):
    stack = {**STACK, "dim": 32, "dropout": 0.0, "experts": {**EXPERTS, "hidden_dim": 32}}
    train = {"steps": 150, "batch_tokens": 1024, "accumulate": 1, "valid_every": 150, "save_every": 150}
    train["schedule"] = {"kind": "cosine", "lr": 0.01, "warmup_steps": 20}
    data = {**small.COPY, "train": [{"files": ["embedded:copy"], "examples": 3000}]}
    run = small.api.train(small.small(data=data, stack=stack, **train), run=tmp_path / "run")

    lines = small.read_metrics(tmp_path / "run")
    first, *_, last = [line for line in lines if line["event"] == "train"]
    assert last["next-token"] < first["next-token"] - 1
    assert last["load"] < 2 and last["loss"] == pytest.approx(last["next-token"] + last["balance"], abs=1e-4)

    ids = run.tokenizers.source.encode_all(["abcdefgh", "zyxw", "hello", "mnopqrs", "attention", "bcdf"])
    batches = [Batch({"source": pad(rows), "target": pad(rows)}) for rows in (ids[:3], ids[3:])]
    loads = compute_expert_loads(run.model, batches)
    assert set(loads) == {"reader.stack.blocks.0.feedforward", "writer.stack.blocks.0.feedforward"}
    for values in loads.values():
        assert sum(values) == pytest.approx(4) and max(values) < 2


def test_loads_of_several_batches_are_those_of_one(model, batch):
    rows = [{name: (x.ids[i], int(x.mask[i].sum())) for name, x in batch.fields.items()} for i in range(3)]
    alone = [Batch({name: pad([ids[:n].tolist()]) for name, (ids, n) in row.items()}) for row in rows]
    whole, parts = compute_expert_loads(model, [batch]), compute_expert_loads(model, alone)
    assert model.training
    for name, values in whole.items():
        assert parts[name] == pytest.approx(values)


def test_loads_need_experts(batch):
    plain = build(small.small(), source_size=13, target_size=13)
    with pytest.raises(SaccadeError, match="this model has no experts; give one with stack.experts"):
        compute_expert_loads(plain, [batch])
