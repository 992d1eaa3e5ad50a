import re

import pytest
import small
import torch
from safetensors.torch import load_file

from saccade.errors import SaccadeError

SHORT = {"steps": 1, "valid_every": 9, "save_every": 9, "accumulate": 1, "valid_predictions": 0}
START = ["train.schedule.lr=1e-30"]  # so that the weights stay what they were at first


def tensors(run):
    return load_file(run / "model.safetensors")


@pytest.fixture
def earlier(fit):
    return fit("earlier", **SHORT)


def test_all_weights_of_an_earlier_run_are_taken(fit, earlier, capsys):
    run = fit(**SHORT, overrides=[f"init={earlier}", *START])

    torch.testing.assert_close(tensors(run), tensors(earlier))
    assert re.search(r"init=.*: (\d+) of \1 tensors copied", capsys.readouterr().err)


def test_rows_of_a_changed_vocabulary_are_matched_by_token(fit, earlier, tmp_path, capsys):
    letters = "zyx ab!?"
    (tmp_path / "a.txt").write_text(f"{letters}\n" * 3)
    data = {"train": [{"files": [str(tmp_path / "a.txt")] * 2}]}

    run = fit(**SHORT, data=data, overrides=[f"init={earlier}", "tokenizer.size=100", *START])

    old = small.api.Predictor.load(earlier).tokenizers.source
    new = small.api.Predictor.load(run).tokenizers.source
    before, after = (tensors(path)["reader.embedding.tokens.weight"] for path in (earlier, run))
    assert len(after) == 4 + 8 != len(before)
    for letter in "zyxab":
        torch.testing.assert_close(after[new.encode(letter)[0]], before[old.encode(letter)[0]])
    torch.testing.assert_close(after[:4], before[:4])
    assert "9 of 12 embedding rows by their token" in capsys.readouterr().err


def test_reader_alone_is_taken(fit, earlier):
    run = fit(**SHORT, overrides=[f"reader.init={earlier}", "train.seed=5", *START])

    same = {name for name, tensor in tensors(run).items() if torch.equal(tensor, tensors(earlier)[name])}
    norms = {name for name in same if "norm" in name or "bias" in name}  # start as ones and zeros in every run
    assert any(name.startswith("reader.stack") and name not in norms for name in same)
    assert not any(name.startswith("writer.stack") and name not in norms for name in same)


def test_frozen_reader_keeps_the_weights_it_was_given(fit, earlier):
    run = fit(**SHORT, overrides=[f"init={earlier}", "freeze=['reader']"])

    before, after = tensors(earlier), tensors(run)
    assert all(torch.equal(before[name], after[name]) for name in before if name.startswith("reader."))
    assert not all(torch.equal(before[name], after[name]) for name in before)


def test_run_that_does_not_fit_is_refused(fit, earlier):
    stack = {**small.STACK, "dim": 10, "ff": 7}

    with pytest.raises(SaccadeError, match="init=.*no tensor of that run has the name and shape"):
        fit(**SHORT, stack=stack, overrides=[f"init={earlier}"])


def test_missing_run_is_refused(fit):
    with pytest.raises(SaccadeError, match="nowhere' is not a run"):
        fit(**SHORT, overrides=["init=nowhere"])


def test_a_tokenizer_that_is_learned_alike_is_that_of_the_run(fit, earlier, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("zyx ab!?\n" * 3)
    data = {"train": [{"files": [str(tmp_path / "a.txt")] * 2}]}

    run = fit(**SHORT, data=data, overrides=[f"init={earlier}", *START])

    assert (run / "tokenizer.json").read_bytes() == (earlier / "tokenizer.json").read_bytes()
    torch.testing.assert_close(tensors(run), tensors(earlier))
    assert "embedding rows" not in capsys.readouterr().err
