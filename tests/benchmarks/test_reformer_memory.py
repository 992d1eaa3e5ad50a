import json

import pytest
import torch


@pytest.fixture
def memory(script):
    return script("reformer_memory")


def test_memory_grows_with_the_length_and_not_with_its_square(memory):
    size, lengths = memory.TINY, (64, 128, 256, 512, 1024)

    ours = [memory.on_cpu(memory.OURS, size, length) for length in lengths]
    theirs = [memory.on_cpu(memory.PEER, size, length) for length in lengths[:4]]

    assert memory.slope(lengths, ours) <= 1.2
    assert memory.slope(lengths[-3:], ours[-3:]) <= 1.2
    assert memory.slope(lengths[:4], theirs) > 1.6


def test_layers_take_no_memory_for_themselves_but_for_buckets(memory):
    few, many = (
        memory.on_cpu(memory.OURS, memory.TINY._replace(layers=layers), 512) - gradients(memory, layers)
        for layers in (4, 8)
    )
    rounds, bytes_of_a_bucket = 2, 4
    random_states = 3 * torch.get_rng_state().numel()

    hashing = memory.TINY.heads * rounds * 512 * bytes_of_a_bucket  # of every other layer
    assert many - few <= 2 * hashing + 4 * random_states


def gradients(memory, layers):
    stack = memory.build_stack(memory.OURS, memory.TINY._replace(layers=layers), 512)
    return sum(4 * parameter.numel() for parameter in stack.parameters())


def test_what_lives_is_counted(memory):
    given = torch.zeros(100)
    with memory.Living([given]) as living:
        first = given + 1
        view = first[:50]
        assert living.now == 400
        second = view * 2
        assert living.now == 600
        del second
        assert living.now == 400
        del first
        assert living.now == 400
        del view
        assert living.now == 0
    assert living.peak == 600


def test_slope_is_the_exponent(memory):
    assert memory.slope((1, 2, 4), (3, 12, 48)) == pytest.approx(2)


def test_both_ways_compute_the_same_in_one_chunk(memory):
    size, x = memory.TINY, torch.randn(1, memory.TINY.chunk, memory.TINY.dim)
    stack = memory.build_stack(memory.OURS, size, size.chunk)
    exact = memory.build_stack(memory.PEER, size, size.chunk)
    exact.load_state_dict(stack.state_dict())

    torch.testing.assert_close(exact(x, None)[0], stack(x, None)[0])


@pytest.mark.skipif(torch.cuda.is_available(), reason="measures the GPU where there is one")
def test_script_saves_what_was_measured(memory, command, tmp_path):
    command("reformer_memory.py", "--tiny", "--out", tmp_path)

    memory.main()

    first, *others = json.loads((tmp_path / "reformer_memory_cpu.json").read_text())["rows"]
    assert first["unit"] == "exponent" and first["ratio"] < 1
    assert [row["unit"] for row in others] == ["MiB"] * len(memory.TINY.lengths)
