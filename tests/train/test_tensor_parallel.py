import random
import socket
from types import SimpleNamespace

import pytest
import split_training
import torch
from split_training import (
    CHANGES,
    Trial,
    build_model,
    compare,
    count_communication,
    count_sent,
    describe_parameters,
    train,
)

from saccade.config.load import load
from saccade.errors import SaccadeError
from saccade.layers.blocks.lowrank import attach_lora
from saccade.model.build.model import build
from saccade.plan.layouts import count_activation_bytes
from saccade.train.distributed.tensor import check_tensor_parallel

TOLERANCE = 1e-10
TENSOR_2, TENSOR_4 = (("tensor",), (2,)), (("tensor",), (4,))
TWICE_TENSOR_2, SHARDED_TENSOR_2 = (("copy", "tensor"), (2, 2)), (("shard", "tensor"), (2, 2))
SMALL = ("data.max_length=16", "writer.stack.dim=16", "writer.stack.layers=1")
# Every recipe whose stacks are all Transformers, except larger forms of the same architecture.
RECIPES = [
    "albert", "bert", "classify", "gopher", "gpt2", "gpt3", "listen-transformer", "llama", "mask-predict", "megatron",
    "multi30k", "nat", "probe", "roberta", "sasrec", "set-encoder", "shakespeare",
    "show-attend-tell-transformer", "smiles", "t5", "t5-1.0", "tag", "tatoeba", "transformer", "turing-nlg", "vit",
    "vit-masked",
]  # fmt: skip
TWO_HEADS = ("llama", "sasrec")  # of these, tensor parallelism takes at most two processes


def start_workers(processes, count):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return split_training.Workers(processes, count, port)


@pytest.fixture(scope="module")
def two(processes):
    workers = start_workers(processes, 2)
    yield workers
    workers.stop()


@pytest.fixture(scope="module")
def four(processes):
    workers = start_workers(processes, 4)
    yield workers
    workers.stop()


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def check_equal(trial, outcomes, *, random_state=True):
    """All processes have the losses, gradients, weights and random numbers of one process."""
    expected = train(trial)
    for outcome in outcomes:
        differences = compare(outcome, expected)
        assert max(differences.values()) <= TOLERANCE, differences
        assert not random_state or torch.equal(outcome.random_state, expected.random_state)


# ---- training


@pytest.fixture(scope="module")
def small_language_model(cache):
    return Trial.load("gpt2", *SMALL, "objectives=[{kind='next-token', label_smoothing=0.1}]", distinct=1)


@pytest.mark.parametrize("options", [{}, {"sequence_parallel": False, "meta": True}], ids=["", "replicated stream"])
def test_language_model_split_over_two_processes_trains_like_one(two, small_language_model, options):
    check_equal(small_language_model, two(train, small_language_model, TENSOR_2, **options))


def test_whole_dropout_mask_matters(two, small_language_model):
    find_mistake(two, small_language_model, "equal dropout masks")


@pytest.mark.slow
@pytest.mark.parametrize("change", [name for name in CHANGES if name])
def test_every_mistake_is_found(two, small_language_model, change):
    find_mistake(two, small_language_model, change)


def find_mistake(two, trial, change):
    expected = train(trial)

    outcome = two(train, trial, TENSOR_2, change=change)[0]

    parameters = outcome.weights.keys()
    assert parameters != expected.weights.keys() or max(compare(outcome, expected).values()) > 1e-4


@pytest.mark.slow
def test_encoder_decoder_with_meta_device_and_packed_rows_trains_like_one_process(two):
    trial = Trial.load("multi30k", "writer.stack.norm='post'", "train.recompute=true", distinct=1, packed=True)

    check_equal(trial, two(train, trial, TENSOR_2, meta=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_recipe_split_over_processes_trains_like_one(four, name):
    trial = Trial.load(name)

    check_equal(trial, four(train, trial, TWICE_TENSOR_2))
    check_equal(trial, four(train, trial, SHARDED_TENSOR_2), random_state=False)
    if name not in TWO_HEADS:
        check_equal(trial, four(train, trial, TENSOR_4))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["megatron", "transformer", "bert", "vit", "gopher"])
@pytest.mark.parametrize("options", [{"sequence_parallel": False}, {"meta": True}], ids=["replicated stream", "meta"])
def test_recipe_split_in_another_way_trains_like_one(four, name, options):
    trial = Trial.load(name)

    check_equal(trial, four(train, trial, TENSOR_4, **options))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "overrides", "packed"),
    [
        ("transformer", (), True),
        ("bert", (), True),
        ("transformer", ("train.recompute=true",), False),
        ("gpt3", ("train.recompute=true",), True),
        ("albert", ("train.optimizer={kind='lamb'}",), False),
        ("llama", ("writer.output_bias=true", "objectives=[{kind='next-token', label_smoothing=0.2}]"), False),
        ("mask-predict", ("objectives=[{kind='fill', alpha=3.0}]",), False),
        ("classify", ("reader.stack.drop_path=0.5",), False),
        ("transformer", ("objectives=[{kind='scheduled', sampling_probability=0.5}]",), False),
    ],
)
def test_way_of_training_is_that_of_one_process(two, name, overrides, packed):
    trial = Trial.load(name, *overrides, packed=packed)

    check_equal(trial, two(train, trial, TENSOR_2))


# ---- random forms of the Transformer

STACKS = {
    "heads": [2, 4, 6], "norm": ["pre", "post", "none"], "norm_kind": ["layer", "rms"], "bias": [True, False],
    "activation": ["relu", "gelu", "gelu-tanh", "silu"], "gated": [True, False], "head_dim": ["none", 6],
    "attention_bias": [True, False], "value_dim": ["none", "none", 4],
    "window": ["none", 2, [3, "none"]], "head_projection": ["paper", "full"],
    "scale_attention": [True, False, "first"], "ff": [0, 8, 10], "share_layers": [True, False],
    "residual": [True, True, False], "drop_path": [0.0, 0.2],
}  # fmt: skip
POSITIONS = ["sinusoidal", "learned", "rotary", "shaw", "bucketed", "alibi", "transformer-xl", "none"]


def draw_overrides(seed):
    """Overrides of the recipe of the Transformer, as drawn by a seed."""
    draw = random.Random(seed)
    tie, start = draw.choice(["all", "input", "output", "none"]), draw.choice(["own", "pad"])
    overrides = [f"writer.tie={tie!r}", f"writer.start_token={start!r}", "train.batch_tokens=120"]
    for part in ("reader", "writer"):
        values = {key: draw.choice(choices) for key, choices in STACKS.items()} | {"layers": 2, "dim": 24}
        if values["head_dim"] != "none":
            values.pop("head_projection")
        elif values["head_projection"] == "paper":
            values["kv_heads"] = draw.choice([values["heads"], 2])
        else:
            values.pop("value_dim")
        values["gated"] = values["gated"] and values["ff"] > 0
        overrides += [f"{part}.stack.{key}={value!r}".replace("True", "true").replace("False", "false")
                      for key, value in values.items()]  # fmt: skip
        overrides += [f"{part}.positions={{kind={draw.choice(POSITIONS)!r}}}"]
        overrides += [f"{part}.embedding_norm={draw.choice(['true', 'false'])}"]
    return overrides


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(16))
def test_random_transformer_split_over_processes_trains_like_one(two, seed):
    draw = random.Random(-seed)
    trial = Trial.load("transformer", *draw_overrides(seed), distinct=1, packed=draw.random() < 0.3)

    check_equal(trial, two(train, trial, TENSOR_2, sequence_parallel=draw.random() < 0.7))


# ---- what is split, and what is communicated


def test_own_stack_is_split_by_its_plan(two):
    sizes = (7, 4)  # an odd number of tokens
    loss, gradients = split_training.compute_own_gradients(sizes)

    for found, split in two(split_training.compute_own_gradients, sizes, TENSOR_2):
        assert found == pytest.approx(loss, abs=TOLERANCE)
        torch.testing.assert_close(split, gradients, atol=TOLERANCE, rtol=0)


def test_parameters_are_distributed_tensors_with_the_names_and_shapes_of_one_process(two, small_language_model):
    trial, model = small_language_model, build_model(small_language_model)
    vocabulary = trial.sizes[1]

    for rank, found in enumerate(two(describe_parameters, trial, TENSOR_2)):
        whole = dict(model.named_parameters(remove_duplicate=False))
        assert {name: shape for name, (shape, *_) in found.items()} == {
            name: tuple(each.shape) for name, each in whole.items()
        }
        assert found["writer.output.weight"][-1] == "writer.embedding.tokens.weight"  # tied
        assert found["writer.output.weight"][2] == 16 * (-(-vocabulary // 2) if rank == 0 else vocabulary // 2)
        halves = {name for name, (_, placements, *_) in found.items() if "Shard" in placements}
        assert {name.rpartition("blocks.0.")[2] for name in halves} == {
            "writer.embedding.tokens.weight", "writer.output.weight", "self.project.weight", "self.project.bias",
            "self.heads.out.weight", "feedforward.up.weight", "feedforward.up.bias", "feedforward.down.weight",
        }  # fmt: skip


def test_block_of_megatron_has_two_all_reduces(two):
    trial = Trial.load("megatron", dropout=False)

    forward, backward = two(count_communication, trial, TENSOR_2, sequence_parallel=False)[0]

    assert forward == backward == {"c10d_functional.all_reduce": 2}


def test_block_gathers_and_scatters_instead_with_sequence_parallelism(two):
    trial = Trial.load("megatron", dropout=False)

    forward, _ = two(count_communication, trial, TENSOR_2)[0]

    assert forward == {"c10d_functional.all_gather_into_tensor": 2, "c10d_functional.reduce_scatter_tensor": 2}


@pytest.mark.slow
def test_count_finds_a_missing_all_reduce(two):
    trial = Trial.load("megatron", dropout=False)

    forward, _ = two(count_communication, trial, TENSOR_2, sequence_parallel=False, change="no all-reduce")[0]

    assert forward != {"c10d_functional.all_reduce": 2}


@pytest.mark.parametrize(
    ("name", "overrides", "lengths"),
    [
        ("gpt2", (), None),
        pytest.param("gpt2", ("train.recompute=true",), None, marks=pytest.mark.slow),
        pytest.param("gopher", (), None, marks=pytest.mark.slow),
        pytest.param("transformer", (), None, marks=pytest.mark.slow),
        pytest.param("albert", (), (48, 18), marks=pytest.mark.slow),  # 36 masked tokens of two rows
        pytest.param("show-attend-tell-transformer", (), (36, 12), marks=pytest.mark.slow),  # patches of a picture
    ],
)
def test_the_plan_counts_the_bytes_that_each_process_sends(two, small_language_model, name, overrides, lengths):
    is_small = name == "gpt2" and not overrides
    trial = small_language_model if is_small else Trial.load(name, *overrides, dropout=False, distinct=1)
    with torch.device("meta"):
        model = build_model(trial)
    [(sent, shapes), (other, _)] = two(count_sent, trial, TENSOR_2)
    lengths = lengths or (shapes[0][1], shapes[-1][1])
    source, target = (shapes[0][0] * (length + length % 2) for length in lengths)
    setup = SimpleNamespace(residual_bytes=8)
    memory = SimpleNamespace(model=model, setup=setup, count_target_tokens=lambda tokens: target)

    assert sent == other == pytest.approx(count_activation_bytes(memory, trial.recipe, tokens=source) / 2, rel=0.01)


# ---- models that cannot be split


def build_tiny(name, *overrides):
    return build(load(name, tiny=True, overrides=overrides), source_size=50, target_size=50)


@pytest.mark.parametrize(
    ("name", "overrides", "problem"),
    [
        ("bahdanau", (), "the reader's stack RecurrentStack does not declare tensor_parallel"),
        ("convs2s", (), "the reader's stack ConvolutionStack does not declare tensor_parallel"),
        ("reformer", (), "the writer's stack ReversibleStack does not declare tensor_parallel"),
        ("transformer", ("reader.stack.experts={count=3}",), "the reader's stack's experts are not split"),
        ("gpt2", ("writer.stack.score='general'",), "the writer's stack's attention score Bilinear is not split"),
        ("gpt2", ("writer.stack.head_projection='split'",), "the writer's stack's heads read a slice of the input"),
        ("cnn-self-attention", (), "no stack of it declares a plan"),
        ("xlnet", (), "the writer PermutedWriter does not declare tensor_parallel"),
    ],
)
def test_model_that_cannot_be_split_is_refused(name, overrides, problem):
    expected = f"^tensor parallelism cannot split this model: {problem}.*; it has the layouts data and shard: "

    with pytest.raises(SaccadeError, match=expected + "set train.parallel.tensor=1$"):
        check_tensor_parallel(build_tiny(name, *overrides), 2)


@pytest.mark.parametrize(
    ("name", "overrides", "size", "problem"),
    [
        ("gpt2", (), 3, "train.parallel.tensor must divide heads = 4, got 3; set it to one of 1, 2, 4"),
        ("llama", (), 4, "train.parallel.tensor must divide kv_heads = 2, got 4; set it to one of 1, 2"),
        ("gpt2", ("writer.stack.ff=6",), 4, "train.parallel.tensor must divide ff = 6, got 4; set it to one of 1, 2"),
    ],
)
def test_number_of_processes_must_divide_heads_and_features(name, overrides, size, problem):
    with pytest.raises(SaccadeError, match=f"^{problem}$"):
        check_tensor_parallel(build_tiny(name, *overrides), size)


def test_vocabulary_without_a_token_for_each_process_is_refused():
    model = build(load("gpt2", tiny=True), source_size=0, target_size=5)

    with pytest.raises(SaccadeError, match=r"^a vocabulary of 5 tokens is too small for 4 processes; set "):
        check_tensor_parallel(model, 4)


def test_lora_is_refused():
    model = build_tiny("gpt2")
    attach_lora(model.writer.stack.blocks[0].feedforward.up, rank=2, scale=1.0)

    with pytest.raises(
        SaccadeError,
        match="^tensor parallelism cannot split weights with LoRA; it has the layouts ",
    ):
        check_tensor_parallel(model, 2)


def test_parameter_that_is_split_in_one_place_only_is_refused(two):
    [message], _ = two(split_training.tie_differently, (8, 4), TENSOR_2)

    assert message == (
        "Embedding and Embedding share a parameter that tensor parallelism splits differently; "
        "set train.parallel.tensor=1"
    )
