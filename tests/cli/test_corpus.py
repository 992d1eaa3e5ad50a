"""`saccade predict --corpus`: whole parts in order, started again after a kill, bad rows by file and row."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from saccade.errors import SaccadeError
from saccade.files import lock_file
from saccade.predict.corpora import on_ray, parts, pool, process
from saccade.predict.corpora.parts import MANIFEST, Part, iter_rows, name_row, split_into_parts
from saccade.predict.corpora.process import CorpusSettings, PartPredictor
from saccade.predict.predictors.predictor import Predictor

TEXTS = [f"{1 + number % 28} May {1900 + number}" if number % 5 else "" for number in range(60)]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Lines, compressed lines, lines of JSON and tables, in the order of their names."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.txt").write_text("".join(f"{text}\n" for text in TEXTS[:25]))
    (folder / "b.txt.gz").write_bytes(gzip.compress("\n".join(TEXTS[25:30]).encode()))
    (folder / "c.jsonl").write_text("".join(json.dumps({"id": 1, "text": text}) + "\n" for text in TEXTS[30:45]))
    pyarrow.parquet.write_table(pyarrow.table({"text": TEXTS[45:55]}), folder / "d.parquet", row_group_size=4)
    (folder / "e.csv").write_text("text,id\n" + "".join(f"{text},1\n" for text in TEXTS[55:]))
    return folder


@pytest.fixture(scope="module")
def expected_outputs(run: Path) -> list[str]:
    return Predictor.load(run).predict(TEXTS)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Decode parts in this process instead of in others; the numbers of the parts that were decoded."""
    decoded: list[int] = []

    def run_pool(settings: CorpusSettings, wanted: list[Part], **options: object):
        predictor = PartPredictor(settings)
        for part in wanted:
            yield {"part": part.number, "rows": 1, "characters": 1}
            yield {"part": part.number, "done": predictor.predict_part(part)}
            decoded.append(part.number)

    monkeypatch.setattr(pool, "run_pool", run_pool)
    monkeypatch.setattr(parts, "PART_BYTES", 100)
    return decoded


def read_outputs(folder: Path) -> list[str]:
    return [line for path in sorted(folder.glob("part-*.txt")) for line in path.read_text().split("\n")[:-1]]


def test_every_row_has_an_output_in_order(cli, run, corpus, tmp_path, expected_outputs, in_process):
    result = cli("predict", run, "--corpus", corpus, "--output", "out")
    assert result.code == 0 and result.out == ""
    assert read_outputs(tmp_path / "out") == expected_outputs
    assert f"60 outputs in {len(in_process)} parts in out" in result.err and len(in_process) > 12
    assert "outputs were cut at 7 tokens" in result.err
    assert not list((tmp_path / "out").glob(".*"))


def test_finished_parts_are_skipped(cli, run, corpus, tmp_path, expected_outputs, in_process):
    assert cli("predict", run, "--corpus", corpus, "--output", "out").code == 0
    total = len(in_process)
    kept, removed = tmp_path / "out" / "part-00000.txt", tmp_path / "out" / "part-00002.txt"
    kept.write_text("kept\n")
    removed.unlink()
    (tmp_path / "out" / ".part-00002.txt.99.tmp").write_text("half a pa")
    in_process.clear()
    result = cli("predict", run, "--corpus", corpus, "--output", "out")
    assert in_process == [2] and f"{total - 1} of {total} parts are finished already" in result.err
    assert kept.read_text() == "kept\n" and removed.exists() and not list((tmp_path / "out").glob(".*"))


def test_blocks_of_a_part_stay_in_order(cli, run, corpus, tmp_path, expected_outputs, in_process, monkeypatch):
    monkeypatch.setattr(process, "BLOCK_ROWS", 3)
    monkeypatch.setattr(parts, "PART_BYTES", 10_000)
    cli("predict", run, "--corpus", corpus, "--output", "out")
    assert read_outputs(tmp_path / "out") == expected_outputs


def test_json_has_inputs_and_candidates(cli, run, corpus, tmp_path, in_process):
    cli("predict", run, "--corpus", corpus / "c.jsonl", "--output", "out", "--json", "--n-best", 2)
    written = "".join(path.read_text() for path in sorted((tmp_path / "out").glob("part-*.jsonl")))
    lines = [json.loads(line) for line in written.splitlines()]
    assert [line["input"] for line in lines] == TEXTS[30:45]
    assert len(lines[1]["candidates"]) == 2


@pytest.mark.parametrize(
    ("name", "content", "bad", "reason"),
    [
        ("a.txt", b"3 May 1999\n" * 30 + b"3 May \xff\n4 May 2000\n", 31, r"not valid UTF-8 \(byte 0xff"),
        ("a.jsonl", b'{"text": "3 May 1999"}\n' * 30 + b'{"text":\n{"text": "x"}\n', 31, "not valid JSON"),
        ("a.jsonl", b'{"text": "3 May 1999"}\n' * 30 + b'{"text": 3}\n{"text": "x"}\n', 31, "expected text in column"),
        ("a.txt", b"3 May 1999\n" * 30 + b"3 May " * 50 + b"\nx\n", 31, "tokens"),
    ],
)
def test_a_bad_row_is_named_by_file_and_row(cli, run, tmp_path, in_process, name, content, bad, reason):
    (tmp_path / name).write_bytes(content)
    result = cli("predict", run, "--corpus", name, "--output", "out")
    assert result.code == 2 and f"error: {name}:{bad}: " in result.err
    result = cli("predict", run, "--corpus", name, "--output", "skipped", "--on-error", "skip")
    outputs = read_outputs(tmp_path / "skipped")
    assert result.code == 0 and len(outputs) == 32 and outputs[30] == "" and outputs[29]
    [errors] = (tmp_path / "skipped").glob("*.errors.jsonl")
    listed = [json.loads(line) for line in errors.read_text().splitlines()]
    assert [error["row"] for error in listed] == [f"{name}:{bad}"]
    assert re.search(reason, listed[0]["error"])
    assert "1 rows were skipped; skipped/*.errors.jsonl have their files and rows" in result.err


def test_a_bad_row_of_a_table_is_named_by_its_row(tmp_path):
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["x", "y", None, "z"]}), path, row_group_size=2)
    second = split_into_parts([path], part_bytes=1)[1]
    found = [*iter_rows(second, None)]
    assert found[1] == "z" and "expected text in column 'text', got NoneType" in found[0].reason
    assert name_row(second, 0) == f"{path}:3"


@pytest.mark.parametrize("part_bytes", [1, 7, 20, 1000])
def test_parts_of_any_size_have_each_line_once(tmp_path, part_bytes):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\n\n\ntwo three\r\n" + b"x" * 30 + b"\nno end")
    found = split_into_parts([path], part_bytes=part_bytes)
    rows = [(name_row(part, row), text) for part in found for row, text in enumerate(iter_rows(part, None))]
    texts = ["one", "", "", "two three", "x" * 30, "no end"]
    assert rows == [(f"{path}:{number}", text) for number, text in enumerate(texts, 1)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--corpus", "corpus"), "--corpus needs a folder for the outputs; give it by --output DIR"),
        (("--corpus", "corpus", "-o", "out", "--input", "x"), "--corpus does not go with --input; leave one of them"),
        (("--corpus", "corpus", "-o", "out", "3 May 1999"), "--corpus does not go with inputs"),
        (("--corpus", "corpus", "-o", "out", "--n-best", "2"), "n_best is 2; give --json too"),
        (("--corpus", "corpus", "-o", "out", "--on-error", "x"), "--on-error x: expected stop or skip"),
        (("--corpus", "corpus", "-o", "corpus"), "--output corpus exists and is no output of --corpus"),
        (("--corpus", "nowhere", "-o", "out"), "--corpus nowhere is neither a file nor a folder; expected text, .tsv"),
        (("--corpus", "nowhere.txt", "-o", "out"), "nowhere.txt not found"),
        (("--corpus", "corpus", "-o", "out", "--column", "id"), "--column id: corpus/a.txt has no columns"),
        (("x", "--processes", "2"), "--processes is for --corpus PATH, which is not given"),
        (("x", "--ray", "local"), "--ray is for --corpus PATH, which is not given"),
    ],
)
def test_a_wrong_command_is_one_line(cli, run, corpus, in_process, words, message):
    result = cli("predict", run, *words)
    assert result.code == 2 and message in result.err and result.err.count("\n") == 1


def test_a_second_start_with_other_settings_is_refused(cli, run, other, corpus, tmp_path, in_process):
    words = ("--corpus", corpus / "a.txt", "--output", "out")
    assert cli("predict", run, *words).code == 0
    assert "out has outputs with another decoding (" in cli("predict", run, *words, "beam=2").err
    assert "out has outputs with another runs (" in cli("predict", other, *words).err
    assert "out has outputs with another format (" in cli("predict", run, *words, "--json").err
    (corpus / "a.txt").write_text("changed\n")
    assert "out has outputs with another files (" in cli("predict", run, *words).err
    (tmp_path / "out" / MANIFEST).write_text("{")
    assert "corpus.json cannot be read; choose another --output" in cli("predict", run, *words).err


def test_two_commands_do_not_write_to_one_folder(cli, run, corpus, tmp_path, in_process):
    words = ("--corpus", corpus / "a.txt", "--output", "out")
    assert cli("predict", run, *words).code == 0
    with (tmp_path / "out" / MANIFEST).open("rb") as file:
        assert lock_file(file)
        assert "another command is writing to out; wait until it ends" in cli("predict", run, *words).err


def test_a_run_that_reads_no_texts_is_refused(cli, corpus, monkeypatch, run):
    monkeypatch.setattr(Predictor, "check_writes", lambda self: setattr(self, "medium", "picture"))
    assert "--corpus is for runs that read texts" in cli("predict", run, "--corpus", corpus, "-o", "out").err


def start(run: Path, corpus: Path, output: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "saccade", "predict", str(run), "--corpus", str(corpus), "--output", str(output)]
    home = str(Path(parts.__file__).parents[3])
    environment = {**os.environ, "PYTHONPATH": home, "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
    environment["RAY_worker_niceness"] = "0"  # by default 15: on a busy machine, actors would hardly run
    return subprocess.Popen([*command, *words], cwd=corpus.parent, env=environment, stderr=subprocess.PIPE, text=True)


def list_children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_process_imports_nothing_from_the_working_folder(cli, run, corpus, tmp_path, expected_outputs, monkeypatch):
    """A process of its own, as a user has it; its first error is that of the command."""
    for name in ("torch", "numpy", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the working folder')")
    monkeypatch.setenv("PYTHONPATH", "")
    assert cli("predict", run, "--corpus", corpus, "--output", "out", "--processes", "1").code == 0
    assert read_outputs(tmp_path / "out") == expected_outputs
    broken = pool.run_pool(CorpusSettings([str(tmp_path)], "", {}), [Part(0, "a.txt")], processes=1)
    with pytest.raises(SaccadeError, match="is not a run"):
        list(broken)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_killed_processes_are_replaced_and_a_killed_command_goes_on(run, tmp_path):
    """One process of the pool is killed, then the command itself; modules of the working folder are never imported."""
    corpus, output = tmp_path / "corpus", tmp_path / "out"
    corpus.mkdir()
    lines = [f"{1 + number % 28} May {1000 + number % 2000}" for number in range(120_000)]
    (corpus / "a.txt").write_text("\n".join(lines))
    for name in ("torch", "numpy", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the working folder')")
    words = ("--processes", "2", "beam=1", "max_length=2", "min_length=0")
    with start(run, corpus, output, *words) as first:
        wait_until(lambda: any(output.glob(".part-*")), first)
        [name] = [path.name for path in sorted(output.glob(".part-*"))[:1]]
        os.kill(int(name.split(".")[-2]), signal.SIGKILL)
        wait_until(lambda: any(output.glob("part-*")), first)
        os.kill(first.pid, signal.SIGKILL)
        assert re.search(r"process [12] ended \(exit code -9\) while it decoded", first.stderr.read())
    finished = {path: path.stat().st_mtime_ns for path in output.glob("part-*")}
    with start(run, corpus, output, *words) as second:
        _, errors = second.communicate()
    assert second.returncode == 0, errors
    assert f"{len(finished)} of 2 parts are finished already" in errors and "120,000 outputs in 2 parts" in errors
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    assert len(read_outputs(output)) == 120_000


def wait_until(holds, process: subprocess.Popen[str], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end and process.poll() is None, process.poll()
        time.sleep(0.02)


class DyingProcess:
    """A process of the pool that ends as soon as it gets a part."""

    def __init__(self, number, settings, events, environment):
        self.number, self.part, self.events = number, None, events
        self.process = self
        events.put(pool.Event(self, {"ready": True} if settings.runs else None))

    def wait(self):
        return -9

    def close(self):
        pass

    def start(self, part):
        self.part = part
        self.events.put(pool.Event(self, None))


def test_a_part_whose_process_ends_twice_is_an_error(monkeypatch):
    monkeypatch.setattr(pool, "PartProcess", DyingProcess)
    warnings: list[str] = []
    replies = pool.run_pool(CorpusSettings(["a"], "", {}), [Part(0, "a.txt", 100)], processes=2, warn=warnings.append)
    with pytest.raises(SaccadeError, match="decoded a.txt from 100, for the second time; is there enough memory"):
        list(replies)
    assert warnings == ["process 1 ended (exit code -9) while it decoded a.txt from 100; another one takes its place"]


def test_a_process_that_cannot_start_is_an_error(monkeypatch):
    monkeypatch.setattr(pool, "PartProcess", DyingProcess)
    warnings: list[str] = []
    with pytest.raises(SaccadeError, match=r"processes cannot be started \(exit code -9\); is there enough memory"):
        list(pool.run_pool(CorpusSettings([], "", {}), [Part(0, "a.txt")], processes=1, warn=warnings.append))
    assert warnings == ["process 1 ended (exit code -9) while it started; another one follows"]


def test_samples_differ_between_parts_and_are_reproducible(run, tmp_path):
    (tmp_path / "a.txt").write_text("3 May 1999\n" * 40)
    recipe = Predictor.load(run).recipe
    decoding = recipe.predict.model_copy(update={"sample": True, "beam": 1, "temperature": 3.0}).model_dump(mode="json")
    found = []
    for _ in range(2):
        predictor = PartPredictor(CorpusSettings([str(run)], str(tmp_path), decoding))
        texts = []
        for part in split_into_parts([tmp_path / "a.txt"], part_bytes=220):
            predictor.predict_part(part)
            texts.append((tmp_path / f"{part.name}.txt").read_text())
        found.append(texts)
    assert found[0] == found[1] and found[0][0] != found[0][1]


# ---- Ray


def test_an_actor_decodes_a_part_and_returns_what_is_wrong(run, tmp_path, expected_outputs):
    (tmp_path / "a.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    decoding = Predictor.load(run).recipe.predict.model_dump(mode="json")
    settings = CorpusSettings([str(run)], str(tmp_path), decoding)
    actor = on_ray.PartActor(settings._asdict())
    wanted = split_into_parts([tmp_path / "a.txt"], part_bytes=300)
    for part in wanted:
        batch = {name: [value] for name, value in on_ray.encode_part(part).items()}
        assert on_ray.decode_part(batch) == part
        [reply] = actor(batch)["reply"]
        assert json.loads(reply)["part"] == part.number
    assert read_outputs(tmp_path) == expected_outputs and len(wanted) > 1
    missing = {name: [value] for name, value in on_ray.encode_part(Part(0, str(tmp_path / "b.txt"))).items()}
    assert "b.txt not found" in json.loads(actor(missing)["reply"][0])["error"]
    broken = on_ray.PartActor(settings._replace(runs=[str(tmp_path)])._asdict())
    assert "is not a run" in json.loads(broken(missing)["reply"][0])["error"]


def test_a_missing_package_and_a_missing_cluster_are_one_line(monkeypatch):
    for address in ("127.0.0.1:1", "ray://127.0.0.1:1"):
        with pytest.raises(
            SaccadeError, match=rf"cannot connect to Ray at {address} \(Connection refused\); start one"
        ):
            on_ray.check_reachable(address)
    on_ray.check_reachable("auto")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SaccadeError, match=r"--ray needs the package ray; .*pip install .*\[ray\]"):
        on_ray.connect("local", 1, ".")


@pytest.mark.slow
def test_ray_decodes_the_same_and_imports_nothing_from_the_working_folder(run, corpus, tmp_path, expected_outputs):
    pytest.importorskip("ray")
    for name in ("torch", "numpy", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the working folder')")
    with start(run, corpus, tmp_path / "out", "--ray", "local", "--processes", "1") as command:
        _, errors = command.communicate(timeout=300)
    assert command.returncode == 0, errors
    assert read_outputs(tmp_path / "out") == expected_outputs and "60 outputs in 7 parts" in errors
