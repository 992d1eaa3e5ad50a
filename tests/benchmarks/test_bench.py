import json

import pytest


@pytest.fixture
def bench(script):
    return script("bench")


def missing():
    raise ImportError


def test_contenders_take_turns_and_missing_ones_are_named(bench):
    order = []
    makers = {
        "saccade": lambda: lambda: order.append("us"),
        "CTranslate2": missing,
        "Hugging Face": lambda: lambda: order.append("them"),
    }

    times = bench.race_contenders(bench.Case("work", makers, tokens=1), seconds=0.0)

    assert order == ["us", "them"] * 4  # once to warm up, then three turns
    assert times["CTranslate2"] == "not installed"
    assert len(times["saccade"]) == len(times["Hugging Face"]) == 3


def test_ratio_is_the_median_over_turns(bench):
    """The second turn was disturbed by another program."""
    times = {"saccade": [1.0, 5.0, 2.0], "Hugging Face": [2.0, 5.0, 6.0], "CTranslate2": "not installed"}

    row = bench.build_row(bench.Case("work", {}, tokens=10), times)

    assert row == {"what": "work", "speed": 5.0, "ratios": {"Hugging Face": 2.0, "CTranslate2": "not installed"}}


def test_table_shows_ratios_and_what_is_missing(bench, capsys):
    bench.print_table(
        [{"what": "work", "speed": 1234.0, "ratios": {"Hugging Face": 2.0, "CTranslate2": "not installed"}}]
    )

    shown = capsys.readouterr().out
    assert "1,234" in shown and "2.00x" in shown and "not installed" in shown


def test_results_have_one_row_for_each_peer(bench):
    row = {"what": "work", "speed": 10.0, "ratios": {"Hugging Face": 2.0, "CTranslate2": "not installed"}}

    first, second = bench.flatten_row(row)

    assert first["peer"] == "Hugging Face" and first["peer_value"] == 5.0 and first["ratio"] == 2.0
    assert second["peer"] == "CTranslate2 (not installed)" and "ratio" not in second


def test_all_train_on_the_same_tokens(script, bench):
    """One step of each contender changes its weights; batches of mixed lengths differ in length."""
    training = script("bench_training")
    equal, mixed = training.build_training_cases(bench.TINY)

    assert set(equal.makers) == {"saccade", "nn.Transformer", "Hugging Face"}
    assert equal.tokens == 2 * 64
    lengths = {len(source) for batch in training.build_mixed_batches(bench.TINY) for source, _ in batch}
    assert len(lengths) > 2
    for name in ("saccade", "nn.Transformer"):
        equal.makers[name]()()
        mixed.makers[name]()()


def test_both_losses_are_the_same_on_the_same_logits(script, bench):
    import torch

    training = script("bench_training")
    logits, target = torch.randn(2, 5, 11), torch.tensor([[4, 5, 6, 7, 2], [8, 2, 0, 0, 0]])
    hidden, keep = logits.flatten(0, 1), target.flatten() != 0
    from saccade.layers.losses.cross_entropy import smoothed_cross_entropy

    ours, _ = smoothed_cross_entropy(hidden, torch.eye(11), target.flatten(), keep, 0.1)

    torch.testing.assert_close(training.compute_smoothed_loss(logits, target), ours / 7)


@pytest.mark.slow
def test_whole_table_is_made(bench, command, tmp_path, capsys):
    command("bench.py", "--tiny", "--out", tmp_path)

    bench.main()

    shown = capsys.readouterr().out
    result = json.loads((tmp_path / "bench.json").read_text())
    works = {row["what"] for row in result["rows"]}
    assert {"train a 1 + 1 x 16 model, mixed lengths", "translate, float32, batch 3, beam 4"} <= works
    assert all(row["value"] > 0 for row in result["rows"])
    assert "saccade, tok/s" in shown and "Hugging Face" in shown
