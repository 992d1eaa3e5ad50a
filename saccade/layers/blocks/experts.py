"""Sparsely gated mixture of experts (Shazeer et al. 2017): many networks, of which each position passes a few.

N positions, E experts, k of them for each position.
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

# ---- How evenly experts are used.
#
# Two losses of Shazeer et al. 2017 (section 4, appendix A), the squared coefficients of variation of the importance of
# the experts (the sum of their weights) and of their load (how many positions they get, as a smooth function of the
# gate). They were taken, and not the product of share and probability of later papers, since they belong to noisy
# gating: with its noise the load itself has a gradient. Without noise only the importance has one.
#
# Padding is not counted. It passes the experts as every position does, and nobody reads what they give for it.

Uses = dict["Experts", Float[Tensor, "3 E"]]  # of each group of experts: importance, load and positions, summed


class Choice(NamedTuple):
    """Which experts each position passes: N positions, E experts, k of them for each."""

    experts: Int[Tensor, "N k"]
    weights: Float[Tensor, "N k"]  # of each position they sum to 1
    load: Float[Tensor, "N E"]  # the probability that an expert is chosen, were the noise drawn again


class Routing(NamedTuple):
    """What one group of experts chose for the positions of a pass, of which some are `real`; None: all are."""

    experts: "Experts"
    choice: Choice
    real: Bool[Tensor, "..."] | None

    def use(self) -> Float[Tensor, "3 E"]:
        """Importance, load and positions of each expert, summed over the real positions."""
        nothing = torch.zeros_like(self.choice.load)
        importance = nothing.scatter(1, self.choice.experts, self.choice.weights)
        each = torch.stack((importance, self.choice.load, nothing.scatter(1, self.choice.experts, 1.0)))
        if self.real is not None:
            each = each * self.real.flatten()[:, None]
        return each.sum(1)


def sum_use(routing: Iterable[Routing]) -> Uses:
    """How much each group of experts was used in one or more passes."""
    total: Uses = {}
    for one in routing:
        used = one.use()
        total[one.experts] = total[one.experts] + used if one.experts in total else used
    return total


def unevenness(values: Float[Tensor, " E"]) -> Float[Tensor, ""]:
    """The squared coefficient of variation, (standard deviation / mean)^2."""
    return values.var(correction=0) / values.mean().square().clamp(min=1e-10)


def balance_loss(uses: Mapping["Experts", Float[Tensor, "3 E"]]) -> Float[Tensor, ""]:
    """Sum over all groups of experts of weight * (CV(importance)^2 + CV(load)^2)."""
    parts = [one.balance * (unevenness(used[0]) + unevenness(used[1])) for one, used in uses.items()]
    return torch.stack(parts).sum()


def relative_load(used: Float[Tensor, "3 E"]) -> Float[Tensor, " E"]:
    """How many positions each expert got, in units of their mean."""
    positions = used[2].detach()
    return positions / positions.mean().clamp(min=1e-10)


def busiest(uses: Mapping["Experts", Float[Tensor, "3 E"]]) -> Float[Tensor, ""]:
    """The largest relative load of all experts."""
    return torch.stack([relative_load(used).max() for used in uses.values()]).max()


# ----


LEAST_NOISE = 0.01  # so that no gate becomes so sure that it can learn no more


class Places(NamedTuple):
    """Where pairs of a position and an expert stand: in blocks of one expert each, all of one size."""

    slots: Int[Tensor, " P"]  # the row of each pair in all blocks, one behind the other
    owners: Int[Tensor, " b"]  # the expert of each block
    size: int  # rows of a block


class Gate(nn.Module):
    """Noisy top-k gating (there section 2.1): G(x) = softmax(top k of H(x)), where in training

    H(x) = x Wg + normal() * softplus(x Wn). Both matrices begin as zeros, so that at first all experts get work.
    """

    def __init__(self, dim: int, *, count: int, chosen: int, noise: bool = True) -> None:
        super().__init__()
        self.chosen = chosen
        self.clean = nn.Linear(dim, count, bias=False)
        self.spread = nn.Linear(dim, count, bias=False) if noise else None
        if self.spread is not None:  # without noise, equal experts would stay equal
            nn.init.zeros_(self.clean.weight)
            nn.init.zeros_(self.spread.weight)

    def forward(self, x: Float[Tensor, "N D"]) -> Choice:
        with torch.autocast(x.device.type, enabled=False):  # in bfloat16 different scores would become equal
            x = x.to(self.clean.weight.dtype)
            clean = self.clean(x)
            if self.spread is None or not self.training:
                best = clean.topk(self.chosen)
                load = torch.zeros_like(clean).scatter(1, best.indices, 1.0)
                return Choice(best.indices, best.values.softmax(-1), load)
            spread = F.softplus(self.spread(x)) + LEAST_NOISE
            noisy = clean + torch.randn_like(clean) * spread
            best = noisy.topk(self.chosen + 1)
            last, next_one = best.values[:, -2:].split(1, -1)
            # An expert is chosen where it beats the k-th best of the others (there appendix A, equation 8).
            load = torch.special.ndtr((clean - torch.where(noisy > next_one, next_one, last)) / spread)
            return Choice(best.indices[:, :-1], best.values[:, :-1].softmax(-1), load)


def places(experts: Int[Tensor, "N k"], count: int) -> Places:
    """Blocks enough for any choice of experts, in a shape that depends on the number of positions alone.

    P pairs are laid into blocks of ceil(P / E) rows, the last block of each expert filled in part: no more than 2 E - 1
    blocks, whoever is chosen. So no position is left out, no device is asked, and with one position there are only k
    blocks of one row.
    """
    pairs = experts.flatten()
    size = -(-pairs.shape[0] // count)
    most = (pairs.shape[0] + count * (size - 1)) // size
    mine = pairs[:, None] == torch.arange(count, device=pairs.device)
    before = mine.cumsum(0).gather(1, pairs[:, None])[:, 0] - 1  # pairs of the same expert that stand before
    blocks = (mine.sum(0) + size - 1) // size
    ends = blocks.cumsum(0)
    slots = (ends - blocks).index_select(0, pairs) * size + before
    owners = (torch.arange(most, device=pairs.device)[:, None] >= ends).sum(1).clamp(max=count - 1)
    return Places(slots, owners, size)


class Experts(nn.Module):
    """y = sum over the k chosen experts of G(x)_i E_i(x) (there equation 1); E_i(x) = f(x W1_i + b1_i) W2_i + b2_i.

    It takes the place of a `FeedForward`. No position is dropped, in training or after it, so none depends on what else
    is in the batch. `balance` is the weight of the loss that gives all experts work (`layers/blocks/experts.py`).
    """

    is_gated = False

    def __init__(
        self,
        dim: int,
        *,
        hidden: int,
        gate: Gate,
        activation: Activation = "relu",
        dropout: float = 0.0,
        bias: bool = True,
        balance: float = 0.0,
    ) -> None:
        super().__init__()
        count = gate.clean.out_features
        self.gate, self.activation, self.balance, self.count = gate, activation, balance, count
        self.up, self.down = (
            nn.Parameter(torch.empty(count, dim, hidden)),
            nn.Parameter(torch.empty(count, hidden, dim)),
        )
        self.up_bias = nn.Parameter(torch.zeros(count, 1, hidden)) if bias else None
        self.down_bias = nn.Parameter(torch.zeros(count, 1, dim)) if bias else None
        self.dropout = Dropout(dropout)
        for weight in (*self.up.data, *self.down.data):
            nn.init.xavier_uniform_(weight)

    @property
    def hidden(self) -> int:
        return self.up.shape[-1]

    @property
    def experts_per_token(self) -> int:
        return self.gate.chosen

    @property
    def share_per_token(self) -> float:
        """The share of the experts' parameters that a token passes."""
        return self.gate.chosen / self.count

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        return self.routed(x)[0]

    def describe(self) -> FeedForwardWeights:
        raise Unsupported("each position chooses its experts")

    def routed(self, x: Float[Tensor, "... D"]) -> tuple[Float[Tensor, "... D"], Choice]:
        """The same, and which experts were chosen."""
        rows = x.reshape(-1, x.shape[-1])
        choice: Choice = self.gate(rows)
        at = places(choice.experts, self.count)
        pairs = rows[:, None].expand(-1, choice.experts.shape[1], -1).flatten(0, 1)
        blocks = rows.new_zeros(at.owners.shape[0] * at.size, rows.shape[1]).index_copy(0, at.slots, pairs)
        hidden = products(blocks.unflatten(0, (-1, at.size)), self.up, self.up_bias, at.owners)
        hidden = self.dropout(ACTIVATIONS[self.activation](hidden))
        out = products(hidden, self.down, self.down_bias, at.owners).flatten(0, 1).index_select(0, at.slots)
        mixed = (out.unflatten(0, choice.experts.shape) * choice.weights[..., None]).sum(1)
        return mixed.to(out.dtype).view_as(x), choice


def products(
    x: Float[Tensor, "b n I"],
    weight: Float[Tensor, "E I O"],
    bias: Float[Tensor, "E 1 O"] | None,
    owners: Int[Tensor, " b"],
) -> Float[Tensor, "b n O"]:
    """Every block times the matrix of its expert."""
    if x.device.type == "cpu" and not torch.compiler.is_compiling():  # where asking costs less than copying matrices
        matrices = weight.unbind()
        return torch.stack([
            rows @ matrices[n] if bias is None else torch.addmm(bias[n], rows, matrices[n])
            for rows, n in zip(x.unbind(), owners.tolist(), strict=True)
        ])  # fmt: skip
    chosen = weight.index_select(0, owners)
    return torch.bmm(x, chosen) if bias is None else torch.baddbmm(bias.index_select(0, owners), x, chosen)


def routed(feedforward: Any, x: Float[Tensor, "... D"]) -> tuple[Float[Tensor, "... D"], Choice | None]:
    """What any network that each position passes alone gives, and which experts were chosen where it has some."""
    if getattr(feedforward, "experts_per_token", None) is None:
        return feedforward(x), None
    found: tuple[Tensor, Choice] = feedforward.routed(x)
    return found


class Between(nn.Module):
    """Experts between recurrent layers, x + E(x), by the number of the layer that reads what they give."""

    def __init__(self, experts: Mapping[int, Experts], *, dropout: float = 0.0) -> None:
        super().__init__()
        self.below: Any = nn.ModuleDict({str(number): one for number, one in experts.items()})
        self.dropout = Dropout(dropout)

    def forward(
        self, number: int, x: Float[Tensor, "*rows D"], real: Bool[Tensor, "*rows"] | None = None
    ) -> tuple[Float[Tensor, "*rows D"], list[Routing]]:
        """What layer `number` reads, and what experts chose for it, if there are any below that layer."""
        x, choice = self.routed(number, x)
        return x, [] if choice is None else [Routing(self.below[str(number)], choice, real)]

    def routed(self, number: int, x: Float[Tensor, "*rows D"]) -> tuple[Float[Tensor, "*rows D"], Choice | None]:
        """The same inside a compiled region, which returns tensors alone."""
        if str(number) not in self.below:
            return x, None
        y, choice = self.below[str(number)].routed(x)
        return x + self.dropout(y), choice

    def join_steps(self, steps: Sequence[Mapping[int, Choice]], real: Bool[Tensor, "B T"] | None) -> list[Routing]:
        """The choices of all steps of a sequence together, by the numbers of layers."""
        joined = []
        for number in steps[0]:
            parts = zip(*(choices[number] for choices in steps), strict=True)
            choice = Choice(*map(torch.cat, parts))
            joined.append(Routing(self.below[str(number)], choice, None if real is None else real.T))
        return joined


NOTHING_BETWEEN = Between({})
