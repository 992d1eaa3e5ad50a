"""Checks on a whole Transformer: its layers, and the gradient that reaches them."""

from __future__ import annotations

import torch
from torch import nn

from saccade.layers.blocks.transformer import Block, TransformerStack
from saccade.lectures.claims import CheckResult, build_result, check, expect_at_least, expect_equal
from saccade.lectures.small import build_small_batch, build_small_model
from saccade.train.objectives.objectives import next_token_loss


@check(
    12,
    "S2:39-41, S4:22-23",
    "Attention is enough for encoder and decoder: the Transformer has no recurrent and no convolutional layer.",
    formula=r"\mathrm{encoder}, \mathrm{decoder} = \mathrm{attention}",
    code=(Block, TransformerStack),
)
def attention_is_enough() -> CheckResult:
    model = build_small_model()
    others = [m for m in model.modules() if isinstance(m, nn.RNNBase | nn.RNNCellBase | nn.Conv1d | nn.Conv2d)]
    attentions = sum(type(m).__name__ in ("SelfAttention", "CrossAttention") for m in model.modules())
    return build_result(
        expect_equal("recurrent and convolutional layers", len(others), 0),
        expect_equal("attention layers of 2 + 2 layers: 2 in the encoder, 2 x 2 in the decoder", attentions, 6),
    )


@check(
    20,
    "S3:159",
    "The gradient of the loss reaches all parameters, including those of attention.",
    formula=r"\frac{\partial L}{\partial \theta} \quad \text{for~every~} \theta",
    code=(next_token_loss,),
)
def gradient_reaches_all() -> CheckResult:
    model = build_small_model()
    next_token_loss(model, build_small_batch(), torch.Generator())["next-token"].sum.backward()
    named = dict(model.named_parameters())
    without = [name for name, p in named.items() if p.grad is None]
    attention = [p for name, p in named.items() if name.endswith("project.weight") or name.endswith("memory.weight")]
    smallest = min(0.0 if p.grad is None else float(p.grad.norm()) for p in attention)
    return build_result(
        expect_equal(f"parameters without a gradient, of {len(named)}", ", ".join(without) or "none", "none"),
        expect_at_least("smallest gradient norm of a matrix of queries, keys or values", smallest, 1e-6),
    )
