"""A writer without memory against GPT-2 of transformers: pre-norm, learned positions, tanh gelu, tied output."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from saccade.config import schema
from saccade.config.load import validate
from saccade.data.batching.batch import Batch, pad
from saccade.layers.packing import Packing
from saccade.layers.record import record
from saccade.model.build.model import build, build_writer
from saccade.model.model import Model
from saccade.model.writers.tokens import TokenWriter
from saccade.train.batches.pack import pack_batch
from saccade.train.objectives.objectives import next_token_loss

D, H, LAYERS, LENGTH, V = 12, 3, 2, 11, 23


@pytest.fixture
def writer() -> TokenWriter:
    stack = schema.TransformerStack(
        layers=LAYERS, dim=D, heads=H, ff=4 * D, norm="pre", activation="gelu-tanh", dropout=0.0
    )
    settings = schema.TokenWriter(
        stack=stack, positions=schema.Learned(length=LENGTH), scale_embedding=False, dropout=0.0, tie="output"
    )
    return build_writer(settings, size=V).eval()


@pytest.fixture
def theirs() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=V, n_embd=D, n_layer=LAYERS, n_head=H, n_positions=LENGTH)
    model = transformers.GPT2LMHeadModel(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)  # theirs begins with zeros and ones, which hide mistakes
    return model


@torch.no_grad()
def copy_weights(theirs: nn.Module, ours: TokenWriter) -> None:
    """GPT-2 stores transposed matrices, with queries, keys and values of all heads in one."""
    core = theirs.transformer
    ours.embedding.tokens.weight.copy_(core.wte.weight)
    ours.embedding.positions.table.weight.copy_(core.wpe.weight)
    for block, source in zip(ours.stack.blocks, core.h, strict=True):
        block.self.project.weight.copy_(source.attn.c_attn.weight.T.reshape(3, H, D // H, D).transpose(0, 1))
        block.self.project.bias.copy_(source.attn.c_attn.bias.view(3, H, D // H).transpose(0, 1))
        pairs = [
            (block.self.heads.out, source.attn.c_proj),
            (block.feedforward.up, source.mlp.c_fc),
            (block.feedforward.down, source.mlp.c_proj),
        ]
        for linear, conv in pairs:
            linear.weight.copy_(conv.weight.T)
            linear.bias.copy_(conv.bias)
        for residual, norm in zip(block.residuals, (source.ln_1, source.ln_2), strict=True):
            residual.norm.load_state_dict(norm.state_dict())
    ours.stack.norm.load_state_dict(core.ln_f.state_dict())


def texts(rows: int, length: int) -> Tensor:
    return torch.randint(V, (rows, length), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_logits_equal_those_of_gpt2(writer: TokenWriter, theirs: nn.Module) -> None:
    copy_weights(theirs, writer)
    ids = texts(3, LENGTH)
    got = writer.head(writer(ids, None, None))
    torch.testing.assert_close(got, theirs(ids).logits, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_prompt_and_steps_give_the_logits_of_the_whole(writer: TokenWriter) -> None:
    ids = texts(5, LENGTH)
    whole = writer.head(writer(ids, None, None))
    step = writer.step(ids[:, :4], writer.start(None, rows=5, capacity=LENGTH))
    torch.testing.assert_close(step.logits, whole[:, 3], atol=1e-5, rtol=1e-5)
    for t in range(4, LENGTH):
        step = writer.step(ids[:, t : t + 1], step.state)
        torch.testing.assert_close(step.logits, whole[:, t], atol=1e-5, rtol=1e-5)


def test_it_learns_from_a_step(writer: TokenWriter) -> None:
    ids = texts(4, LENGTH)

    def loss() -> Tensor:
        logits = writer.head(writer(ids[:, :-1], None, None))
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    optimizer = torch.optim.SGD(writer.parameters(), lr=0.5)
    before = loss()
    before.backward()
    assert all(parameter.grad is not None for parameter in writer.parameters())
    optimizer.step()
    assert loss() < before


def test_tokens_are_scaled_only_where_asked() -> None:
    stack = schema.TransformerStack(layers=1, dim=D, heads=H, ff=D)
    settings = schema.TokenWriter(stack=stack, positions=schema.NoPositions(), tie="output")
    ids = texts(1, 3)
    for scale, factor in ((True, D**0.5), (False, 1.0)):
        embedding = build_writer(settings.model_copy(update={"scale_embedding": scale}), size=V).eval().embedding
        torch.testing.assert_close(embedding(ids), embedding.tokens(ids) * factor)


# ---- as a recipe

FORMS = {
    "gpt": {"positions": {"kind": "learned", "length": LENGTH}},
    "banded": {"stack": {"window": ["none", 2]}},
    "grouped": {"stack": {"kv_heads": 1}, "positions": {"kind": "rotary"}},
    "relative": {"positions": {"kind": "transformer-xl"}},
}


def language_model(form: str = "gpt", **more: Any) -> Model:
    stack = {"layers": LAYERS, "dim": D, "heads": H, "ff": 17, "norm": "pre", "dropout": 0.0}
    chosen = FORMS[form]
    writer = {"tie": "output", "dropout": 0.0, **chosen, "stack": {**stack, **chosen.get("stack", {})}}
    data = {"max_length": LENGTH}
    recipe = validate({"task": "language-model", "data": data, "reader": {"kind": "none"}, "writer": writer, **more})
    return build(recipe, source_size=V, target_size=V)


def test_nothing_is_read() -> None:
    model = language_model()
    assert model.reader is None
    assert model.read(Batch({})) is None
    assert model.dim == D


@pytest.mark.parametrize("form", FORMS)
def test_documents_in_one_row_equal_each_alone(form: str) -> None:
    """Attention does not cross documents and positions restart: losses and gradients equal those of each alone."""
    model, generator = language_model(form).double().train(), torch.Generator()
    rows = [row[:n].tolist() for row, n in zip(texts(4, LENGTH), (LENGTH, 1, 4, 7), strict=True)]

    def gradients(batches: list[Batch]) -> tuple[Tensor, list[Tensor]]:
        model.zero_grad()
        total = torch.zeros((), dtype=torch.double)
        for batch in batches:
            loss = next_token_loss(model, batch, generator, label_smoothing=0.0)["next-token"].sum
            loss.backward()
            total += loss.detach()
        return total, [parameter.grad.clone() for parameter in model.parameters()]

    together = gradients([pack_batch(Batch({"target": pad(rows)}))])
    alone = gradients([Batch({"target": pad([row])}) for row in rows])
    torch.testing.assert_close(together, alone, atol=1e-10, rtol=1e-10)
    assert isinstance(pack_batch(Batch({"target": pad(rows)}))["target"].mask, Packing)


@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_steps_of_every_form_equal_the_pass_over_all_positions(form: str) -> None:
    writer = language_model(form).eval().writer
    ids = texts(3, LENGTH)
    whole = writer.head(writer(ids, None, None))
    step = writer.step(ids[:, :4], writer.start(None, rows=3, capacity=LENGTH))
    for t in range(4, LENGTH):
        torch.testing.assert_close(step.logits, whole[:, t - 1], atol=1e-5, rtol=1e-5)
        step = writer.step(ids[:, t : t + 1], step.state)


@torch.no_grad()
def test_a_banded_layer_sees_its_window_and_a_dense_one_everything() -> None:
    writer = language_model("banded").eval().writer
    with record(writer) as maps:
        writer(texts(1, LENGTH), None, None)
    dense, banded = maps.values()
    assert (dense[0, 0, -1] > 0).all()
    assert (banded[0, 0, -1] > 0).tolist() == [False] * (LENGTH - 3) + [True] * 3


def test_a_writer_of_your_own_reads_nothing_either() -> None:
    class Own(nn.Module):
        def __init__(self, size: int, memory_dim: int, *, dim: int = 5) -> None:
            super().__init__()
            self.size, self.memory_dim, self.dim = size, memory_dim, dim

    values = {"task": "language-model", "reader": {"kind": "none"}, "writer": {"kind": "own", "dim": 7}}
    kinds = {"own": Own}
    model = build(validate(values, kinds=kinds), source_size=V, target_size=V)
    assert (model.writer.size, model.writer.memory_dim, model.dim) == (V, 0, 7)


def test_a_custom_stack_gets_memory_dim_0_without_memory() -> None:
    given: list[int] = []

    class Own(nn.Module):
        def __init__(self, memory_dim: int, *, dim: int = 6) -> None:
            super().__init__()
            given.append(memory_dim)
            self.dim = dim

    values = {
        "task": "language-model",
        "reader": {"kind": "none"},
        "writer": {"tie": "output", "stack": {"kind": "own"}},
    }
    kinds = {"own": Own}
    model = build(validate(values, kinds=kinds), source_size=V, target_size=V)
    assert (given, model.dim) == ([0], 6)
