import gzip
import json
from collections import Counter

import pytest

PACKS = {
    "sst2/train": ["sentence\tlabel", *(f"a film {number} \t{number % 2}" for number in range(100))],
    "sst2/dev": ["sentence\tlabel", "dull \t0"],
    "cola/train": [f"gj04\t{number % 2}\t*\tBill {number}" for number in range(10)],
    "cola/val": ["gj04\t1\t\tBill broke the bathtub."],
    "cola/dev": ["gj04\t0\t*\tThe car honked down the road."],
    "rte/train": ["index\tsentence1\tsentence2\tlabel", "0\tA dog runs.\tIt runs.\tentailment"],
    "rte/val": ["2\tA cat sits.\tIt runs.\tnot_entailment"],
    "rte/dev": ["index\tsentence1\tsentence2\tlabel", "3\tA cow.\tA pig.\tnot_entailment"],
}


@pytest.fixture
def packs(tmp_path):
    for name, lines in PACKS.items():
        path = tmp_path / f"{name}.tsv.gz"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return tmp_path


@pytest.fixture
def glue(script):
    return script("glue")


def test_every_task_is_learned_from_an_imported_folder_and_saved(glue, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command("glue.py", "--tiny", "--epochs", "1", "--out", tmp_path, "--run", tmp_path / "runs", "train.clip=0.5")
    glue.main()
    found = json.loads((tmp_path / "glue.json").read_text())
    rows = {row["what"]: row for row in found["rows"]}
    names = ["SST-2, dev: accuracy", "CoLA, dev: Matthews correlation, times 100", "RTE, dev: accuracy"]
    assert [what for what in rows if "dev" in what] == names
    assert [rows[what]["peer_value"] > 0 for what in names] == [True, False, True]
    assert "Epochs: 1 of SST-2, 1 of CoLA, 1 of RTE;" in found["notes"] and "train.clip=0.5" in found["notes"]
    assert (tmp_path / "runs" / "rte-1" / "model.safetensors").is_file()


def test_splits_are_read_with_and_without_a_header(glue, packs):
    cola = glue.build_splits("cola", packs, share=1.0, seed=1)
    assert sorted(cola.train) == [(f"Bill {number}", str(number % 2)) for number in range(10)]
    assert cola.valid == [("Bill broke the bathtub.", "1")]
    assert glue.read_rows(cola.dev) == [("The car honked down the road.", "0")]
    rte = glue.build_splits("rte", packs, share=1.0, seed=1)
    assert rte.train == [("A dog runs.", "It runs.", "entailment")]
    assert rte.valid == [("A cat sits.", "It runs.", "not_entailment")]
    assert glue.read_rows(rte.dev) == [("A cow.", "A pig.", "not_entailment")]


def test_without_val_a_part_of_train_chooses_the_step(glue, packs):
    train, valid, dev = glue.build_splits("sst2", packs, share=1.0, seed=1)
    assert (len(train), len(valid)) == (98, 2)
    everything = Counter(tuple(line.split("\t")) for line in PACKS["sst2/train"][1:])
    assert Counter([*train, *valid]) == everything
    assert glue.read_rows(dev) == [("dull ", "0")]


def test_a_share_is_drawn_from_what_is_learned_from(glue, packs):
    whole, part, other = (
        glue.build_splits("sst2", packs, share=share, seed=seed) for share, seed in ((1.0, 1), (0.5, 1), (0.5, 2))
    )
    assert part.train == whole.train[:49] and part.valid == whole.valid
    assert sorted(other.train) != sorted(part.train)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "x"], "give --model FOLDER and --data FOLDER, or --tiny"),
        (["--tiny", "--tasks", "sst2,mnli"], "--tasks are some of sst2,cola,rte, got sst2,mnli"),
        (["--tiny", "--share", "0"], "--share is above 0 and at most 1, got 0"),
    ],
)
def test_bad_arguments_are_reported(glue, command, capsys, words, message):
    command("glue.py", *words)
    with pytest.raises(SystemExit):
        glue.main()
    assert message in capsys.readouterr().err
