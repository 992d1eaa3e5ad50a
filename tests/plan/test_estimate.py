"""Estimates of memory, time, cost and sharding."""

import pytest

from saccade.config.load import load
from saccade.errors import SaccadeError
from saccade.plan import hardware
from saccade.plan.estimate import PlanRequest, make_plan
from saccade.plan.memory import WORKSPACE_BYTES, Memory

PARAMETERS = 63_082_496


def plan(*changes, recipe="transformer", **asked):
    return make_plan(load(recipe, overrides=changes), PlanRequest(**asked))


def test_fixed_memory():
    fixed = plan("train.ema=0.99").memory.fixed
    assert (fixed.weights, fixed.gradients, fixed.optimizer, fixed.average) == tuple(
        PARAMETERS * size for size in (4, 4, 8, 4)
    )
    assert fixed.matmul_copies == 2 * 6 * (12 + 16) * 512**2
    assert plan("train.precision=fp32").memory.fixed.matmul_copies == 0


def test_frozen_weights_have_neither_gradients_nor_moments():
    fixed = plan("freeze=reader", "writer.tie=none").memory.fixed
    assert fixed.optimizer == 2 * fixed.gradients
    assert fixed.gradients < fixed.weights


def test_memory_of_the_loss_is_as_measured():
    """As measured on an H200: 952.82 MiB for 25,600 tokens x 512 x 32,000 beyond the states themselves."""
    loss = plan(vocabulary=32_000).memory.get_loss(25_600)
    states = 25_600 * 512 * 4
    assert (loss.total - states) / 2**20 == pytest.approx(952.82, rel=0.01)


def test_peak_is_the_sum_at_the_loss():
    memory = plan().memory
    kept = memory.get_activations()
    at_loss = kept.source * 1000 + kept.target * 2000 + memory.fixed.matmul_copies + memory.get_loss(2000).total
    assert memory.get_peak(1000, 2000) == memory.fixed.persistent + at_loss + WORKSPACE_BYTES


def test_peak_of_a_small_batch_is_at_the_end_when_all_gradients_are_there():
    memory = plan().memory
    assert memory.get_peak(1, 1) == memory.get_peak(2, 2)
    assert memory.get_peak(1, 1) > memory.fixed.persistent + memory.fixed.gradients


def test_gradients_of_earlier_micro_batches_are_there_at_the_loss():
    once, several = (plan(f"train.accumulate={count}").memory for count in (1, 3))
    assert several.get_peak(1000, 2000) - once.get_peak(1000, 2000) == once.fixed.gradients


def test_two_passes_keep_twice_as_much_and_work_twice_as_much():
    once, twice = plan(), plan("objectives=[{kind='r-drop'}]")
    assert twice.memory.get_activations().source == 2 * once.memory.get_activations().source
    assert twice.time.flops_per_token == 2 * once.time.flops_per_token


@pytest.mark.parametrize("recompute", [False, True])
def test_largest_batch_fits_and_the_next_does_not(recompute):
    memory = plan(gpu="T4").memory
    found = memory.find_largest_batch(recompute=recompute)
    room = memory.fixed.persistent + 0.8 * (memory.gpu.memory - memory.fixed.persistent)
    assert memory.get_batch_peak(found, recompute=recompute) <= room
    assert memory.get_batch_peak(found + 64, recompute=recompute) > room


def test_no_batch_fits_where_the_weights_do_not():
    size = [f"writer.stack.{item}" for item in ("layers=24", "dim=4096", "ff=16384")]
    assert plan(*size, "writer.tie=none", gpu="T4").memory.find_largest_batch() == 0


def test_cache_is_two_vectors_in_each_layer():
    cache = plan().memory.get_cache()
    assert cache == (2 * 2 * 512 * 6, 2 * 2 * 512 * 6)
    assert plan(recipe="gnmt").memory.get_cache() is None


def test_time_and_money_by_hand():
    found = plan(tokens=1e9, gpus=4, price=2.5, mfu=0.5)
    speed = 4 * 790e12 * 0.5 * hardware.get_measured()["whole"] / found.time.flops_per_token
    assert found.time.tokens_per_second == pytest.approx(speed)
    assert found.time.hours == pytest.approx(1e9 / speed / 3600)
    assert found.time.dollars == pytest.approx(1e9 / speed / 3600 * 4 * 2.5)
    assert found.step_seconds == pytest.approx(8 * 2 * 25_000 / speed)  # 8 micro-batches on all GPUs together


def test_tokens_are_those_of_all_steps():
    assert plan("train.steps=10", "train.accumulate=3", gpus=2).time.tokens == 10 * 3 * 25_000 * 2
    assert plan("train.steps=none", "train.epochs=3").time.hours is None


def test_speed_is_what_was_measured_for_transformers_and_unknown_for_others():
    assert plan("train.compile=true").time.mfu == 0.37
    assert plan().time.mfu == pytest.approx(0.37 * 0.9)
    assert plan(recipe="gnmt").time.tokens_per_second is None
    assert plan(recipe="gnmt", mfu=0.1).time.tokens_per_second > 0


def test_sharding_options_by_hand():
    found = plan(gpus=4)
    size = {choice.name: choice.bytes for choice in found.advice.options}
    alone = size["data parallel"]
    assert alone - size["ZeRO 1"] == pytest.approx(PARAMETERS * 8 * 3 / 4)
    assert alone - size["ZeRO 2"] == pytest.approx(PARAMETERS * 12 * 3 / 4)
    layer = 16 * 512**2 + 19 * 512  # parameters of a decoder layer
    shared = PARAMETERS * 16 * 3 / 4 + found.memory.fixed.matmul_copies - 2 * 2 * layer
    assert alone - size["FSDP"] == pytest.approx(shared)
    assert size["tensor 4 x FSDP 1, recompute"] < size["FSDP, recompute"]
    assert found.advice.best == "data parallel"


def test_a_model_that_does_not_fit_is_sharded():
    """64 layers of width 8192 on 64 GPUs: 16 bytes per parameter exceed the memory of one."""
    large = [f"writer.stack.{size}" for size in ("layers=64", "dim=8192", "heads=64", "ff=32768")]
    changes = [*large, "writer.tie=none", "train.batch_tokens=2048"]
    one, many = plan(*changes, gpu="H100"), plan(*changes, gpu="H100", gpus=64)
    assert one.advice.best == ""
    assert not many.advice.options[0].fits
    assert many.advice.best.startswith("FSDP")
    assert 16 * 17e9 / 80e9 < one.advice.min_gpus < 64


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"gpu": "H20"}, r"unknown GPU 'H20'; did you mean 'H200'\? \(GPUs: H200, H100, A100, "),
        ({"gpu": "abacus"}, "unknown GPU 'abacus'; GPUs: H200, H100, "),
        ({"price": -1.0}, "--price must be a number of at least 0, got -1"),
        ({"price": float("inf")}, "--price must be a number of at least 0, got inf"),
        ({"gpus": 0}, "--gpus must be a number of at least 1, got 0"),
        ({"tokens": 0.0}, "--tokens must be a number of at least 1, got 0"),
        ({"length": 0}, "--length must be a number of at least 1, got 0"),
        ({"vocabulary": 1}, "--vocabulary must be a number of at least 4, got 1"),
        ({"mfu": 37.0}, "--mfu must be above 0 and at most 1, such as 0.4, got 37"),
    ],
)
def test_mistakes_are_reported(asked, message):
    with pytest.raises(SaccadeError, match=message):
        plan(**asked)


def test_float32_needs_a_speed_of_float32():
    with pytest.raises(SaccadeError, match="the speed of a TPU-v3 in float32 is not known; set train.precision=bf16"):
        plan("train.precision=fp32", gpu="tpu-v3")


def test_every_gpu_of_the_table_can_be_asked_for():
    for name in hardware.read_table()["gpus"]:
        found = hardware.get_gpu(name.lower())
        assert found.name == name
        assert 10 * 2**30 < found.memory < 200 * 2**30
        assert found.get_matmul_flops(is_bf16=True) < found.half


def test_compiled_layers_keep_more():
    assert plan("train.compile=true").memory.get_activations().source == pytest.approx(
        1.15 * plan().memory.get_activations().source
    )


def test_memory_of_other_stacks_is_unknown():
    found = plan(recipe="bahdanau")
    assert isinstance(found.memory, Memory)
    assert found.memory.get_batch_peak(1000) is None
    assert found.memory.find_largest_batch() is None


LANGUAGE_MODEL = ["train.residual_precision=bf16", "train.accumulate=1"]


@pytest.mark.parametrize(
    ("recipe", "changes", "vocabulary", "tokens", "gigabytes"),
    [("transformer", [], 32_000, 25_600, 8.4), ("gpt2", LANGUAGE_MODEL, 50_304, 65_536, 25.1)],
)
def test_peak_is_what_was_measured_with_compiled_layers(recipe, changes, vocabulary, tokens, gigabytes):
    """benchmarks/results/train_speed.json, one H200."""
    changes = [*changes, "train.compile=true", f"train.batch_tokens={tokens}"]
    found = plan(*changes, recipe=recipe, vocabulary=vocabulary)
    assert found.memory.get_batch_peak(tokens) / 1e9 == pytest.approx(gigabytes, rel=0.05)


def test_a_language_model_has_one_side():
    changes = [*LANGUAGE_MODEL, "train.batch_tokens=1000", "train.steps=7", "train.compile=true"]
    found = plan(*changes, recipe="gpt2")
    assert found.flops.source == 0
    assert found.flops.mean == found.flops.target
    assert found.length == 1024
    assert (found.time.tokens, found.time.mfu) == (7000, 0.62)
    assert found.memory.get_cache() == (0, 2 * 2 * 768 * 12)


def test_span_corruption_has_short_targets():
    found = plan(recipe="t5")
    read, written = 512, 114  # source and target of 568 tokens, 85 of which are masked in 28 spans
    work = found.flops
    assert work.mean == pytest.approx((read * work.source + written * work.target) / (read + written))
    assert found.time.tokens == pytest.approx(500_000 * 128 * (read + written))
    full = found.memory.get_peak(65_536, 128 * written)
    assert found.memory.get_batch_peak(65_536) == pytest.approx(full, rel=1e-6)
    assert found.step_seconds * found.time.tokens_per_second == pytest.approx(128 * (read + written))


def test_permutation_queries_pass_through_the_reader():
    found = plan(recipe="xlnet")
    work, head = found.flops, 2 * (32_000 * 768 + 32_000 + 768)
    assert work.target == pytest.approx(work.source + head)
    assert work.mean == pytest.approx(work.source + work.target / 6)
    kept = found.memory.get_activations()
    # the last state in float32, and the dropout mask of the embedding
    assert kept.source - kept.target == pytest.approx(5 * 768)


def test_sharding_counts_the_tokens_of_a_head():
    found = plan(recipe="bert")
    fixed = found.memory.fixed
    together = found.advice.options[0].bytes
    assert found.memory.get_batch_peak(found.batch_tokens) == pytest.approx(together, rel=0.02)
    assert together > fixed.persistent


def test_a_writer_without_output_matrix_has_no_logits():
    found = plan()
    found.model.writer.output = None
    assert found.memory.get_loss(1000).total == 0
    assert found.memory.get_peak(1000, 1000) > found.memory.fixed.persistent
