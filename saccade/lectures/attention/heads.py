"""Checks on multi-head attention: three forms, PyTorch's layer, widths, and the two attentions of a decoder."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from saccade.layers.attention.multihead import CrossAttention, HeadProjection, SelfAttention
from saccade.layers.attention.scores import attend
from saccade.layers.record import record
from saccade.lectures.claims import CheckResult, build_result, check, expect_at_least, expect_equal, expect_near
from saccade.lectures.drawing import Matrix
from saccade.lectures.small import build_small_batch, build_small_model, count_parameters, max_difference, sample_normal

FORMS = {"paper": 1_048_576, "full": 8_388_608, "split": 98_304}  # parameters at d = 512, h = 8, without biases


@check(
    63,
    "S3:1213-1365, S2:148, S4:79-88",
    "Heads run in parallel with their own weights; the notes have three forms with different parameter counts.",
    formula=r"\text{paper:~} 4 d^2, \quad \text{full~width:~} 4 h d^2, \quad \text{split~input:~} \frac{3 d^2}{h}",
    code=(SelfAttention, HeadProjection),
)
def three_forms() -> CheckResult:
    compared = []
    for form, expected in FORMS.items():
        layer = SelfAttention(12, heads=3, form=form, bias=False).double()  # type: ignore[arg-type]
        x = sample_normal(1, 5, 12)
        difference = max_difference(layer(x), _loop_over_heads(layer, x))
        compared.append(expect_near(f"{form}: all heads at once, difference from a loop", difference, 0, within=1e-12))
        with torch.device("meta"):
            large = SelfAttention(512, heads=8, form=form, bias=False)  # type: ignore[arg-type]
        compared.append(expect_equal(f"{form}: parameters at d = 512, h = 8", count_parameters(large), expected))
    return build_result(*compared)


def _loop_over_heads(layer: SelfAttention, x: Tensor) -> Tensor:
    """Compute one head after the other, each with its own matrices."""
    outputs = []
    for head, weight in enumerate(layer.project.weight):
        inputs = x.chunk(len(layer.project.weight), -1)[head] if layer.project.split else x
        q, k, v = (inputs @ matrix.T for matrix in weight)
        outputs.append(attend(q, k, v)[0])
    return layer.heads.out(torch.cat(outputs, -1))


@check(
    64,
    "S2:83, S4:88",
    "MultiHead concatenates the heads and multiplies by W_O; it equals PyTorch's layer with the same weights.",
    formula=r"\mathrm{MultiHead}(Q, K, V) = \mathrm{Concat}(\mathrm{head}_1, \dots, \mathrm{head}_h) W^O",
    code=(SelfAttention,),
)
def against_pytorch() -> CheckResult:
    ours, theirs = SelfAttention(12, heads=3).double(), nn.MultiheadAttention(12, 3, batch_first=True).double()
    with torch.no_grad():
        theirs.in_proj_weight.copy_(ours.project.weight.permute(1, 0, 2, 3).reshape(36, 12))
        theirs.in_proj_bias.copy_(sample_normal(36))
        assert ours.project.bias is not None
        ours.project.bias.copy_(theirs.in_proj_bias.view(3, 3, 4).transpose(0, 1))
        theirs.out_proj.load_state_dict(ours.heads.out.state_dict())
    x = sample_normal(2, 7, 12)
    return build_result(
        expect_near(
            "largest difference", max_difference(ours(x), theirs(x, x, x, need_weights=False)[0]), 0, within=1e-12
        )
    )


@check(
    65,
    "S4:77-82",
    "Heads project to spaces of width d/h; in the paper's form the number of parameters does not depend on h.",
    formula=r"d_k = d_v = \frac{d}{h}, \quad 4 d^2 + 4 d \text{~for~every~} h",
    code=(SelfAttention, HeadProjection),
)
def width_of_a_head() -> CheckResult:
    compared = []
    for heads in (1, 2, 4, 8, 16):
        with torch.device("meta"):
            layer = SelfAttention(64, heads=heads)
        compared.append(expect_equal(f"h = {heads}: width of a head", layer.project.shape[2], 64 // heads))
        compared.append(expect_equal(f"h = {heads}: parameters", count_parameters(layer), 4 * 64**2 + 4 * 64))
    return build_result(*compared)


@check(
    68,
    "S4:173-182",
    "The decoder has masked self-attention and cross-attention, whose keys and values are computed only once.",
    formula=r"Q = Y W_Q, \quad K = H W_K, \quad V = H W_V \quad (H \text{~from~the~encoder})",
    code=(CrossAttention,),
)
def decoder_attention() -> CheckResult:
    model, batch = build_small_model(), build_small_batch()
    made = [0]
    for layer in model.writer.stack.blocks:
        layer.cross.memory.register_forward_hook(lambda *_: made.__setitem__(0, made[0] + 1))
    with torch.no_grad():
        state = model.writer.start(model.read(batch), capacity=6)
        for _ in range(6):
            state = model.writer.step(torch.full((2, 1), 7), state).state
        with record(model) as maps:
            model.writer(batch["target"].ids, batch["target"].mask, model.read(batch))
    own = [a for name, a in maps.items() if name.startswith("writer") and name.endswith("self")]
    cross = [a for name, a in maps.items() if name.endswith("cross")]
    return build_result(
        expect_equal("key and value projections for 6 decoding steps, 2 layers and 1 source batch", made[0] - 2, 2),
        expect_equal(
            "largest self-attention weight on a later word",
            max((float(a.triu(1).max()) for a in own), default=9.0),
            0.0,
        ),
        expect_equal(
            "shapes of cross-attention weights, target words x source words",
            str([tuple(a.shape[2:]) for a in cross]),
            "[(3, 5), (3, 5)]",
        ),
    )


@check(
    114,
    "S2:159-163",
    "Putting it together: the outputs of all heads are concatenated and multiplied by W_O.",
    formula=r"Y = \mathrm{Concat}(A_1 V_1, \dots, A_h V_h) W^O",
    code=(SelfAttention,),
)
def putting_it_together() -> CheckResult:
    layer, x = SelfAttention(12, heads=3, bias=False).double(), sample_normal(1, 5, 12)
    with record(layer) as maps:
        y = layer(x)
    weights = next(iter(maps.values()))[0]  # heads x 5 x 5
    _, _, v = layer.project(x)
    outputs = [a @ v[0, :, head] for head, a in enumerate(weights)]
    joined = torch.cat(outputs, -1)
    without = copy.deepcopy(layer)
    without.heads.out = nn.Identity()
    ours = without(x)[0]
    caption = "Attention weights of three heads on the same five vectors, side by side: each head attends differently."
    return build_result(
        expect_near(
            "the layer without W_O: difference from the concatenated heads",
            max_difference(ours, joined),
            0,
            within=1e-12,
        ),
        expect_near(
            "concatenated heads times W_O: difference from the layer's output",
            max_difference(y[0], layer.heads.out(joined)),
            0,
            within=1e-12,
        ),
        expect_at_least(
            "smallest difference between the weights of two heads",
            min(max_difference(weights[i], weights[j]) for i in range(3) for j in range(i)),
            0.01,
        ),
        drawing=Matrix("query", "key, head by head", torch.cat(list(weights), 1).tolist(), caption),
    )
