"""Validation examples of a run on the page of the server, and what a run from elsewhere must not make of them."""

import json
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

import saccade
from saccade.config.load import load
from saccade.runs import EXAMPLES, MAX_EXAMPLE_BYTES, SAMPLES, read_example_file, read_examples
from saccade.serve.app import create_app
from saccade.serve.served import find_languages


@pytest.fixture(scope="module")
def client(media_models):
    with TestClient(create_app(media_models), base_url="http://127.0.0.1") as opened:
        yield opened


def list_models(client: TestClient) -> dict[str, dict]:
    return {model["name"]: model for model in client.get("/v1/models").json()["models"]}


def test_examples_are_those_of_the_run(client):
    models = list_models(client)
    assert models["dates"]["examples"][0] == {"input": "21 June 2008", "reference": "2008-06-21"}
    assert models["tones"]["examples"][0].keys() == {"file", "question", "reference"}
    assert "?" in models["questions"]["examples"][0]["question"]


@pytest.mark.parametrize(
    ("name", "kind"), [("scenes", "image/png"), ("questions", "image/png"), ("tones", "audio/x-wav")]
)
def test_the_file_of_an_example_can_be_sent_back(client, name, kind):
    answer = client.get(f"/v1/examples/{name}")
    assert answer.headers["content-type"] == kind
    question = list_models(client)[name]["examples"][0]["question"]
    form = {"model": name, **({"question": question} if question else {})}
    assert client.post("/v1/predict", files={"file": answer.content}, data=form).status_code == 200


@pytest.mark.parametrize("name", ["dates", "nobody", "..%2Fdates"])
def test_a_model_without_a_file_has_none(client, name):
    assert client.get(f"/v1/examples/{name}").status_code == 404


def test_a_server_may_keep_examples_to_itself(media_models):
    with TestClient(create_app(media_models, examples=False), base_url="http://127.0.0.1") as client:
        assert not any(model["examples"] for model in list_models(client).values())
        assert client.get("/v1/examples/scenes").status_code == 404


def test_runs_without_examples_show_the_samples_of_their_last_validation(tmp_path):
    lines = [{"step": at, "samples": [{"input": f"{at}", "reference": "r", "output": "o"}]} for at in (1, 2)]
    (tmp_path / SAMPLES).write_text("\n".join(map(json.dumps, lines)))
    assert read_examples(tmp_path) == [{"input": "2", "reference": "r"}]
    assert read_examples(tmp_path / "none") == []


@pytest.mark.parametrize("content", ["", "{", "3", '["a"]', '[{"input": 3}]', json.dumps([{"input": "a" * 5000}])])
def test_damaged_examples_are_left_out(tmp_path, content):
    (tmp_path / EXAMPLES).write_text(content)
    assert read_examples(tmp_path) == []


def test_no_file_outside_of_the_run_is_read(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    for place in (tmp_path / "example.png", run / "secret.png", run / "example.png"):
        place.write_bytes(b"data")
    (run / "example.link").symlink_to(tmp_path / "example.png")
    assert read_example_file(run, "example.png") == b"data"
    for name in ("../example.png", str(tmp_path / "example.png"), "secret.png", "example.link", "example.jpg", "", "."):
        assert read_example_file(run, name) == b""
    (run / "example.png").write_bytes(bytes(MAX_EXAMPLE_BYTES + 1))
    assert read_example_file(run, "example.png") == b""


@pytest.mark.parametrize("keep", [True, False])
def test_training_keeps_examples_only_if_it_may(tmp_path: Path, keep):
    few = ("train.steps=1", "data.train.0.examples=100", "data.valid=0.1", "train.valid_predictions=2")
    saccade.train("dates", tiny=True, run=tmp_path / "run", overrides=[*few, f"train.keep_examples={json.dumps(keep)}"])
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert ({EXAMPLES, SAMPLES} <= names) == keep and (names.isdisjoint({EXAMPLES, SAMPLES})) == (not keep)
    assert len(read_examples(tmp_path / "run")) == (2 if keep else 0)


def test_a_document_becomes_a_prompt(tmp_path: Path):
    few = ("train.steps=1", "data.train.0.examples=100", "data.valid.0.examples=5")
    saccade.train("gpt2", tiny=True, run=tmp_path / "run", overrides=few)
    examples = read_examples(tmp_path / "run")
    assert examples and all(item["input"] and item["reference"] for item in examples)


@pytest.mark.parametrize(
    ("files", "languages"),
    [
        (["a.en", "a.de"], ("en", "de")),
        (["a.en"], ()),
        (["pairs.tsv", "pairs.csv.gz"], ()),
        (["a.src", "a.tgt"], ()),
    ],
)
def test_languages_are_read_from_the_suffixes_of_files(files, languages):
    assert find_languages(load("multi30k", overrides=[f"data.train=[{{files={files}}}]"])) == languages
    filtered = load("multi30k", overrides=[f"data.train=[{{files={files}}}]", "data.filter.languages=['fr','it']"])
    assert find_languages(filtered) == ("fr", "it")
