"""Megatron-LM, Turing-NLG, Gopher and banded GPT-3 against a second implementation: one head and position at a time."""

import math

import pytest
import torch
from torch import Tensor

from saccade.config.load import load
from saccade.config.schema import Recipe
from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.tokenizers import START
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.train.objectives.objectives import next_token_loss

V, T, D, H, FF, LAYERS = 19, 9, 12, 3, 17, 2
Weights = dict[str, Tensor]
NAMES = ("megatron", "turing-nlg", "gopher", "gpt3")


@pytest.fixture(params=NAMES)
def model(request: pytest.FixtureRequest) -> tuple[Recipe, Model]:
    """A tiny recipe with random norms and biases: zeros and ones would hide mistakes."""
    sizes = {"layers": LAYERS, "dim": D, "heads": H, "ff": FF}
    sizes |= {"window": '["none", 3]'} if request.param == "gpt3" else {}
    recipe = load(request.param, tiny=True, overrides=[f"writer.stack.{name}={value}" for name, value in sizes.items()])
    made = build(recipe, source_size=V, target_size=V).double().eval()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return recipe, made


def normalize(x: Tensor, weights: Weights, name: str) -> Tensor:
    """(x - mean) / sqrt(variance + e) g + b; of Gopher, x / sqrt(mean of squares + e) g."""
    gain, bias = weights[f"{name}.weight"], weights.get(f"{name}.bias")
    if bias is None:
        return x / torch.sqrt((x * x).mean() + 1e-6) * gain
    x = x - x.mean()
    return x / torch.sqrt((x * x).mean() + 1e-5) * gain + bias


def activate(x: Tensor, kind: str) -> Tensor:
    if kind == "gelu":
        return x * (1 + torch.erf(x / math.sqrt(2))) / 2
    return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def linear(x: Tensor, weights: Weights, name: str) -> Tensor:
    y = weights[f"{name}.weight"] @ x
    bias = weights.get(f"{name}.bias")
    return y if bias is None else y + bias


def sinusoid(distance: int) -> Tensor:
    """sin(d / 10000^(2i/D)), cos(d / 10000^(2i/D)) for i = 0, 1, 2 ..., which ours has as float32."""
    angles = [distance / 10000 ** (2 * i / D) for i in range(D // 2)]
    return torch.tensor([f(angle) for angle in angles for f in (math.sin, math.cos)]).double()


def score(q: Tensor, k: Tensor, away: int, weights: Weights, block: str, head: int) -> Tensor:
    """q . k / sqrt(E), and for Gopher (q / sqrt(E) + v) . W r(j - i) beside it."""
    width = D // H
    total = q @ k / math.sqrt(width)
    term = f"{block}.self.heads.term"
    if f"{term}.project.weight" not in weights:
        return total
    place = (weights[f"{term}.project.weight"] @ sinusoid(away))[head * width : (head + 1) * width]
    return total + (q / math.sqrt(width) + weights[f"{term}.bias"][head, 0]) @ place


def attend(x: list[Tensor], weights: Weights, block: str, window: int | None) -> list[Tensor]:
    project, bias = weights[f"{block}.self.project.weight"], weights.get(f"{block}.self.project.bias")
    heads = []
    for head in range(H):
        q, k, v = (
            [project[head, part] @ y + (0 if bias is None else bias[head, part]) for y in x] for part in range(3)
        )
        mixed = []
        for i in range(T):
            seen = [j for j in range(i + 1) if window is None or i - j <= window]
            shares = torch.stack([score(q[i], k[j], j - i, weights, block, head) for j in seen]).exp()
            mixed.append(sum(share * v[j] for share, j in zip(shares / shares.sum(), seen, strict=True)))
        heads.append(mixed)
    return [linear(torch.cat([mixed[i] for mixed in heads]), weights, f"{block}.self.heads.out") for i in range(T)]


def explicit(recipe: Recipe, weights: Weights, ids: list[int]) -> Tensor:
    """The logits at each position of one sequence."""
    stack = recipe.writer.stack
    table = weights["writer.embedding.tokens.weight"]
    places = weights.get("writer.embedding.positions.table.weight")
    x = [table[token] + (0 if places is None else places[at]) for at, token in enumerate(ids)]
    for number in range(LAYERS):
        block = f"writer.stack.blocks.{number}"
        window = None if stack.window is None else stack.window[number % len(stack.window)]
        before = [normalize(y, weights, f"{block}.residuals.0.norm") for y in x]
        more = attend(before, weights, block, None if window == "none" else window)
        x = [one + other for one, other in zip(x, more, strict=True)]
        for at, y in enumerate(x):
            inner = linear(normalize(y, weights, f"{block}.residuals.1.norm"), weights, f"{block}.feedforward.up")
            x[at] = y + linear(activate(inner, stack.activation), weights, f"{block}.feedforward.down")
    return torch.stack([table @ normalize(y, weights, "writer.stack.norm") for y in x])


IDS = torch.randint(4, V, (2, T), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_logits_are_those_of_the_second_implementation(model: tuple[Recipe, Model]) -> None:
    recipe, made = model
    ours = made.writer.head(made.writer(IDS, None, None))
    theirs = torch.stack([explicit(recipe, made.state_dict(), row) for row in IDS.tolist()])
    torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)


@torch.no_grad()
def test_steps_are_those_of_the_second_implementation(model: tuple[Recipe, Model]) -> None:
    recipe, made = model
    theirs = explicit(recipe, made.state_dict(), IDS[0].tolist())
    logits, state, _ = made.writer.step(IDS[:1, :4], made.writer.start(None, rows=1, capacity=T))
    for at in range(4, T):
        torch.testing.assert_close(logits[0], theirs[at - 1], atol=1e-9, rtol=1e-9)
        logits, state, _ = made.writer.step(IDS[:1, at : at + 1], state)


def test_gradients_are_those_of_the_second_implementation(model: tuple[Recipe, Model]) -> None:
    recipe, made = model
    target = IDS[0].tolist()
    batch = Batch({"target": pad([target])})
    loss = next_token_loss(made, batch, torch.Generator(), label_smoothing=0.0)["next-token"].sum
    names, parameters = zip(*made.named_parameters(), strict=True)
    ours = torch.autograd.grad(loss, parameters)
    logits = explicit(recipe, dict(zip(names, parameters, strict=True)), [START, *target[:-1]])
    theirs = torch.autograd.grad(
        torch.nn.functional.cross_entropy(logits, torch.tensor(target), reduction="sum"), parameters
    )
    for name, one, other in zip(names, ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-7, rtol=1e-7, msg=name)
