"""The public functions as a notebook uses them: plain keywords, results that show themselves, cells that run twice."""

import copy
import random
import typing

import pytest

import saccade
from saccade.config.decoding import Decoding, DecodingSettings
from saccade.config.load import change_decoding, load, to_override_list
from saccade.display import MAX_HTML_ROWS, Tabular, format_cell, format_html_table
from saccade.predict.outputs import Outputs

SMALL = {
    f"{part}.stack.{key}": value
    for part in ("reader", "writer")
    for key, value in {"dim": 8, "heads": 2, "ff": 11, "layers": 1}.items()
}
SHORT = {**SMALL, "train.steps": 2, "train.report_every": 1, "train.valid_every": 2, "predict.max_length": 6}
TEXTS = ["3 May 1999", "21 June 2008", "5. toukokuuta 1994"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("notebook")
        patch.chdir(path)
        patch.delenv("SACCADE_RUNS", raising=False)
        yield path


@pytest.fixture(scope="module")
def run(folder):
    return saccade.train("dates", tiny=True, run="mine", overrides=SHORT)


def test_a_text_gives_a_text_and_a_list_a_list(run):
    many = run.predict(TEXTS)
    assert isinstance(many, list) and many == [run.predict(text) for text in TEXTS]
    assert all(isinstance(text, str) for text in many)


def test_keywords_are_the_decoding_settings(run):
    """Random settings, compared with the table that they stand for."""
    draw = random.Random(3)
    for _ in range(12):
        beam = draw.randint(1, 5)
        settings = {"beam": beam, "n_best": draw.randint(1, beam), "length_penalty": draw.choice([0.0, 1.0])}
        settings |= {"min_length": draw.randint(0, 3), "max_length": draw.randint(4, 9)}
        expected = run.candidates(TEXTS, decoding=run.recipe.predict.model_copy(update=settings))
        assert run.candidates(TEXTS, **settings) == expected
        texts = [[one.text for one in outputs] for outputs in expected]
        assert run.predict(TEXTS, **settings) == (texts if settings["n_best"] > 1 else [first for first, *_ in texts])


def test_keywords_change_the_given_settings_only(run):
    given = Decoding(beam=2, length_penalty=1.5, max_length=5)
    assert run.choose_decoding(given, {"beam": 3}) == given.model_copy(update={"beam": 3})
    assert run.choose_decoding(None, {"beam": 3}) == run.recipe.predict.model_copy(update={"beam": 3})
    assert run.choose_decoding(None, {}) is run.recipe.predict


def test_more_outputs_widen_the_beam(run):
    wide = run.recipe.predict.beam + 3
    assert [len(outputs) for outputs in run.predict(TEXTS, n_best=wide)] == [wide] * len(TEXTS)
    with pytest.raises(saccade.SaccadeError, match="n_best must be at most beam, got n_best = 3 and beam = 2"):
        run.predict(TEXTS, beam=2, n_best=3)


def test_an_unknown_keyword_is_reported_with_the_nearest(run):
    with pytest.raises(saccade.SaccadeError, match=r"predict\.beams: unknown key; did you mean 'beam'\?"):
        run.predict("3 May 1999", beams=5)
    with pytest.raises(saccade.SaccadeError, match=r"predict\.beam: expected a whole number, got '5'"):
        run.predict("3 May 1999", beam="5")


def test_the_keywords_are_the_keys_of_the_table():
    assert [*typing.get_type_hints(DecodingSettings)] == [*Decoding.model_fields]


def test_settings_of_a_recipe_can_be_none_and_lists():
    recipe = load("gpt2", tiny=True)
    found = change_decoding(recipe, {"max_length": None, "stop": [".", "!"]})
    assert (found.max_length, found.stop) == (None, (".", "!"))


def test_outputs_are_a_table(run):
    outputs = run.predict(TEXTS)
    assert outputs.to_records() == [{"input": text, "output": one} for text, one in zip(TEXTS, outputs, strict=True)]
    frame = run.predict(TEXTS, n_best=2).to_pandas()
    assert [*frame.columns] == ["input", "rank", "output"]
    assert [*frame["rank"]] == [1, 2] * 3
    assert [*frame["output"]] == [text for pair in run.predict(TEXTS, n_best=2) for text in pair]
    assert outputs[:2] == list(outputs)[:2] and copy.copy(outputs) == outputs


def test_tables_escape_what_a_model_wrote():
    shown = Outputs(["<script>alert(1)</script>"], ["a & b"])._repr_html_()
    assert "<script>" not in shown and "a &amp; b" in shown


def test_long_tables_are_cut_and_say_so():
    shown = format_html_table([{"n": n} for n in range(MAX_HTML_ROWS + 7)])
    assert shown.count("<tr>") == MAX_HTML_ROWS + 1 and shown.endswith("<p>and 7 more rows</p>")


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (True, "True"), (0.123456, "0.1235"), (1234567, "1,234,567"), (98765.4, "98,765"), ("x", "x")],
)
def test_numbers_in_tables_are_rounded(value, text):
    assert format_cell(value) == text


def test_a_run_says_what_it_is(run, folder):
    assert repr(run).startswith("<saccade run mine: recipe dates, task translate, parameters ")
    assert "steps 2" in repr(run) and run.name == "mine" and run.path.samefile(folder / "runs/mine")
    assert "<td>translate</td>" in run._repr_html_()


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (3, "predict takes a text or a list of texts, got int$"),
        (None, "predict takes a text or a list of texts, got NoneType$"),
        (["a", None], "^expected texts, got NoneType$"),
        (["a", float("nan")], "^expected texts, got float$"),
    ],
)
def test_what_is_no_text_is_refused_in_one_line(run, texts, message):
    with pytest.raises(saccade.SaccadeError, match=message):
        run.predict(texts)


@pytest.mark.parametrize("data", [3, {"a": "b"}, [3], [("a", 3)], "frame"])
def test_data_in_memory_is_refused_with_the_way_to_a_file(data):
    if data == "frame":
        data = pytest.importorskip("pandas").DataFrame({"source": ["a"], "target": ["b"]})
    with pytest.raises(saccade.SaccadeError, match=r"data is given as files, got \w+; write it to a file .*to_csv"):
        saccade.train("dates", tiny=True, data=data)


def test_a_cell_can_be_executed_twice(run, folder):
    before = (folder / "runs/mine/model.safetensors").read_bytes()
    with pytest.raises(saccade.SaccadeError, match="already; resume it: .*; replace it: --overwrite .overwrite=T"):
        saccade.train("dates", tiny=True, run="mine", overrides=SHORT)
    for _ in range(2):
        saccade.train("dates", tiny=True, run="again", overrides={**SHORT, "train.seed": 5}, overwrite=True)
    assert (folder / "runs/mine/model.safetensors").read_bytes() == before
    assert not [*(folder / "runs").glob(".*")]


def test_a_run_is_not_lost_when_the_new_one_cannot_start(run, folder):
    saccade.train("dates", tiny=True, run="kept", overrides=SHORT)
    before = {path.name: path.read_bytes() for path in (folder / "runs/kept").iterdir() if path.is_file()}
    missing = {**SHORT, "data.train": [{"files": ["no-such-file.tsv"]}]}
    with pytest.raises(saccade.SaccadeError, match="no-such-file"):
        saccade.train("dates", tiny=True, run="kept", overrides=missing, overwrite=True)
    after = {path.name: path.read_bytes() for path in (folder / "runs/kept").iterdir() if path.is_file()}
    assert after == before and not [*(folder / "runs").glob(".*")]


def test_a_run_that_is_trained_elsewhere_is_not_replaced(run, folder):
    from saccade.runs import lock_run

    with lock_run(folder / "runs/mine"), pytest.raises(saccade.SaccadeError, match="being trained by another process"):
        saccade.train("dates", tiny=True, run="mine", overrides=SHORT, overwrite=True)
    assert (folder / "runs/mine/recipe.toml").exists()


def test_overwrite_needs_a_name(folder):
    with pytest.raises(saccade.SaccadeError, match="needs the name of the run to replace; give run=NAME"):
        saccade.train("dates", tiny=True, overwrite=True)


def test_overrides_are_a_dictionary_or_a_list():
    given = {"train.steps": 3, "train.metric": "loss", "train.watch": True, "freeze": ["reader"], "train.epochs": None}
    listed = to_override_list(given)
    assert listed[:2] == ["train.steps=3", 'train.metric="loss"']
    loaded, plain = load("dates", tiny=True, overrides=listed), load("dates", tiny=True)
    assert (loaded.train.steps, loaded.train.watch, loaded.freeze) == (3, True, ("reader",))
    assert loaded.train.epochs is None and plain.train.steps != 3
    assert to_override_list(["a=1"]) == ["a=1"]
    with pytest.raises(saccade.SaccadeError, match="override 'train.steps': expected a number, text, .* got a object"):
        to_override_list({"train.steps": object()})


def test_evaluate_takes_a_name_a_loaded_run_and_files(run, folder):
    (folder / "test.tsv").write_text("3 May 1999\t1999-05-03\n21 June 2008\t2008-06-21\n")
    by_name = saccade.evaluate("mine", "test.tsv", metrics="accuracy,chrf", beam=1)
    loaded = saccade.evaluate(run, ["test.tsv"], metrics=["accuracy", "chrf"], beam=1)
    assert by_name.scores == loaded.scores and by_name.sentences == 2
    assert by_name.hypotheses == run.predict(["3 May 1999", "21 June 2008"], beam=1)
    frame = by_name.to_pandas()
    assert [*frame["metric"]] == ["accuracy", "chrf"] and frame["value"][0] == by_name.scores["accuracy"].value
    assert str(by_name).startswith("accuracy  ") and "<td>accuracy</td>" in by_name._repr_html_()


def test_compare_gives_a_row_for_each_run(run, folder):
    (folder / "test.tsv").write_text("3 May 1999\t1999-05-03\n21 June 2008\t2008-06-21\n")
    found = saccade.compare([run, "mine"], "test.tsv", metric="accuracy")
    frame = found.to_pandas()
    assert len(frame) == 2 and frame["difference"][1] == 0.0
    assert {"run", "accuracy", "low", "high", "p", "parameters"} <= {*frame.columns}


def test_view_shows_the_attention_of_one_input(run):
    assert saccade.view("mine", "3 May 1999").json() == saccade.view(run, "3 May 1999").json()
    forced = saccade.view(run, "3 May 1999", "1999")
    assert forced.json() != saccade.view(run, "3 May 1999").json()


def test_plan_takes_a_recipe_or_a_run(run):
    plan = saccade.plan("transformer", overrides={"reader.stack.layers": 2}, gpu="A100")
    frame = plan.to_pandas()
    counts = dict(zip(frame["quantity"], frame["value"], strict=True))
    assert 0 < counts["parameters"] < saccade.plan("transformer", gpu="A100").to_records()[0]["value"]
    assert repr(plan).startswith("<plan of transformer: ") and "A100" in repr(plan)
    assert saccade.plan("mine", gpu="A100").vocabulary == run.tokenizers.source.size


def test_recipes_are_a_table():
    frame = saccade.recipes().to_pandas()
    assert "transformer" in [*frame["name"]]
    assert frame[frame["name"] == "gpt2"]["task"].item() == "language-model"


def test_a_model_goes_out_and_comes_back(folder):
    small = {"writer.stack.dim": 8, "writer.stack.heads": 2, "writer.stack.ff": 11, "train.steps": 1}
    run = saccade.train("gpt2", tiny=True, run="letters", overrides=small, overwrite=True)
    path = saccade.export(run, folder / "exported")
    assert (path / "config.json").is_file()
    back = saccade.import_model(path, "came-back")
    assert back.predict(["The"], sample=False, max_length=5) == run.predict(["The"], sample=False, max_length=5)


def test_every_result_is_tabular(run):
    assert isinstance(run, Tabular) and isinstance(saccade.recipes(), Tabular)
