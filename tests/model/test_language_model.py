"""A writer without memory against GPT-2 of transformers: pre-norm, learned positions, tanh gelu, tied output."""

import pytest
import torch
from torch import Tensor, nn

from saccade.config import schema
from saccade.model.build import build_writer
from saccade.model.writers import TokenWriter

D, H, LAYERS, LENGTH, V = 12, 3, 2, 11, 23


@pytest.fixture
def writer() -> TokenWriter:
    stack = schema.TransformerStack(
        layers=LAYERS, dim=D, heads=H, ff=4 * D, norm="pre", activation="gelu-tanh", dropout=0.0
    )
    settings = schema.TokenWriter(
        stack=stack, positions=schema.Learned(length=LENGTH), scale=False, dropout=0.0, tie="output"
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
    """Theirs holds matrices the other way round, and queries, keys and values of all heads one after the other."""
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
        embedding = build_writer(settings.model_copy(update={"scale": scale}), size=V).eval().embedding
        torch.testing.assert_close(embedding(ids), embedding.tokens(ids) * factor)
