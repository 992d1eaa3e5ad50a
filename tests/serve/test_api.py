"""The JSON API returns the same results as the library."""

import json

import pytest

from saccade.config.load import override
from saccade.serve.decoding import DecodingSettings

TEXTS = ["3 May 1999", "21 June 2008", "", "9 May 2008"]


def ask(client, status=200, path="/v1/predict", **body):
    answer = client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def parse_events(answer) -> list[tuple[str, dict]]:
    """Parse the server-sent events of a stream: names and contents."""
    blocks = [block.split("\n") for block in answer.text.strip().split("\n\n")]
    return [("" if len(lines) == 1 else lines[0][len("event: ") :], json.loads(lines[-1][6:])) for lines in blocks]


def test_a_list_of_texts_is_answered_in_order(client, translator):
    answer = ask(client, input=TEXTS)
    assert answer["model"] == "dates"
    assert [result["output"] for result in answer["results"]] == translator.predict(TEXTS)
    assert [result["input"] for result in answer["results"]] == TEXTS


def test_one_text_is_answered_with_its_scores(client, translator):
    [result] = ask(client, input=TEXTS[0])["results"]
    [[found]] = translator.candidates([TEXTS[0]])
    assert result["output"] == found.text
    assert result["log_prob"] == pytest.approx(found.log_prob)
    assert result["score"] == pytest.approx(found.score)


def test_alternatives_come_best_first(client, translator):
    [result] = ask(client, input=TEXTS[0], settings={"n_best": 3})["results"]
    decoding = override(translator.recipe, ["predict.beam=3", "predict.n_best=3"]).predict
    [found] = translator.candidates([TEXTS[0]], decoding=decoding)
    assert [item["output"] for item in result["candidates"]] == [item.text for item in found]
    assert sorted((item["score"] for item in result["candidates"]), reverse=True) == pytest.approx(
        [item.score for item in found]
    )


def test_terms_are_a_setting(client):
    settings = {"beam": 3, "terms": [["May", "0606"], ["June", "20080621-20"]]}
    results = ask(client, input=TEXTS[:2], settings=settings)["results"]
    assert "0606" in results[0]["output"] and "missing_terms" not in results[0]
    assert results[1]["missing_terms"] == ["20080621-20"]
    message = ask(client, status=422, input=TEXTS[0], settings={"beam": 3, "terms": [["May", "?"]]})["error"]
    assert message == "the target phrase '?' has letters or words that the model does not know"


def test_a_language_model_continues_prompts(client, writer):
    settings = {"sample": False, "beam": 1, "max_length": 7}
    answer = ask(client, model="writer", input=["the ", "a dog"], settings=settings)
    decoding = override(
        writer.recipe, [f"predict.{key}={json.dumps(value)}" for key, value in settings.items()]
    ).predict
    assert [result["completion"] for result in answer["results"]] == writer.predict(
        ["the ", "a dog"], decoding=decoding
    )
    assert all(len(result["tokens"]) == len(result["log_probs"]) for result in answer["results"])


def test_sampling_with_a_seed_is_reproducible(client):
    bodies = [{"input": TEXTS[0], "settings": {"sample": True, "seed": seed, "temperature": 3.0}} for seed in (1, 2, 1)]
    first, second, third = (ask(client, **body)["results"] for body in bodies)
    assert first == third
    assert first != second


def test_a_stream_sends_the_output_in_chunks(client, writer):
    settings = {"sample": False, "beam": 1, "max_length": 7}
    whole = ask(client, model="writer", input="the ", settings=settings)["results"][0]["completion"]
    answer = client.post("/v1/predict", json=dict(model="writer", input="the ", settings=settings, stream=True))
    assert answer.headers["content-type"].startswith("text/event-stream")
    *pieces, last = parse_events(answer)
    assert len(pieces) > 3
    assert "".join(piece["text"] for _, piece in pieces) == whole
    assert last == ("done", {"output": whole})


def test_a_stream_of_a_translator_has_one_chunk(client, translator):
    answer = client.post("/v1/predict", json=dict(input=TEXTS[0], stream=True))
    [output] = translator.predict([TEXTS[0]])
    assert parse_events(answer) == [("", {"text": output}), ("done", {"output": output})]


def test_invalid_streams_are_refused_before_they_start(client):
    answer = client.post("/v1/predict", json=dict(model="writer", input="a", stream=True, settings={"n_best": 2}))
    assert answer.status_code == 422
    assert "set beam=1 and n_best=1" in answer.json()["error"]
    assert "stream: expected one input, got 2" in ask(client, 422, input=["a", "b"], stream=True)["error"]


def test_models_report_their_settings(client, translator):
    first, second = client.get("/v1/models").json()["models"]
    assert (first["name"], first["goes_on"], second["name"], second["goes_on"]) == ("dates", False, "writer", True)
    assert (first["input_label"], first["page_settings"]) == ("Text", None)
    assert first["settings"] == translator.recipe.predict.model_dump(mode="json")
    assert first["max_length"] == 40


def test_attention_is_that_of_the_model(client, translator):
    document = ask(client, path="/v1/attention", input="3 May 1999", output="1999")
    seen = translator.attention("3 May 1999", "1999")
    assert [entry["address"] for entry in document["maps"]] == list(seen.maps)
    for entry in document["maps"]:
        assert entry["weights"] == pytest.approx(seen.maps[entry["address"]].numpy(), abs=1e-6)
    assert document["labels"]["source"] == seen.source_labels
    assert document["output"] == "1999"


def test_attention_without_an_output_is_of_the_decoded_output(client, translator):
    document = ask(client, path="/v1/attention", input="3 May 1999", settings={"prefix": "9-9"})
    assert document["output"].startswith("9-9")
    assert ask(client, path="/v1/attention", input="3 May 1999")["output"] == translator.predict(["3 May 1999"])[0]


def test_packed_weights_are_text(client):
    document = ask(client, path="/v1/attention", input="3 May 1999", packed=True)
    assert {entry["weights"]["codec"] for entry in document["maps"]} == {"f32-deflate"}


def test_attention_that_is_too_large_is_refused(make_client):
    error = ask(make_client(max_weights=100), 422, path="/v1/attention", input="3 May 1999")["error"]
    assert "more than 100 weights here, which is too much; give a shorter text" in error


def test_health_and_page_and_description_are_there(client):
    assert client.get("/health").json()["status"] == "ok"
    assert "text/html" in client.get("/").headers["content-type"]
    assert client.get("/docs").status_code == 200
    assert set(client.get("/openapi.json").json()["paths"]) == {
        "/v1/models", "/v1/examples/{model}", "/v1/predict", "/v1/attention", "/health", "/metrics",
    }  # fmt: skip


def test_files_of_the_page_are_served_and_ask_nobody_else(client):
    page = client.get("/").text
    for path in ("/static/try.js", "/static/try.css", "/static/api.js", "/static/settings.js", "/static/view/main.js"):
        assert client.get(path).status_code == 200, path
    assert "http://" not in page
    assert "https://" not in page


def test_metrics_count_requests_and_texts(client):
    ask(client, input=TEXTS)
    ask(client, 422, input=3)
    answer = client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = answer.text.splitlines()
    assert 'saccade_requests_total{route="/v1/predict",status="200"} 1.0' in lines
    assert 'saccade_requests_total{route="/v1/predict",status="422"} 1.0' in lines
    assert 'saccade_texts_total{model="dates"} 4.0' in lines
    assert 'saccade_batch_texts_bucket{le="4.0",model="dates"} 1.0' in lines
    assert 'saccade_batch_texts_bucket{le="2.0",model="dates"} 0.0' in lines
    assert 'saccade_request_seconds_count{route="/v1/predict"} 2.0' in lines
    assert "saccade_requests_in_flight 1.0" in lines
    assert [line for line in lines if line.startswith('saccade_decoded_batches_total{engine="')]
    declined = 'engine="cuda-graphs",model="dates",reason="the batch is on cpu, not on cuda"'
    assert [line for line in lines if line.startswith(f"saccade_engine_fallbacks_total{{{declined}}} ")]
    assert not [line for line in lines if "_created" in line]


def test_long_settings_are_not_cached(translator):
    settings = DecodingSettings(translator.recipe)
    for stop in ("x" * 5000, "y"):
        assert settings.build_decoding({"stop": stop}).stop == (stop,)
    assert settings._parse_cached.cache_info().currsize == 1
