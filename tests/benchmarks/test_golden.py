import json
import re

import pytest

RECORD = {"facts": {"train/step 1 loss": 3.5, "run weights/model reader.w": "ab", "export": "refused"}, "notes": {}}


@pytest.fixture
def golden(script):
    return script("golden")


def changed(**facts):
    return {"facts": {**RECORD["facts"], **facts}, "notes": {}}


def test_equal_records_have_no_differences(golden):
    assert golden.differences(RECORD, changed()) == []


def test_the_last_bit_of_a_loss_is_a_difference(golden):
    [line] = golden.differences(RECORD, changed(**{"train/step 1 loss": 3.5000000000000004}))
    assert line == "train: 1 of 1 differ; first step 1 loss: 3.5 is now 3.5000000000000004"


def test_facts_of_one_tree_alone_are_a_difference(golden):
    more = changed(**{"beam/input 1": "x"})
    [line] = golden.differences(RECORD, more)
    assert line == "beam: 1 of 1 differ; input 1 is only in this tree"
    [line] = golden.differences(more, RECORD)
    assert line == "beam: 1 of 1 differ; input 1 is only in the other tree"


def test_a_refused_command_says_why(golden):
    ours = changed(beam="refused") | {"notes": {"beam": "error: no beam"}}
    [line] = golden.differences(changed(**{"beam/input 1": "x"}), ours)
    assert line.startswith("beam: 2 of 2 differ")
    assert line.endswith("(error: no beam)")


def test_a_failed_recording_is_a_difference(golden):
    assert golden.differences(RECORD, {"error": "no module"}) == ["this tree: no module"]
    assert golden.differences({"error": "no module"}, {"error": "no module"}) != []


def test_renamed_tensors_are_compared_by_their_new_names(golden, monkeypatch):
    ours = {"facts": {**RECORD["facts"]}, "notes": {}}
    ours["facts"]["run weights/model encoder.w"] = ours["facts"].pop("run weights/model reader.w")
    assert golden.differences(RECORD, ours)
    monkeypatch.setitem(golden.RENAMED_TENSORS, r"\breader\.", "encoder.")
    assert golden.differences(RECORD, ours) == []


def test_overrides_are_translated_for_this_tree(golden, monkeypatch):
    monkeypatch.setitem(golden.RENAMED_KEYS, "train.steps", "training.max_steps")
    assert golden.translate_override("train.steps=20") == "training.max_steps=20"
    assert golden.translate_override("train.keep_checkpoints=2") == "train.keep_checkpoints=2"


def test_an_unknown_commit_is_reported_in_one_line(golden):
    with pytest.raises(SystemExit, match="error: commit 000000000 is not in the history; in a shallow"):
        golden.resolve_commit("0" * 40)


def test_tensors_are_hashed_without_metadata_and_order(script, tmp_path):
    import torch
    from safetensors.torch import save_file

    record = script("golden_record")
    one, two = torch.ones(3, 2), torch.zeros(5)
    save_file({"one": one, "two": two}, tmp_path / "a.safetensors", metadata={"made": "here"})
    save_file({"two": two, "one": one}, tmp_path / "b.safetensors")
    save_file({"two": two, "one": one.reshape(2, 3)}, tmp_path / "c.safetensors")
    a, b, c = (dict(record.tensors(tmp_path / f"{name}.safetensors")) for name in "abc")
    assert a == b
    assert a["two"] == c["two"]
    assert a["one"] != c["one"]


def test_every_recipe_has_inputs(golden, script):
    """A new recipe on other embedded data needs inputs in golden_record.py."""
    known = script("golden_record").INPUTS
    for file in (golden.ROOT / "saccade").rglob("recipes/*.toml"):
        assert re.findall(r'"embedded:([a-z]+)', file.read_text("utf-8"))[-1] in known, file.name


@pytest.mark.slow
def test_a_recipe_is_equal_to_itself_and_a_change_is_found(golden, tmp_path):
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "saccade").symlink_to(golden.ROOT / "saccade")
    overrides = golden.Comparison(tree, tree, "", 2, fresh=True).overrides("sasrec")
    record = golden.record_recipe(tree, "sasrec", overrides)
    assert "error" not in record
    assert golden.differences(record, golden.record_recipe(tree, "sasrec", overrides)) == []
    found = golden.differences(record, golden.record_recipe(tree, "sasrec", [*overrides, "train.seed=2"]))
    assert {"train", "run weights", "checkpoint", "beam"} <= {line.split(":")[0] for line in found}
    assert json.loads(json.dumps(record)) == record
