import errno
import json

import pytest
import torch

from saccade.errors import SaccadeError
from saccade.train import checkpoint


def save(folder, step, value=1.0):
    groups = {"model": {"w": torch.full((2, 3), value)}, "optimizer": {"step:w": torch.tensor(float(step))}}
    return checkpoint.save(folder, step=step, groups=groups, state={"data": {"position": step}})


def test_checkpoint_comes_back_as_it_was_saved(tmp_path):
    save(tmp_path, 7, value=5.0)

    found = checkpoint.load_latest(tmp_path, warn=pytest.fail)

    assert found.step == 7 and found.state["data"] == {"position": 7}
    assert found.load_tensors("model")["w"].tolist() == [[5.0] * 3] * 2
    assert found.load_tensors("ema") == {}


def test_no_checkpoint_is_none(tmp_path):
    assert checkpoint.load_latest(tmp_path / "absent", warn=pytest.fail) is None


def test_newest_is_by_number_not_by_name(tmp_path):
    for step in (9, 10, 100, 20):
        save(tmp_path, step)

    assert checkpoint.load_latest(tmp_path, warn=pytest.fail).step == 100


def spoil_bytes(path):
    content = bytearray((path / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (path / "model.safetensors").write_bytes(content)


def spoil_half(path):
    content = (path / "optimizer.safetensors").read_bytes()
    (path / "optimizer.safetensors").write_bytes(content[: len(content) // 2])


def spoil_state(path):
    state = json.loads((path / "state.json").read_text())
    state["data"]["position"] = 3
    (path / "state.json").write_text(json.dumps(state))


def spoil_json(path):
    (path / "state.json").write_bytes((path / "state.json").read_bytes()[:20])


def lose_file(path):
    (path / "model.safetensors").unlink()


def empty_state(path):
    (path / "state.json").write_text("[]")


@pytest.mark.parametrize("spoil", [spoil_bytes, spoil_half, spoil_state, spoil_json, lose_file, empty_state])
def test_broken_newest_is_named_and_the_one_before_it_used(tmp_path, spoil):
    save(tmp_path, 5)
    spoil(save(tmp_path, 6))
    said = []

    found = checkpoint.load_latest(tmp_path, warn=said.append)

    assert found.step == 5
    assert len(said) == 1 and "step-6" in said[0] and "the one before it is used" in said[0]


def test_only_broken_ones_are_refused(tmp_path):
    spoil_bytes(save(tmp_path, 5))

    with pytest.raises(SaccadeError, match="none of the 1 checkpoints"):
        checkpoint.load_latest(tmp_path, warn=lambda text: None)


def test_checkpoint_of_a_newer_version_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "WHOLE_VERSION", 99)
    save(tmp_path, 5)
    monkeypatch.undo()

    with pytest.raises(SaccadeError, match="version 99.*upgrade"):
        checkpoint.load_latest(tmp_path, warn=lambda text: None)


def test_full_disk_keeps_the_last_one_whole_and_leaves_nothing_behind(tmp_path, monkeypatch):
    save(tmp_path, 5)
    write = checkpoint.write_file

    def full(path, content):
        if path.name == "optimizer.safetensors":
            path.write_bytes(content[:10])
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, content)

    monkeypatch.setattr(checkpoint, "write_file", full)
    with pytest.raises(
        SaccadeError, match="No space left on device; the last intact one is step-5; free disk space"
    ) as error:
        save(tmp_path, 6)

    assert "\n" not in str(error.value)
    assert [item.name for item in tmp_path.iterdir()] == ["step-5"]
    assert checkpoint.load_latest(tmp_path, warn=pytest.fail).step == 5


def test_folder_that_cannot_be_written_is_reported(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(SaccadeError, match="cannot write checkpoint.*there is none before it"):
        save(tmp_path / "file", 6)


def test_retention_keeps_the_newest_and_the_needed(tmp_path):
    for step in range(1, 8):
        save(tmp_path, step)

    checkpoint.prune(tmp_path, keep=2, needed=[1, 3, 99])

    assert checkpoint.list_steps(tmp_path) == [7, 6, 3, 1]
    assert len(list(tmp_path.iterdir())) == 4


def test_what_a_killed_process_left_is_tidied(tmp_path):
    save(tmp_path, 5)
    (tmp_path / ".step-6.partial").mkdir()
    (tmp_path / ".step-4.leaving").mkdir()
    (tmp_path / ".best-4.safetensors.7.tmp").touch()

    checkpoint.remove_leftovers(tmp_path)

    assert [item.name for item in tmp_path.iterdir()] == ["step-5"]


def test_saving_a_step_again_replaces_it(tmp_path):
    save(tmp_path, 5, value=1.0)
    save(tmp_path, 5, value=2.0)

    assert checkpoint.load_latest(tmp_path, warn=pytest.fail).load_tensors("model")["w"][0, 0] == 2.0


def test_a_record_with_steps_of_different_length_as_keys_is_found_whole(tmp_path):
    """JSON turns integer keys into strings, and "1000" sorts before "500"."""
    path = checkpoint.save(tmp_path, step=1000, groups={}, state={"ranking": {500: 1.0, 1000: 2.0}})
    assert checkpoint.read_verified_state(path)["ranking"] == {"500": 1.0, "1000": 2.0}


def test_a_damaged_checkpoint_is_named_and_left_out_of_the_mean(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, step)
    (tmp_path / "step-2" / "model.safetensors").write_bytes(b"no")
    said = []

    found = checkpoint.load_intact(tmp_path, [1, 2, 3], warn=said.append)

    assert [one.step for one in found] == [1, 3]
    damage = "model.safetensors differs from its SHA-256 digest"
    assert f"step-2' is damaged ({damage}); it is left out of the mean" in said[0]


def test_a_broken_one_is_not_called_the_last_whole_one(tmp_path):
    save(tmp_path, 5)
    spoil_bytes(save(tmp_path, 6))

    assert checkpoint.find_newest_name(tmp_path) == "step-5"
    spoil_json(tmp_path / "step-5")
    assert checkpoint.find_newest_name(tmp_path) == ""


def test_what_is_newer_than_the_step_to_go_on_from_is_named_and_removed(tmp_path):
    for step in (5, 6, 7):
        save(tmp_path, step)
        checkpoint.get_best_path(tmp_path, step).touch()
    said = []

    checkpoint.remove_newer(tmp_path, step=5, warn=said.append)

    assert sorted(item.name for item in tmp_path.iterdir()) == ["best-5.safetensors", "step-5"]
    assert said == [f"checkpoint '{tmp_path}/step-{step}' is removed" for step in (7, 6)]


def test_what_was_best_at_a_kept_checkpoint_is_kept(tmp_path):
    for step in (2, 4, 6, 8):
        save(tmp_path, step)
    for step in (1, 3, 5, 7, 9):
        checkpoint.get_best_path(tmp_path, step).touch()

    checkpoint.prune(tmp_path, keep=1, needed=[4])

    assert checkpoint.list_steps(tmp_path) == [8, 4]
    assert checkpoint.list_numbers(tmp_path, checkpoint.BEST_FILE) == [7, 3]
