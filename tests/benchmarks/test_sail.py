"""The script that walks on a map that was never seen, at toy size."""

import gzip
import json

MAP = """<map name="{0}"><nodes><node x="0" y="0" item="chair"/><node x="1" y="0" item=""/></nodes>
<edges><edge node1="0,0" node2="1,0" wall="fish" floor="{1}"/></edges></map>"""
LINE = {"instruction": "walk to the other place", "path": [[0, 0, 90], [1, 0, 90]]}
SMALL = ["reader.stack.dim=8", "writer.stack.dim=8", "train.batch_tokens=64", "train.schedule.warmup_steps=1"]


def test_both_directions_are_walked_alone_and_together(script, command, tmp_path, monkeypatch):
    folder = tmp_path / "data" / "sail"
    folder.mkdir(parents=True)
    for name, floor in (("grid", "blue"), ("jelly", "wood")):
        (folder / f"map-{name}.xml.gz").write_bytes(gzip.compress(MAP.format(name, floor).encode()))
        for kind in ("single_sentence", "paragraph"):
            (folder / f"{kind}_{name}.jsonl.gz").write_bytes(gzip.compress(json.dumps(LINE).encode()))
    module = script("sail")
    monkeypatch.setattr(module, "WORLDS", module.WORLDS.model_copy(update={"examples": 20}))
    runs = ["--run", tmp_path / "runs"]
    command("sail.py", "--data", folder.parent, "--steps", 2, "--seeds", 1, 2, "--out", tmp_path / "out", *runs, *SMALL)
    module.main()
    monkeypatch.setattr(module.saccade, "train", None)  # what is there walks as it is
    module.main()
    rows = json.loads((tmp_path / "out" / "sail.json").read_text())["rows"]
    names = [row["what"] for row in rows]
    first = "SAIL, sentences, grid to jelly"
    assert len(rows) == 2 * (2 * (2 * 4 + 1) + 1) and names[18] == "SAIL, sentences, mean of both directions"
    assert names[:4] == [first, f"{first}: minutes of training", f"{first}: steps", f"{first}: parameters"]
    assert (names[8], rows[6]["value"]) == (f"{first}, 2 together", 2)
    assert rows[18]["value"] == (rows[8]["value"] + rows[17]["value"]) / 2


def test_tiny_needs_no_data(script, command, tmp_path):
    module = script("sail")
    command(
        "sail.py",
        "--tiny",
        "--routes",
        "sentences",
        "--seeds",
        1,
        "--out",
        tmp_path,
        "data.train.0.examples=30",
        *SMALL,
    )
    module.main()
    assert len(json.loads((tmp_path / "sail.json").read_text())["rows"]) == 2 * (4 + 1) + 1
