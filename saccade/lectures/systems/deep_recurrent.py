"""Checks on the deep recurrent systems of the BLEU table: Deep-Att and GNMT compute the formulas of their papers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from saccade.config.schema import Decoding
from saccade.data.batching.batch import Batch, Tokens
from saccade.data.tokenization.tokenizers import END, START, UNKNOWN, train_tokenizers
from saccade.layers.blocks.recurrence import BahdanauRecurrence
from saccade.layers.blocks.recurrent import CellName, Connections, RecurrentStack
from saccade.lectures.claims import (
    CheckResult,
    Comparison,
    build_result,
    check,
    expect_at_least,
    expect_equal,
    expect_near,
)
from saccade.lectures.references.basics import apply_linear, embed_tokens
from saccade.lectures.references.comparing import compare_gradients
from saccade.lectures.references.recurrent import (
    Direction,
    compute_additive_weights,
    predict_initial,
    run_recurrent_layer,
    step_cell,
)
from saccade.lectures.small import max_difference, randomize_parameters, sample_normal
from saccade.lectures.systems.systems import build_system, load_system
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.predict.decode import decode
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.search.greedy import compute_coverage_penalty, compute_length_penalty
from saccade.predict.search.request import Request
from saccade.predict.unknown import replace_unknown_words
from saccade.train.objectives.reward import compute_gleu, reward_loss, sample_outputs

SOURCE = torch.tensor([[5, 6, 7, 8, 9, 10, 11], [12, 13, 14, 15, 0, 0, 0]])  # 0 is padding
TARGET = torch.tensor([[1, 12, 13, 14, 15, 16], [1, 17, 18, 19, 20, 21]])  # begins with [START]
LENGTHS = (7, 4)
ROUNDING = 1e-9


class Translation(NamedTuple):
    """What a system computes for one sentence pair."""

    states: Tensor  # of the encoder (S, D)
    logits: Tensor  # (T, V)
    attention: Tensor  # (T, S)


class System(NamedTuple):
    """How the layers of a system are connected."""

    cell: CellName = "lstm"
    fast_forward: bool = False  # else residual connections from the third layer on
    alternate: bool = False  # every other encoder layer runs backward; else the lowest in both directions
    experts: Any = None  # between the layers: (module, index of the layer above, inputs) -> inputs of that layer

    def connect(self, parts: Any, number: int, below: Tensor, above: Tensor) -> Tensor:
        """The input of the next layer."""
        if self.fast_forward:
            return torch.cat((above, below), -1) @ parts.connections.joins[number].weight.T
        return above + below if number >= 2 else above

    def mix(self, parts: Any, number: int, x: Tensor) -> Tensor:
        """What the experts below a layer make of its input, where there are any."""
        return x if self.experts is None else self.experts(parts, number, x)

    def read(self, layers: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        """The encoder's states for x (S, D), and the last state of its last layer."""
        for number, layer in enumerate(layers.layers):
            x = self.mix(layers.between, number, x)
            backward: Direction = "backward" if self.alternate and number % 2 == 1 else "forward"
            direction: Direction = "both" if number == 0 and not self.alternate else backward
            y, last = run_recurrent_layer(self.cell, layer, x, direction)
            x = self.connect(layers, number, x, y)
        return x, last[0]

    def translate(self, net: Any, source: Tensor, target: Tensor) -> Translation:
        """Logits and attention for one pair: the lowest decoder layer attends, all layers get its context."""
        states, last = self.read(net.reader.stack, embed_tokens(net.reader.embedding, source))
        parts, hidden = net.writer.stack.recurrence, predict_initial(self.cell, net.writer.stack, last)
        score, outputs, attention = parts.cross.score, [], []
        for token in embed_tokens(net.writer.embedding, target):
            weights = compute_additive_weights(score, hidden[0][0], states @ score.key.weight.T)
            context, x = weights @ states, token
            for number, layer in enumerate(parts.layers):
                x = self.mix(net.writer.stack.between, number, x)
                hidden[number] = step_cell(self.cell, layer, torch.cat((x, context)), hidden[number])
                x = self.connect(parts, number, x, hidden[number][0])
            outputs.append(torch.tanh(apply_linear(parts.readout, torch.cat((x, context, token)))))
            attention.append(weights)
        return Translation(states, apply_linear(net.writer.output, torch.stack(outputs)), torch.stack(attention))


def compare_with(net: Model, system: System, name: str) -> list[Comparison]:
    """Compare encoder states, logits and attention for a padded batch with the formulas, one sentence at a time."""
    memory = net.reader(SOURCE, SOURCE > 0)
    logits = net.writer.head(net.writer(TARGET, torch.ones_like(TARGET, dtype=torch.bool), memory))
    state, steps, attention = net.writer.start(memory, capacity=TARGET.shape[1]), [], []
    for t in range(TARGET.shape[1]):
        step = net.writer.step(TARGET[:, t : t + 1], state, align=True)
        state = step.state
        steps.append(step.logits)
        attention.append(step.weights)
    found: dict[str, list[float]] = {"encoder states": [], "logits": [], "logits, word by word": [], "attention": []}
    every = []
    for row, length in enumerate(LENGTHS):
        expected = system.translate(net, SOURCE[row, :length], TARGET[row])
        every.append(expected.logits)
        weights = torch.stack([part[row] for part in attention if part is not None])
        found["encoder states"].append(max_difference(memory.states[row, :length], expected.states))
        found["logits"].append(max_difference(logits[row], expected.logits))
        found["logits, word by word"].append(max_difference(torch.stack(steps, 1)[row], expected.logits))
        found["attention"].append(max_difference(weights[:, :length], expected.attention))
        found["attention"].append(float(weights[:, length:].detach().abs().sum()))
    compared = [
        expect_near(f"{name}, {what}: difference from the formulas", max(values), 0, within=ROUNDING)
        for what, values in found.items()
    ]
    return [*compared, compare_gradients(name, net, logits, torch.stack(every))]


# ---- Deep-Att


DEEP_ATT = System(fast_forward=True, alternate=True)


@check(
    116,
    "S4:227,231",
    "Deep-Att + PosUnk: LSTMs in turn from left and right, linear maps past all of them, unknown words replaced.",
    formula=r"f^{k+1} = W [h^k ; f^k], \quad h^k = \mathrm{LSTM}(f^k)",
    code=(Connections, RecurrentStack, BahdanauRecurrence, replace_unknown_words),
    recipes=("deep-att",),
    breaks=(
        "no-fast-forward-connections",
        "one-direction-in-turn",
        "unknown-words-by-position",
        "context-in-one-layer",
        "uniform-attention",
        "attention-without-gradient",
    ),
)
def deep_att() -> CheckResult:
    net = build_system("deep-att")
    randomize_parameters(net, scale=0.1)
    return build_result(
        *compare_with(net, DEEP_ATT, "Deep-Att"),
        *_find_linear_path(net.reader.stack),
        *_replace_unknown(),
    )


@torch.no_grad()
def _find_linear_path(stack: RecurrentStack) -> list[Comparison]:
    """All words reach all states; with all LSTMs switched off, a product of matrices is left."""
    x = sample_normal(1, 6, 12)
    moved = x.repeat(6, 1, 1)
    moved[torch.arange(6), torch.arange(6)] += 1
    reached = ((stack(moved, None)[0] - stack(x, None)[0]).abs().amax(-1) > 1e-12).sum()
    for layer in stack.layers:
        for parameter in layer.parameters():
            parameter.zero_()
    path = torch.eye(12, dtype=torch.float64)
    joins: Any = stack.connections.joins
    for join in joins:
        path = join.weight[:, 12:] @ path
    difference = max_difference(stack(x, None)[0], x @ path.T)
    return [
        expect_equal("pairs of words of 6 x 6 where a state depends on the other word", int(reached), 36),
        expect_near("without recurrence: difference from the product of the W", difference, 0, within=ROUNDING),
        expect_at_least("size of that product", float(path.abs().max()), 1e-3),
    ]


@torch.no_grad()
def _replace_unknown() -> list[Comparison]:
    """Let a model with a random encoder write only unknown words: source words replace them, by its attention."""
    words = ["tokenizer.kind=words", "tokenizer.size=50", "tokenizer.shared=false", "writer.tie=output"]
    recipe = load_system("deep-att", words)
    tokenizers = train_tokenizers(recipe.tokenizer, lambda: iter([("one two three four five", "eins zwei drei")]))
    sizes = tokenizers.source.size, tokenizers.target.size
    net = build(recipe, source_size=sizes[0], target_size=sizes[1]).double().eval()
    randomize_parameters(net, scale=0.3)
    readout, output = net.writer.stack.recurrence.readout, net.writer.output
    readout.weight.zero_()
    output.weight[UNKNOWN] = 9 * torch.tanh(readout.bias).sign()
    net.writer.stack.recurrence.cross.score.energy.weight *= 20  # attention to few words
    texts = ["three Kilimanjaro one Zanzibar four two", "Zanzibar two one Kilimanjaro five", "five four Zanzibar one"]
    target, decoding = torch.tensor([START, *[UNKNOWN] * 3]), Decoding(beam=1, max_length=4, replace_unknown=True)
    expected, places = [], set()
    for text in texts:
        attention = DEEP_ATT.translate(net, torch.tensor(tokenizers.source.encode(text)), target).attention
        best = attention[:, : len(text.split())].argmax(1).tolist()
        expected.append(" ".join(text.split()[place] for place in best))
        places.update(best)
    found = Predictor(net, recipe=recipe, tokenizers=tokenizers).predict(texts, decoding=decoding)
    return [
        expect_equal("outputs of four unknown words: those that they attend to", "; ".join(found), "; ".join(expected)),
        expect_at_least("positions that are attended to", len(places), 2),
    ]


# ---- GNMT


GNMT = System()
PENALTIES = Decoding(beam=4, n_best=4, length_penalty=0.8, coverage_penalty=0.3, max_length=5)


@check(
    117,
    "S4:228,232",
    "GNMT + RL: deep residual LSTMs, attention from the lowest decoder layer for all, length and coverage penalties.",
    formula=r"s(Y, X) = \frac{\log P(Y \,|\, X)}{lp(Y)} + \beta \sum_i \log \min(\sum_j p_{i,j}, 1)",
    code=(Connections, BahdanauRecurrence, compute_length_penalty, compute_coverage_penalty, compute_gleu),
    recipes=("gnmt", "gnmt-reward"),
    breaks=(
        "no-recurrent-residuals",
        "one-direction-at-the-bottom",
        "context-in-one-layer",
        "no-length-penalty",
        "no-coverage-penalty",
        "reward-is-precision",
        "uniform-attention",
    ),
)
def gnmt() -> CheckResult:
    net = build_system("gnmt")
    randomize_parameters(net, scale=0.1)
    return build_result(*compare_with(net, GNMT, "GNMT"), *_compare_scores(net), *_compare_rewards(net))


@torch.no_grad()
def _compare_scores(net: Model) -> list[Comparison]:
    """Compare the scores of beam search with equation 14 of Wu et al. 2016; END counts as a word."""
    batch = Batch({"source": Tokens(SOURCE, SOURCE > 0)})
    found = decode(net, Request([5, 5], PENALTIES, batch)).hypotheses
    worst, ordered = 0.0, True
    for row, (length, hypotheses) in enumerate(zip(LENGTHS, found, strict=True)):
        scores = []
        for item in hypotheses:
            ids = torch.tensor([*item.ids, END])
            expected = GNMT.translate(net, SOURCE[row, :length], torch.tensor([START, *item.ids]))
            log_prob = expected.logits.log_softmax(-1).gather(1, ids[:, None]).sum()
            coverage = expected.attention.sum(0).clamp(max=1).log().sum()
            scores.append(float(log_prob / ((5 + len(ids)) / 6) ** 0.8 + 0.3 * coverage))
            worst = max(worst, abs(scores[-1] - item.score))
        ordered = ordered and scores == sorted(scores, reverse=True)
    return [
        expect_equal("hypotheses of two sentences", sum(map(len, found)), 8),
        expect_near("scores of beam search: difference from equation 14", worst, 0, within=1e-4),
        expect_equal("best score first", str(ordered), "True"),
    ]


def _compare_rewards(net: Model) -> list[Comparison]:
    """Compare RL with its definition: the reward is GLEU, and its gradient that of -(r - mean r) log P(Y | X)."""
    reference = torch.tensor([[12, 13, 14, 15, 16, END], [17, 18, END, 0, 0, 0]])
    batch = Batch({"source": Tokens(SOURCE, SOURCE > 0), "target": Tokens(reference, reference > 0)})
    with torch.no_grad():
        memory = net.read(batch).repeat_rows(3)
        outputs = sample_outputs(net.writer, memory, reference, torch.Generator().manual_seed(1)).unflatten(0, (2, 3))
    rewards = torch.tensor([[_compute_gleu(ids, row) for ids in rows] for rows, row in _list_pairs(outputs, reference)])
    log_probs = torch.stack([_compute_log_prob(net, row, ids) for row, rows in enumerate(outputs) for ids in rows])
    loss = -((rewards - rewards.mean(1, keepdim=True)) * log_probs.view(2, 3)).mean(1).sum()
    terms = reward_loss(net, batch, torch.Generator().manual_seed(1), samples=3)
    weights = [net.writer.output.weight, net.writer.stack.recurrence.layers[0].weight_hh_l0]
    ours, theirs = (torch.autograd.grad(x, weights) for x in (terms["expected-reward"].sum, loss))
    near, full = torch.randint(4, 7, (2, 3, 8)), torch.randint(4, 7, (2, 8))
    near[:, 1, 5:], near[:, 2, 2:] = 0, 0  # shorter than the reference
    gleu = compute_gleu(near, full)
    exact = torch.tensor([[_compute_gleu(ids, row) for ids in rows] for rows, row in _list_pairs(near, full)])
    return [
        expect_near(
            "reward: difference from min(precision, recall) of n-grams", max_difference(gleu, exact), 0, within=1e-6
        ),
        expect_near("mean reward of 6 samples", float(terms["reward"].sum) / 6, float(rewards.mean()), within=1e-6),
        expect_near(
            "gradient of RL: difference from the formula", max(map(max_difference, ours, theirs)), 0, within=1e-4
        ),
        expect_at_least("size of that gradient", float(theirs[0].abs().max()), 1e-3),
    ]


def _list_pairs(outputs: Tensor, references: Tensor) -> Iterator[tuple[list[list[int]], list[int]]]:
    return zip(outputs.tolist(), references.tolist(), strict=True)


def _compute_gleu(output: list[int], reference: list[int]) -> float:
    ours, theirs = _count_ngrams(output), _count_ngrams(reference)
    matches = (ours & theirs).total()
    return min(matches / max(ours.total(), 1), matches / max(theirs.total(), 1))


def _compute_log_prob(net: Model, row: int, output: Tensor) -> Tensor:
    """log P(Y | X) of a sample, by the formulas."""
    ids = output[output > 0]
    logits = GNMT.translate(net, SOURCE[row, : LENGTHS[row]], torch.cat((torch.tensor([START]), ids[:-1]))).logits
    return logits.log_softmax(-1).gather(1, ids[:, None]).sum()


def _count_ngrams(ids: list[int]) -> Counter[tuple[int, ...]]:
    words = [token for token in ids if token > END]
    return Counter(tuple(words[i : i + n]) for n in range(1, 5) for i in range(len(words) - n + 1))
