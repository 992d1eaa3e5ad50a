"""Sparsely-gated mixture of experts (Shazeer et al. 2017): of E feed-forward networks, each position uses the top k.

In shapes: N positions, E experts, k experts per position, P = N k pairs of a position and an expert.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.kernels.activations import ACTIVATIONS
from saccade.kernels.weights import FeedForwardWeights, Unsupported
from saccade.layers.blocks.feedforward import Activation
from saccade.layers.dropout import Dropout

# ---- load balancing
#
# The two losses of Shazeer et al. 2017 (section 4, appendix A): the squared coefficients of variation of the importance
# of experts (sum of their gate values) and of their load (expected number of positions, a smooth function of the gate).
# They fit noisy gating better than the losses of later papers: thanks to the noise the load is differentiable. Without
# noise only the importance has a gradient.
#
# Padding goes through the experts like any position, but is not counted.

ExpertUsage = dict["Experts", Float[Tensor, "3 E"]]  # per group of experts: importance, load and number of positions


class GateOutput(NamedTuple):
    """The experts chosen for each position."""

    experts: Int[Tensor, "N k"]
    weights: Float[Tensor, "N k"]  # gate values; those of a position sum to 1
    load: Float[Tensor, "N E"]  # probability that an expert would be chosen with newly sampled noise


class Routing(NamedTuple):
    """The gate output of one group of experts in a forward pass; `mask` is False for padding, None without any."""

    experts: "Experts"
    gate_output: GateOutput
    mask: Bool[Tensor, "..."] | None

    def compute_usage(self) -> Float[Tensor, "3 E"]:
        """Importance, load and number of positions of each expert, without padding."""
        experts, weights, load = self.gate_output
        zeros = torch.zeros_like(load)
        usage = torch.stack((zeros.scatter(1, experts, weights), load, zeros.scatter(1, experts, 1.0)))
        if self.mask is not None:
            usage = usage * self.mask.flatten()[:, None]
        return usage.sum(1)


def sum_usage(routing: Iterable[Routing]) -> ExpertUsage:
    """The usage of each group of experts, summed over forward passes."""
    total: ExpertUsage = {}
    for one in routing:
        usage = one.compute_usage()
        total[one.experts] = total[one.experts] + usage if one.experts in total else usage
    return total


def cv_squared(values: Float[Tensor, " E"]) -> Float[Tensor, ""]:
    """Squared coefficient of variation, (standard deviation / mean)^2."""
    return values.var(correction=0) / values.mean().square().clamp(min=1e-10)


def balance_loss(usages: Mapping["Experts", Float[Tensor, "3 E"]]) -> Float[Tensor, ""]:
    """Sum over all groups of experts of balance * (CV(importance)^2 + CV(load)^2)."""
    parts = [group.balance * (cv_squared(usage[0]) + cv_squared(usage[1])) for group, usage in usages.items()]
    return torch.stack(parts).sum()


def relative_load(usage: Float[Tensor, "3 E"]) -> Float[Tensor, " E"]:
    """The number of positions of each expert, divided by their mean."""
    positions = usage[2].detach()
    return positions / positions.mean().clamp(min=1e-10)


def max_relative_load(usages: Mapping["Experts", Float[Tensor, "3 E"]]) -> Float[Tensor, ""]:
    """The largest relative load of all experts."""
    return torch.stack([relative_load(usage).max() for usage in usages.values()]).max()


# ---- gate and experts


MIN_NOISE_STD = 0.01  # keeps the gate from becoming deterministic, which would stop its gradient


class BlockAssignment(NamedTuple):
    """Pairs of a position and an expert, laid out in blocks of equal size, each for one expert."""

    slots: Int[Tensor, " P"]  # the row of each pair among the rows of all blocks
    experts: Int[Tensor, " b"]  # the expert of each block
    block_size: int  # rows of a block


class Gate(nn.Module):
    """Noisy top-k gating (Shazeer et al. 2017, section 2.1): G(x) = softmax(top k of H(x)).

    H(x) = x Wg + normal() * softplus(x Wn) in training, without the noise otherwise. Both matrices are initialized to
    zero, so that all experts are equally likely at first. Submodules: `clean` is Wg, `spread` is Wn.
    """

    def __init__(self, dim: int, *, num_experts: int, top_k: int, noise: bool = True) -> None:
        super().__init__()
        self.top_k = top_k
        self.clean = nn.Linear(dim, num_experts, bias=False)
        self.spread = nn.Linear(dim, num_experts, bias=False) if noise else None
        if self.spread is not None:  # without noise, zero weights would never break the tie between experts
            nn.init.zeros_(self.clean.weight)
            nn.init.zeros_(self.spread.weight)

    @property
    def num_experts(self) -> int:
        return self.clean.out_features

    @property
    def experts_per_token(self) -> int:
        return self.top_k

    def forward(self, x: Float[Tensor, "N D"]) -> GateOutput:
        with torch.autocast(x.device.type, enabled=False):  # bfloat16 would round different scores to the same value
            x = x.to(self.clean.weight.dtype)
            return choose_best(
                self.clean(x), None if self.spread is None or not self.training else self.spread(x), self.top_k
            )


def choose_best(clean: Float[Tensor, "*N E"], spread: Float[Tensor, "*N E"] | None, top_k: int) -> GateOutput:
    """The top k of H = clean + normal() * softplus(spread), without the noise where `spread` is None."""
    if spread is None:
        best = clean.topk(top_k)
        load = torch.zeros_like(clean).scatter(-1, best.indices, 1.0)
        return GateOutput(best.indices, best.values.softmax(-1), load)
    spread = F.softplus(spread) + MIN_NOISE_STD
    noisy = clean + torch.randn_like(clean) * spread
    best = noisy.topk(top_k + 1)
    last, next_one = best.values[..., -2:].split(1, -1)
    # An expert is chosen if it beats the k-th best of the others (appendix A, equation 8).
    load = torch.special.ndtr((clean - torch.where(noisy > next_one, next_one, last)) / spread)
    return GateOutput(best.indices[..., :-1], best.values[..., :-1].softmax(-1), load)


class HierarchicalGate(nn.Module):
    """A gate for groups of experts, and one in each group: G(x)_ij = G_primary(x)_i G_i(x)_j (Shazeer et al. 2017,
    appendix B, equation 12).

    Each chooses its top k, so that every position is processed by k * k experts. The load of an expert is the
    probability that its group and then the expert itself would be chosen.
    """

    def __init__(self, dim: int, *, groups: int, num_experts: int, top_k: int, noise: bool = True) -> None:
        super().__init__()
        self.num_experts, self.experts_per_token = num_experts, top_k * top_k
        self.primary = Gate(dim, num_experts=groups, top_k=top_k, noise=noise)
        self.secondary = Gate(dim, num_experts=num_experts, top_k=top_k, noise=noise)  # of all groups, side by side

    def forward(self, x: Float[Tensor, "N D"]) -> GateOutput:
        first: GateOutput = self.primary(x)
        groups, own = self.primary.num_experts, self.secondary
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(own.clean.weight.dtype)
            noisy = own.spread is not None and own.training
            clean, spread = (part(x).unflatten(-1, (groups, -1)) if part else None for part in (own.clean, own.spread))
            second = choose_best(clean, spread if noisy else None, own.top_k)  # type: ignore[arg-type]
        chosen = first.experts[..., None].expand(-1, -1, own.top_k)
        experts = second.experts.gather(1, chosen) + chosen * (self.num_experts // groups)
        weights = second.weights.gather(1, chosen) * first.weights[..., None]
        return GateOutput(experts.flatten(1), weights.flatten(1), (first.load[..., None] * second.load).flatten(1))


def assign_blocks(experts: Int[Tensor, "N k"], num_experts: int) -> BlockAssignment:
    """Lay out pairs in blocks whose number and size depend on the number of positions only, not on the routing.

    P pairs go into blocks of ceil(P / E) rows, the last one of each expert possibly not full: at most 2 E - 1
    blocks for any routing. So no position is dropped and the device need not be synchronized; a single position takes k
    blocks of one row.
    """
    pairs = experts.flatten()
    size = -(-pairs.shape[0] // num_experts)
    max_blocks = (pairs.shape[0] + num_experts * (size - 1)) // size
    is_expert = pairs[:, None] == torch.arange(num_experts, device=pairs.device)
    index = is_expert.cumsum(0).gather(1, pairs[:, None])[:, 0] - 1  # index of a pair among those of its expert
    blocks = (is_expert.sum(0) + size - 1) // size
    ends = blocks.cumsum(0)
    slots = (ends - blocks).index_select(0, pairs) * size + index
    block_experts = (torch.arange(max_blocks, device=pairs.device)[:, None] >= ends).sum(1).clamp(max=num_experts - 1)
    return BlockAssignment(slots, block_experts, size)


class Experts(nn.Module):
    """y = sum over the top k experts of G(x)_i E_i(x) (Shazeer et al. 2017, equation 1).

    E_i(x) = f(x W1_i + b1_i) W2_i + b2_i. Used in place of a `FeedForward`. No position is ever dropped, so outputs do
    not depend on the rest of the batch. `balance` is the weight of the load-balancing loss.
    """

    is_gated = False

    def __init__(
        self,
        dim: int,
        *,
        hidden_dim: int,
        gate: Gate | HierarchicalGate,
        activation: Activation = "relu",
        dropout: float = 0.0,
        bias: bool = True,
        balance: float = 0.0,
    ) -> None:
        super().__init__()
        count = gate.num_experts
        self.gate, self.activation, self.balance, self.num_experts = gate, activation, balance, count
        self.up, self.down = (
            nn.Parameter(torch.empty(count, dim, hidden_dim)),
            nn.Parameter(torch.empty(count, hidden_dim, dim)),
        )
        self.up_bias = nn.Parameter(torch.zeros(count, 1, hidden_dim)) if bias else None
        self.down_bias = nn.Parameter(torch.zeros(count, 1, dim)) if bias else None
        self.dropout = Dropout(dropout)
        for weight in (*self.up.data, *self.down.data):
            nn.init.xavier_uniform_(weight)

    @property
    def hidden_dim(self) -> int:
        return self.up.shape[-1]

    @property
    def experts_per_token(self) -> int:
        return self.gate.experts_per_token

    @property
    def active_fraction(self) -> float:
        """The fraction of the experts' parameters that each token uses."""
        return self.experts_per_token / self.num_experts

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        return self.route(x)[0]

    def describe(self) -> FeedForwardWeights:
        raise Unsupported("its positions are routed to experts")

    def route(self, x: Float[Tensor, "... D"]) -> tuple[Float[Tensor, "... D"], GateOutput]:
        """The output, and the experts that were chosen."""
        rows = x.reshape(-1, x.shape[-1])
        gate_output: GateOutput = self.gate(rows)
        layout = assign_blocks(gate_output.experts, self.num_experts)
        pairs = rows[:, None].expand(-1, gate_output.experts.shape[1], -1).flatten(0, 1)
        blocks = rows.new_zeros(layout.experts.shape[0] * layout.block_size, rows.shape[1]).index_copy(
            0, layout.slots, pairs
        )
        hidden = multiply_by_experts(
            blocks.unflatten(0, (-1, layout.block_size)), self.up, self.up_bias, layout.experts
        )
        hidden = self.dropout(ACTIVATIONS[self.activation](hidden))
        out = (
            multiply_by_experts(hidden, self.down, self.down_bias, layout.experts)
            .flatten(0, 1)
            .index_select(0, layout.slots)
        )
        mixed = (out.unflatten(0, gate_output.experts.shape) * gate_output.weights[..., None]).sum(1)
        return mixed.to(out.dtype).view_as(x), gate_output


def multiply_by_experts(
    x: Float[Tensor, "b n I"],
    weight: Float[Tensor, "E I O"],
    bias: Float[Tensor, "E 1 O"] | None,
    experts: Int[Tensor, " b"],
) -> Float[Tensor, "b n O"]:
    """Multiply every block by the weight matrix of its expert."""
    if x.device.type == "cpu" and not torch.compiler.is_compiling():  # reading indices is cheaper than copying matrices
        matrices = weight.unbind()
        return torch.stack([
            rows @ matrices[n] if bias is None else torch.addmm(bias[n], rows, matrices[n])
            for rows, n in zip(x.unbind(), experts.tolist(), strict=True)
        ])  # fmt: skip
    chosen = weight.index_select(0, experts)
    return torch.bmm(x, chosen) if bias is None else torch.baddbmm(bias.index_select(0, experts), x, chosen)


def apply_feedforward(feedforward: Any, x: Float[Tensor, "... D"]) -> tuple[Float[Tensor, "... D"], GateOutput | None]:
    """Apply a position-wise network; also its gate output where it is a mixture of experts."""
    if getattr(feedforward, "experts_per_token", None) is None:
        return feedforward(x), None
    output: tuple[Tensor, GateOutput] = feedforward.route(x)
    return output


class InterLayerExperts(nn.Module):
    """Experts between recurrent layers, x + E(x); `experts` maps the index of the layer above to its experts."""

    def __init__(self, experts: Mapping[int, Experts], *, dropout: float = 0.0) -> None:
        super().__init__()
        self.below: Any = nn.ModuleDict({str(number): group for number, group in experts.items()})
        self.dropout = Dropout(dropout)

    def forward(
        self, number: int, x: Float[Tensor, "*rows D"], mask: Bool[Tensor, "*rows"] | None = None
    ) -> tuple[Float[Tensor, "*rows D"], list[Routing]]:
        """The input of layer `number`, and the routing of the experts below that layer, if there are any."""
        x, gate_output = self.route(number, x)
        return x, [] if gate_output is None else [Routing(self.below[str(number)], gate_output, mask)]

    def route(self, number: int, x: Float[Tensor, "*rows D"]) -> tuple[Float[Tensor, "*rows D"], GateOutput | None]:
        """Like `forward`, but with the gate output only: compiled regions return nothing but tensors."""
        if str(number) not in self.below:
            return x, None
        y, gate_output = self.below[str(number)].route(x)
        return x + self.dropout(y), gate_output

    def merge_steps(self, steps: Sequence[Mapping[int, GateOutput]], mask: Bool[Tensor, "B T"] | None) -> list[Routing]:
        """Concatenate the gate outputs of all steps of a sequence, which are given by layer index."""
        merged = []
        for number in steps[0]:
            parts = zip(*(gate_outputs[number] for gate_outputs in steps), strict=True)
            gate_output = GateOutput(*map(torch.cat, parts))
            merged.append(Routing(self.below[str(number)], gate_output, None if mask is None else mask.T))
        return merged


NO_EXPERTS = InterLayerExperts({})
