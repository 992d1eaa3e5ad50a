import json


def test_layouts_are_compared_and_the_largest_form_is_trained(script, command, tmp_path):
    cases = ["ddp-gpt2", "largest", "fsdp-gpt2"]
    command("scale_gpu.py", "--tiny", "--out", tmp_path, "--only", *reversed(cases))
    script("scale_gpu").main()

    rows = json.loads((tmp_path / "scale_gpu.json").read_text())["rows"]
    assert [row["case"] for row in rows] == ["ddp-gpt2", "largest", "largest", "fsdp-gpt2"]
    assert all(row["holds"] for row in rows), rows
    ddp, memory, refused, fsdp = rows
    for row in (ddp, fsdp):
        assert abs(row["losses"]["plain"] / row["losses"][row["case"][:4].rstrip("-")] - 1) < 1e-6
        assert row["ratio"] > 0 and row["peer_value"] > 0
    assert memory["last_loss"] < memory["first_loss"] and memory["peer_value"] > 0
    assert "memory" in refused["message"]


def test_cases_after_the_time_are_left_for_later(script, command, tmp_path, capsys):
    command("scale_gpu.py", "--tiny", "--out", tmp_path, "--minutes", "0", "--only", "fsdp-gpt2")
    try:
        script("scale_gpu").main()
    except SystemExit as stop:
        assert stop.code == 1
    assert "--only fsdp-gpt2" in capsys.readouterr().out and not (tmp_path / "scale_gpu.json").exists()
