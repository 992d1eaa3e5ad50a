"""`saccade reproduce`: pass or fail against a recorded number, each test scored once per seed."""

import hashlib
import json

import pytest
import tomli_w

from saccade.breaks.registry import apply, find_break
from saccade.config.load import load
from saccade.errors import Diverged
from saccade.reproduce import seeds as trials

NAME = "set-encoder-sums"
FEW = ["train.steps=2", "train.valid_every=2", "train.save_every=2", "train.schedule.warmup_steps=1"]
TEST = [{"files": ["embedded:sums-heldout"], "examples": 40}]


@pytest.fixture
def spec(tmp_path):
    """Write a file with one result: two steps of a set encoder, recorded with about half right."""

    def write(name="mine", **changes):
        recorded = {"values": {"9": 50.0}, "hardware": "a CPU", "date": "2026-01-01", **changes.pop("recorded", {})}
        table = {
            "title": "a set encoder", "dataset": "embedded", "recipe": "set-encoder", "tiny": True, "test": TEST,
            "settings": [*FEW, "data.train.0.examples=60", "data.valid.0.examples=20", "reader.stack.dim=8"],
            "metric": "accuracy", "unit": "%", "floor": 50.0, "tuned": "nothing", "recorded": recorded, **changes,
        }  # fmt: skip
        path = tmp_path / f"{name}.toml"
        path.write_text(tomli_w.dumps({"results": {name: table}}), "utf-8")
        return path

    return write


def read_card(tmp_path, name="mine", kind="card"):
    return json.loads((tmp_path / "runs" / "reproduce" / name / f"{kind}.json").read_text("utf-8"))


def test_a_recorded_result_passes_and_is_not_scored_twice(cli, tmp_path):
    result = cli("reproduce", NAME, "--seeds", 1)
    assert result.code == 0, result.err
    folder = tmp_path / "runs" / "reproduce" / NAME
    card = read_card(tmp_path, NAME)
    assert (card["verdict"], card["mean"], card["scored"]) == ("pass", card["seeds"][0]["scores"]["accuracy"], "test")
    assert card["mean"] == pytest.approx(card["recorded"]["values"]["1"], abs=2)
    assert card["seeds"][0]["parameters"] == card["recorded"]["parameters"] and card["seeds"][0]["minutes"] > 0
    page = (folder / "card.md").read_text("utf-8")
    assert page.startswith(f"# {NAME}: pass") and page in result.out
    assert "Seed 1: scored 2 times" in page and "every seed is within 2 % of sets of its own recorded value" in page
    before = (folder / "seed-1.json").read_bytes()
    again = cli("reproduce", NAME, "--seeds", 1)
    assert again.code == 0 and "seed 1: its test data was scored on" in again.err and "step" not in again.err
    assert (folder / "seed-1.json").read_bytes() == before
    assert cli("reproduce", NAME, "--seeds", 1, "--again").code == 0
    assert "Seed 1: scored 3 times" in (folder / "card.md").read_text("utf-8")


def test_a_dropped_feedforward_network_fails(cli, tmp_path):
    with apply(find_break("feedforward-dropped")):
        result = cli("reproduce", NAME, "--seeds", 1)
    assert result.code == 1
    assert read_card(tmp_path, NAME)["verdict"] == "fail" and "the recorded 86.20" in result.out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["attention-to-itself", "one-layer-more", "uniform-attention", "set-of-one-element"])
def test_other_breaks_fail(name, cli):
    with apply(find_break(name)):
        assert cli("reproduce", NAME, "--seeds", 1).code == 1


def test_recorded_seeds_are_left_out_on_request(cli, spec, tmp_path):
    path = spec(recorded={"values": {"1": 50.0, "2": 40.0}})
    refused = cli("reproduce", path, "--seeds", 2, "--only-new")
    assert refused.code == 2 and refused.err == (
        "error: mine: seeds up to 2 are recorded; --seeds 3 adds a seed, without --only-new they are trained again\n"
    )
    added = cli("reproduce", path, "--seeds", 3, "--only-new")
    assert added.code == 0 and "seed 2: recorded on 2026-01-01, with 40; left out" in added.err
    card = read_card(tmp_path)
    assert ([item["seed"] for item in card["seeds"]], card["kept"]) == ([3], {"1": 50.0, "2": 40.0})
    assert "Recorded and left out: seed 1, 50." in added.out
    repeated = cli("reproduce", path, "--seeds", 1, "--out", "other")
    assert "Seed 1: scored 2 times" in repeated.out and "--seeds 1" in repeated.out
    heldout = cli("reproduce", path, "--seeds", 1, "--heldout")
    assert heldout.code == 0 and "Seed 1: scored once" in heldout.out


def test_a_result_that_is_not_recorded_is_measured_and_not_compared(cli, spec, tmp_path):
    path = spec()
    path.write_text(path.read_text("utf-8").split("[results.mine.recorded]")[0], "utf-8")
    result = cli("reproduce", path, "--seeds", 1)
    assert result.code == 0 and "Not compared: nothing is recorded yet." in result.out
    card = read_card(tmp_path)
    assert (card["verdict"], card["recorded"]) == ("not compared", {}) and card["mean"] is not None
    assert "accuracy not recorded %" in cli("reproduce", path, "--list").out


def test_a_trial_shows_that_everything_runs_and_keeps_no_score(cli, spec, tmp_path):
    recorded = {"values": {"1": 50.0}, "minutes": 60.0}
    path = spec(settings=["data.train.0.examples=60", "reader.stack.dim=8"], recorded=recorded)
    for _ in range(2):  # the second one does not find the first one's result
        result = cli("reproduce", path, "--try", 3, "--budget", 1)
        assert result.code == 0 and "step 3/3" in result.err and "a trial shows that everything runs" in result.out
    assert not (tmp_path / "runs" / "reproduce" / "mine").exists()
    card = read_card(tmp_path, "mine-trial")
    [seed] = card["seeds"]
    assert (card["verdict"], card["mean"], seed["scores"], seed["steps"]) == ("not compared", None, {}, 3)
    recipe = (tmp_path / "runs" / "reproduce" / "mine-trial" / "seed-1" / "recipe.toml").read_text()
    assert "batch_tokens = 32" in recipe and "examples = 2\n" in recipe


def test_a_trial_reads_few_documents_but_all_labels():
    """Labels may be in order, as those of folders of images are."""
    data = ["data.train=[{files=['a.txt']}]", "data.valid=[{files=['b.txt']}]"]
    for name, read in (("gpt2", 20), ("classify", None)):
        recipe = trials.shorten_training(load(name, overrides=data), 3)
        assert [corpus.examples for corpus in (*recipe.data.train, *recipe.data.valid)] == [read, 2]
        assert (recipe.train.steps, recipe.train.accumulate, recipe.train.epochs) == (3, 1, None)
        assert recipe.data.max_length <= recipe.train.batch_tokens <= 1024


def test_a_trial_scores_the_beginning_of_two_documents(cli, tmp_path):
    """One document may be a book, and a large model would read it for hours."""
    book = "All happy families are alike. " * 2000
    for name in ("train", "valid"):
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps({'text': book})}\n" for _ in range(3)))
    digest = hashlib.sha256((tmp_path / "valid.jsonl").read_bytes()).hexdigest()
    (tmp_path / "mine.toml").write_text(f"""
dataset = "books"
[files]
"train.jsonl" = "{digest}"
"valid.jsonl" = "{digest}"
[results.mine]
title = "a language model"
recipe = "shakespeare"
tiny = true
train = [["train.jsonl"]]
valid = [["valid.jsonl"]]
test = [["valid.jsonl"]]
scored = "validation"
settings = ["writer.stack.layers=1"]
metric = "bits_per_byte"
unit = "bits per byte"
floor = 0.1
tuned = "nothing"
""")
    result = cli("reproduce", "mine.toml", "--try", 2, "--data-folder", tmp_path)
    assert result.code == 0, result.err
    folder = tmp_path / "runs" / "reproduce" / "mine-trial"
    excerpts = list(folder.glob("excerpt-*.jsonl"))
    assert excerpts and excerpts[0].name in (folder / "seed-1" / "recipe.toml").read_text()
    for path in excerpts:
        texts = [json.loads(line)["text"] for line in path.read_text().splitlines()]
        assert texts == [book[: trials.TRIAL_CHARACTERS]] * 2


def test_runs_are_scored_in_another_way(cli, spec, tmp_path, monkeypatch):
    """The second result has no training of its own, and its decoding may name a stage."""
    path, trained, decoded = spec(before=[{"name": "first", "recipe": "set-encoder", "settings": []}]), [], []
    text = path.read_text("utf-8")
    other = '[results.other]\nruns_of = "mine"\ntitle = "again"\ndecoding = ["teacher={first}", "beam=3"]\n'
    path.write_text(text + other, "utf-8")
    monkeypatch.setattr(trials.Trial, "run_stage", lambda trial, stage, stages, runs: tmp_path / "teacher")
    whole, score = trials.train_or_load, trials.score_corpora
    monkeypatch.setattr(trials, "train_or_load", lambda recipe, run: trained.append(run) or whole(recipe, run))

    def record(predictor, corpora, names, *, lowercase, decoding):
        decoded.append((decoding.teacher, decoding.beam))
        return score(predictor, corpora, names, lowercase=lowercase, decoding=predictor.recipe.predict)

    monkeypatch.setattr(trials, "score_corpora", record)
    result = cli("reproduce", path, "--seeds", 1)
    assert result.code == 0, result.err
    assert {run.parent.name for run in trained} == {"mine"} and result.err.count("step 2/2") == 1
    (first, _), (teacher, beam) = decoded
    assert (first, teacher, beam) == ("", str(tmp_path / "teacher"), 3)
    assert read_card(tmp_path, "other")["verdict"] == "not compared"
    assert (tmp_path / "runs" / "reproduce" / "other" / "seed-1.json").is_file()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"recorded": {"values": {"9": 99.0}}, "floor": 1.0}, " below the recorded 99.00; a pass is at most 1 apart"),
        ({"recorded": {"values": {"9": 1.0}}, "floor": 1.0}, " above the recorded 1.000; a pass is at most 1 apart"),
        ({"recorded": {"parameters": 1000}}, "parameters, recorded were 1,000"),
    ],
)
def test_another_number_fails_with_exit_code_1(cli, spec, tmp_path, changes, reason):
    result = cli("reproduce", spec(**changes), "--seeds", 1, "--json")
    [card] = json.loads(result.out)
    assert result.code == 1 and card["verdict"] == "fail" and reason in card["reasons"][0]


def test_seeds_are_added_one_at_a_time_with_mean_and_spread(cli, spec, tmp_path, monkeypatch):
    path, trained = spec(), []
    whole = trials.train_or_load
    monkeypatch.setattr(trials, "train_or_load", lambda recipe, run: trained.append(run.name) or whole(recipe, run))
    assert cli("reproduce", path, "--seeds", 1).code == 0
    assert cli("reproduce", path, "--seeds", 3).code == 0
    assert trained == ["seed-1", "seed-2", "seed-3"]
    card = read_card(tmp_path)
    values = [item["scores"]["accuracy"] for item in card["seeds"]]
    assert card["mean"] == pytest.approx(sum(values) / 3) and card["spread"] is not None
    assert card["rows"][-1]["what"] == "mine: accuracy, mean of 3 seeds"


def test_a_trained_run_without_a_score_is_scored_and_not_trained_again(cli, spec, tmp_path):
    path = spec()
    cli("reproduce", path, "--seeds", 1)
    before = read_card(tmp_path)
    (tmp_path / "runs" / "reproduce" / "mine" / "seed-1.json").unlink()
    result = cli("reproduce", path, "--seeds", 1)
    assert result.code == 0 and "step 2" not in result.err
    assert read_card(tmp_path)["seeds"][0]["scores"] == before["seeds"][0]["scores"]


def test_other_settings_do_not_mix_with_those_that_were_scored(cli, spec, tmp_path):
    cli("reproduce", spec(), "--seeds", 1)
    result = cli("reproduce", spec(decoding=["beam=3"]), "--seeds", 2)
    assert result.code == 2 and result.err.count("\n") == 1
    assert "seed 1 of mine was scored with decoding = [], now it is ['beam=3']; a test set is scored once" in result.err
    (tmp_path / "runs" / "reproduce" / "mine" / "seed-1.json").write_text("{}")
    result = cli("reproduce", spec(), "--seeds", 1)
    assert result.code == 2 and "seed-1.json' is damaged; remove it, or choose another --out DIR" in result.err


def test_held_out_data_is_scored_in_place_of_the_test(cli, spec, tmp_path, monkeypatch):
    """With validation files the same run is scored on them, else a share of the training data is held out."""
    path, scored = spec(), []
    whole = trials.score_corpora
    monkeypatch.setattr(
        trials,
        "score_corpora",
        lambda model, corpora, *a, **k: scored.append(corpora) or whole(model, corpora, *a, **k),
    )
    result = cli("reproduce", path, "--seeds", 1, "--heldout", "train.schedule.lr=0.001")
    assert result.code == 0, result.err
    card = read_card(tmp_path, kind="heldout")
    assert (card["verdict"], card["scored"], scored) == ("not compared", "held-out", [])
    assert card["seeds"][0]["settings"]["overrides"] == ["train.schedule.lr=0.001"]
    assert "`train.schedule.lr=0.001`" in result.out and "in place of the test" in result.out
    assert not (tmp_path / "runs" / "reproduce" / "mine" / "seed-1.json").exists()
    [run] = (tmp_path / "runs" / "reproduce" / "mine").glob("seed-1-heldout-*/recipe.toml")
    assert "valid = 0.1" in run.read_text() and "lr = 0.001" in run.read_text()
    own = spec(valid=[{"files": ["embedded:sums-heldout"], "examples": 30}], settings=[*FEW, "reader.stack.dim=8"])
    assert cli("reproduce", own, "--seeds", 1, "--heldout", "--out", "b").code == 0
    assert [corpus.examples for corpus in scored[0]] == [30] and (tmp_path / "b" / "mine" / "seed-1").is_dir()


def test_seeds_that_do_not_fit_into_the_budget_are_not_started(cli, spec, tmp_path):
    """The first seed of all results comes before the second of any."""
    short, long = spec("short", recorded={"minutes": 0.001}), spec("long", recorded={"minutes": 300.0})
    result = cli("reproduce", long, short, "--seeds", 2, "--budget", 5)
    assert result.code == 1 and "long, seed 1: not started, its 300.0 minutes do not fit" in result.err
    assert read_card(tmp_path, "short")["verdict"] == "pass"
    card = read_card(tmp_path, "long")
    assert (card["verdict"], card["reasons"], card["skipped"]) == ("fail", ["no seed was trained"], [1, 2])
    begins = [line.split(":")[0] for line in result.err.splitlines() if ", seed " in line]
    assert begins == ["long, seed 1", "short, seed 1", "long, seed 2", "short, seed 2"]


def test_a_diverged_seed_fails_and_the_others_are_kept(cli, spec, tmp_path, monkeypatch):
    whole = trials.train_or_load

    def diverge(recipe, run):
        if recipe.train.seed == 1:
            raise Diverged("the loss is no longer a finite number")
        return whole(recipe, run)

    monkeypatch.setattr(trials, "train_or_load", diverge)
    result = cli("reproduce", spec(), "--seeds", 2)
    assert result.code == 1 and "seed 1 diverged: the loss is no longer a finite number" in result.out
    card = read_card(tmp_path)
    assert [bool(item["scores"]) for item in card["seeds"]] == [False, True] and card["mean"] is not None


def test_stages_before_a_result_and_choices_on_validation_data(cli, spec, tmp_path, monkeypatch):
    """A student learns from outputs of its teacher, starts with its weights, and the best of two settings is scored."""
    (tmp_path / "data").mkdir()
    lines = [f"{day} May {1990 + day}\n" for day in range(1, 21)]
    (tmp_path / "data" / "a.txt").write_text("".join(lines))
    digest = hashlib.sha256("".join(lines).encode()).hexdigest()
    small = [
        *FEW,
        "train.batch_tokens=256",
        "data.train.0.examples=50",
        "data.valid.0.examples=8",
        "predict.max_length=5",
    ]
    values = {"seed-1-choice-1": 1.0, "seed-1-choice-2": 0.5}
    monkeypatch.setattr(trials, "read_validation", lambda run, metric: values[run.name])
    path = spec(
        recipe="bahdanau", files={"a.txt": digest}, train=[["a.txt", "{outputs}"]],
        choices=[["train.clip=2.0"], ["train.clip=3.0"]],
        test=[{"files": ["embedded:dates-heldout"], "examples": 5}], settings=[*small, "init={teacher}"], floor=100.0,
        before=[
            {"name": "teacher", "recipe": "bahdanau", "train": [{"files": ["embedded:dates"]}], "settings": small},
            {"name": "outputs", "predict": "teacher", "input": "a.txt", "settings": ["beam=2"]},
        ],
    )  # fmt: skip
    result = cli("reproduce", path, "--seeds", 1, "--data-folder", "data")
    assert result.code == 0, result.err
    folder = tmp_path / "runs" / "reproduce" / "mine"
    outputs = (folder / "seed-1-outputs.txt").read_text().splitlines()
    assert len(outputs) == 20
    student = (folder / "seed-1-choice-1" / "recipe.toml").read_text()
    assert "seed-1-teacher" in student and "seed-1-outputs.txt" in student
    item = read_card(tmp_path)["seeds"][0]
    chosen = cli("evaluate", folder / "seed-1-choice-1", "--data", "embedded:dates-heldout", "--metrics", "accuracy")
    assert chosen.code == 0 and item["steps"] == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sclan"], "unknown result 'sclan'"),
        ([NAME, "--seeds", 0], "--seeds must be from 1 to 1,000, got 0"),
        ([NAME, "--seeds", 10**11], "--seeds must be from 1 to 1,000, got 100000000000"),
        ([NAME, "--budget", 0], "--budget must be a number of minutes above 0, got 0"),
        ([NAME, "--budget", "nan"], "--budget must be a number of minutes above 0, got nan"),
        ([NAME, "--try", 0], "--try takes a number of steps of at least 1, without --heldout, got 0"),
        ([NAME, "--try", 2, "--heldout"], "at least 1, without --heldout, got --heldout too"),
        ([NAME, "--only-new"], f"{NAME}: seeds up to 3 are recorded; --seeds 4 adds a seed"),
        ([NAME, "train.steps=1"], "fixed before its test is scored; try train.steps=1 on held-out data with --heldout"),
        (["train.steps=1"], "train.steps=1 needs the NAME of a result; `saccade reproduce --list` lists them"),
        (["fsdd"], "fsdd needs data: give --data-folder DIR with fsdd/"),
        (
            ["nat", "--data-folder", "nowhere"],
            "'nowhere/multi30k/train.en.gz' is missing, expected a file with SHA-256",
        ),
        ([NAME, "nat", "--data-folder", "nowhere"], "'nowhere/multi30k/train.en.gz' is missing"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2_before_any_training(cli, tmp_path, words, message):
    result = cli("reproduce", *words)
    assert (result.code, result.out) == (2, "") and message in result.err and result.err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_an_unknown_metric_is_reported(cli, spec):
    result = cli("reproduce", spec(metric="bits_per_byte"), "--seeds", 1)
    assert result.code == 2 and "mine: this model has no metric 'bits_per_byte', only " in result.err


def test_results_are_listed_with_what_they_need(cli):
    for words in ((), ("--list",)):
        lines = cli("reproduce", *words).out.splitlines()
        assert lines[0].split()[:4] == ["name", "recipe", "data", "recorded"]
        [fsdd] = [line for line in lines if line.startswith("fsdd ")]
        assert "listen-attend-spell" in fsdd and "99.78 ± 0.19 % of digits" in fsdd and "AMD EPYC" in fsdd
    [found] = json.loads(cli("reproduce", "tatoeba-de-en", "--list", "--json").out)
    assert found["recorded"]["values"] == {"1": 57.44} and "tatoeba-de-en/train.de.gz" in found["files"]
