"""A whole model against the same model in transformers (Marian: post-norm, sinusoidal positions, tied embeddings)."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from saccade.data.batching.batch import Batch
from saccade.model.model import Model

D, H, FF, V = 12, 3, 17, 23


@pytest.fixture
def theirs() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.MarianConfig(
        vocab_size=V, d_model=D, encoder_layers=2, decoder_layers=2, encoder_attention_heads=H,
        decoder_attention_heads=H, encoder_ffn_dim=FF, decoder_ffn_dim=FF, activation_function="relu",
        scale_embedding=True, pad_token_id=0, eos_token_id=2, decoder_start_token_id=1, forced_eos_token_id=2,
        max_position_embeddings=32, dropout=0.0,
    )  # fmt: skip
    model = transformers.MarianMTModel(config).double().eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1 or "proj" in name or "fc" in name:
            nn.init.normal_(parameter, std=0.3)  # theirs begins with zeros and ones, which hide mistakes
    return model


def together(*parts: nn.Module) -> tuple[Tensor, Tensor]:
    """Weights and biases of projections as ours: heads first, then query, key or value."""
    weights = torch.stack([part.weight.unflatten(0, (H, -1)) for part in parts], 1)
    return weights, torch.stack([part.bias.unflatten(0, (H, -1)) for part in parts], 1)


@torch.no_grad()
def copy_block(source: nn.Module, block: nn.Module) -> None:
    attentions = [(source.self_attn, block.self, None)]
    norms = [source.self_attn_layer_norm, source.final_layer_norm]
    if block.cross is not None:
        attentions.append((source.encoder_attn, block.cross, block.cross.query))
        norms.insert(1, source.encoder_attn_layer_norm)
    for attention, ours, query in attentions:
        projections = [(ours.project, "qkv")] if query is None else [(query, "q"), (ours.memory, "kv")]
        for projection, names in projections:
            weight, bias = together(*(attention.get_submodule(f"{name}_proj") for name in names))
            projection.weight.copy_(weight)
            projection.bias.copy_(bias)
        ours.heads.out.load_state_dict(attention.out_proj.state_dict())
    block.feedforward.up.load_state_dict(source.fc1.state_dict())
    block.feedforward.down.load_state_dict(source.fc2.state_dict())
    for residual, norm in zip(block.residuals, norms, strict=True):
        residual.norm.load_state_dict(norm.state_dict())


@pytest.fixture
def ours(model: Callable[..., Model], theirs: nn.Module) -> Model:
    made = model("reader.positions.layout=concatenated", "writer.positions.layout=concatenated").double()
    with torch.no_grad():
        made.reader.embedding.tokens.weight.copy_(theirs.model.shared.weight)
    pairs = (made.reader, theirs.model.encoder), (made.writer, theirs.model.decoder)
    for part, source in pairs:
        for block, layer in zip(part.stack.blocks, source.layers, strict=True):
            copy_block(layer, block)
    return made


def test_logits_and_gradients_equal_those_of_marian(ours: Model, theirs: nn.Module, batch: Batch) -> None:
    source, target = batch["source"], batch["target"]
    expected = theirs(source.ids, attention_mask=source.mask.long(), decoder_input_ids=target.ids).logits
    got = ours.writer.head(ours.writer(target.ids, target.mask, ours.read(batch)))
    # Sinusoids are float32 on both sides, and computed in different ways.
    torch.testing.assert_close(got[target.mask], expected[target.mask], atol=1e-5, rtol=1e-5)
    tables = ours.reader.embedding.tokens.weight, theirs.model.shared.weight
    ups = ours.reader.stack.blocks[0].feedforward.up.weight, theirs.model.encoder.layers[0].fc1.weight
    a = torch.autograd.grad(got[target.mask].square().mean(), [tables[0], ups[0]])
    b = torch.autograd.grad(expected[target.mask].square().mean(), [tables[1], ups[1]])
    torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_greedy_tokens_equal_those_of_marian(ours: Model, theirs: nn.Module, batch: Batch) -> None:
    source = batch["source"]
    theirs.generation_config.forced_eos_token_id = None
    expected = theirs.generate(
        source.ids, attention_mask=source.mask.long(), num_beams=1, do_sample=False, max_length=9, min_length=9,
        suppress_tokens=[2],
    )  # fmt: skip
    state, tokens = ours.writer.start(ours.read(batch), capacity=9), [torch.full((3, 1), 1)]
    for _ in range(8):
        logits, state, _ = ours.writer.step(tokens[-1], state)
        logits[:, [0, 2]] = -torch.inf  # they never choose padding, and may not end here
        tokens.append(logits.argmax(-1, keepdim=True))
    assert torch.equal(torch.cat(tokens, 1), expected)
