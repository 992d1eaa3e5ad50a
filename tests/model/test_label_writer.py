"""Classification heads: padded and packed rows agree, and equal those of BERT, RoBERTa and GPT-2."""

import pytest
import torch

from saccade.config.load import validate
from saccade.data.batching.batch import Batch, pad
from saccade.layers.memory import Memory
from saccade.model.build.model import build
from saccade.model.writers.labels import LabelWriter, TagWriter, pool_states
from saccade.train.batches.pack import pack_batch

LENGTHS = [5, 1, 3]


def memories(budget=None):
    """The same states in padded and in packed rows."""
    batch = Batch({"source": pad([[7] * length for length in LENGTHS])})
    packed = pack_batch(batch, budget=budget)["source"]
    states = torch.randn(3, 5, 7)
    row = torch.randn(1, packed.ids.shape[1], 7)
    row[0, : sum(LENGTHS)] = states[batch["source"].mask]
    return Memory(states, batch["source"].mask), Memory(row, packed.mask)


@pytest.mark.parametrize("how", ["first", "mean", "last", "before-end"])
@pytest.mark.parametrize("budget", [None, 64, 1024])
def test_padded_and_packed_sequences_are_pooled_alike(how, budget):
    padded, packed = memories(budget)
    torch.testing.assert_close(pool_states(packed, how)[:3], pool_states(padded, how))


def test_each_pooling_is_correct():
    padded, _ = memories()
    states = padded.states
    torch.testing.assert_close(pool_states(padded, "first")[2], states[2, 0])
    torch.testing.assert_close(pool_states(padded, "last")[2], states[2, 2])
    torch.testing.assert_close(pool_states(padded, "before-end")[2], states[2, 1])
    torch.testing.assert_close(pool_states(padded, "before-end")[1], states[1, 0])
    torch.testing.assert_close(pool_states(padded, "mean")[2], states[2, :3].mean(0))


def recipe(writer, stack=None, **reader):
    stack = stack or {"layers": 2, "dim": 12, "heads": 3, "ff": 17, "dropout": 0.0}
    objective = {"label": "label", "number": "regress", "tags": "tag"}[writer["kind"]]
    values = {"task": "classify", "reader": {"stack": stack, "dropout": 0.0, **reader}, "writer": writer}
    return validate({**values, "objectives": [{"kind": objective}]})


STACKS = [
    None,
    {"kind": "recurrent", "layers": 1, "dim": 12, "dropout": 0.0},
    {"kind": "convolution", "layers": 2, "dim": 12, "dropout": 0.0},
]


@pytest.mark.parametrize("stack", STACKS, ids=["transformer", "recurrent", "convolution"])
@pytest.mark.parametrize("kind", ["label", "number", "tags"])
def test_every_reader_can_be_labelled(kind, stack):
    model = build(recipe({"kind": kind}, stack), source_size=11, target_size=1 if kind == "number" else 5).eval()
    batch = Batch({"source": pad([[4, 5, 6, 2], [7, 2]])})
    numbers = model.writer(model.read(batch))
    assert numbers.shape == {"label": (2, 5), "number": (2, 1), "tags": (2, 4, 5)}[kind]
    alone = model.writer(model.read(Batch({"source": pad([[7, 2]])})))
    torch.testing.assert_close(numbers[1:, :2] if kind == "tags" else numbers[1:], alone)
    assert model.capabilities.packed_rows == (stack is None)


def test_a_causal_reader_does_not_attend_ahead():
    made = [
        build(recipe({"kind": "tags"}, causal=causal), source_size=11, target_size=5).eval() for causal in (True, False)
    ]
    for model, blind in zip(made, (True, False), strict=True):
        one, other = (model.read(Batch({"source": pad([[4, 5, last]])})).states for last in (6, 7))
        assert torch.equal(one[:, :2], other[:, :2]) == blind


def test_heads_are_those_of_bert_roberta_and_gpt2():
    transformers = pytest.importorskip("transformers")
    states, mask = torch.randn(2, 5, 8), torch.ones(2, 5, dtype=torch.bool)
    sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=9, vocab_size=11)

    bert = transformers.BertForSequenceClassification(transformers.BertConfig(**sizes, num_labels=3)).eval()
    ours = LabelWriter(8, size=3, pooling="first", hidden=8, dropout=0.1).eval()
    ours.hidden.load_state_dict(bert.bert.pooler.dense.state_dict())
    ours.output.load_state_dict(bert.classifier.state_dict())
    torch.testing.assert_close(ours(Memory(states, mask)), bert.classifier(bert.bert.pooler(states)))

    config = transformers.RobertaConfig(**sizes, num_labels=3, pad_token_id=1)
    roberta = transformers.RobertaForSequenceClassification(config).eval().classifier
    ours.hidden.load_state_dict(roberta.dense.state_dict())
    ours.output.load_state_dict(roberta.out_proj.state_dict())
    torch.testing.assert_close(ours(Memory(states, mask)), roberta(states))

    gpt2 = torch.nn.Linear(8, 3, bias=False)
    ours = LabelWriter(8, size=3, pooling="before-end", hidden=None, dropout=0.1, bias=False).eval()
    ours.load_state_dict({"output.weight": gpt2.weight})
    mask[1, 3:] = False
    expected = gpt2(states)[torch.arange(2), mask.sum(1) - 2]  # theirs have no END
    torch.testing.assert_close(ours(Memory(states, mask)), expected)


def test_a_sigmoid_layer_is_one():
    head = TagWriter(4, size=2, hidden=3, activation="sigmoid", dropout=0.0)
    x = torch.randn(1, 2, 4)
    expected = head.output(torch.sigmoid(head.hidden(x)))
    torch.testing.assert_close(head(Memory(x, torch.ones(1, 2, dtype=torch.bool))), expected)
