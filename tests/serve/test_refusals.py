"""Requests that the server refuses, each with a status code and a reason in one line of JSON."""

import re

import pytest

from saccade.serve import app as api

BAD_BODIES = {
    b"{": (422, "not valid JSON"),
    b"": (422, "expected a JSON object with"),
    b"[]": (422, "expected a JSON object with"),
    b"null": (422, "expected a JSON object with"),
    b"\xff": (400, "cannot be read"),
    b"[" * 50_000: (400, "cannot be read"),
    b"{}": (422, "input: is missing; expected a text, or a list of texts"),
    b'{"input": 3}': (422, "input: expected a text, or a list of texts, got 3"),
    b'{"input": null}': (422, "input: expected a text, or a list of texts, got nothing"),
    b'{"input": ["a", 3]}': (422, "input: expected a text, or a list of texts, got"),
    b'{"input": []}': (422, "input: expected 1 to 128 inputs, got 0"),
    b'{"input": "\\ud800"}': (422, "lone surrogate"),
    b'{"input": "a", "model": "nobody"}': (404, "no model is called 'nobody'; there are dates, writer"),
    b'{"input": "a", "model": "\\ud800"}': (404, "no model is called"),
    b'{"input": "a", "stream": "yes"}': (422, "stream: expected true or false"),
    b'{"inptu": "a"}': (422, "inptu: unknown key; did you mean 'input'?"),
    b'{"input": "a", "settings": 3}': (422, "settings: expected an object"),
    b'{"input": "a", "settings": {"beam": 0}}': (422, "settings: predict.beam: expected at least 1, got 0"),
    b'{"input": "a", "settings": {"baem": 2}}': (422, "predict.baem: unknown key; did you mean 'beam'?"),
    b'{"input": "a", "settings": {"beam": "many"}}': (422, "predict.beam: expected a whole number, got 'many'"),
    b'{"input": "a", "settings": {"beam": NaN}}': (422, "predict.beam: expected a whole number, got nan"),
    b'{"input": "a", "settings": {"\\ud800": 1}}': (422, "settings:"),
    b'{"input": "a", "settings": {"beam": 1000}}': (422, "expected at most 32 in a request to this server, got 1000"),
    b'{"input": "a", "settings": {"temperature": 1e-9}}': (422, "expected at least 0.01 in a request to this server"),
    b'{"input": "a", "settings": {"seed": 99999999999999999999}}': (
        422,
        "whole number that is too large, expected at most 9223372036854775807",
    ),
    b'{"input": "a", "settings": {"n_best": 3, "beam": 2}}': (422, "n_best must be at most beam"),
    b'{"input": "a", "settings": {"stop": ["."]}}': (422, "stop is for models that continue a prompt"),
    b'{"input": "a", "settings": {"max_length": 100}}': (422, "max_length must be at most 39"),
    b'{"input": ["1", "' + b"1" * 50 + b'"]}': (422, "line 2 has 51 tokens, but the model was made for at most 40"),
}


@pytest.mark.parametrize("body", BAD_BODIES, ids=lambda body: body[:40].decode("latin-1"))
def test_a_wrong_body_is_reported_in_one_line(client, body):
    status, says = BAD_BODIES[body]
    answer = client.post("/v1/predict", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text
    assert says in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


def test_a_missing_json_content_type_is_reported(client):
    answer = client.post("/v1/predict", content=b'{"input": "a"}', headers={"content-type": "text/plain"})
    assert answer.status_code == 422
    assert answer.json()["error"].endswith("expected the header Content-Type: application/json; add it")


def test_several_mistakes_are_one_line(client):
    answer = client.post("/v1/predict", json={"input": "a", "settings": {"beam": 0, "top_p": 2}})
    assert answer.json()["error"] == (
        "settings has 2 mistakes: predict.beam: expected at least 1, got 0; predict.top_p: expected at most 1.0, got 2"
    )


def test_a_large_body_is_refused_by_its_header_and_by_its_size(make_client):
    client = make_client(max_body_bytes=1000)
    answer = client.post("/v1/predict", json={"input": "a" * 1000})
    assert answer.status_code == 413
    assert answer.json()["error"].startswith("a request has at most 1000 bytes, got 10")
    parts = (b"a" * 100 for _ in range(11))  # without Content-Length
    answer = client.post("/v1/predict", content=parts, headers={"content-type": "application/json"})
    assert answer.status_code == 413
    assert "got more" in answer.json()["error"]


def test_many_texts_are_refused(make_client):
    answer = make_client(max_inputs=3).post("/v1/predict", json={"input": ["1"] * 4})
    assert answer.status_code == 422
    assert answer.json() == {"error": "input: expected 1 to 3 inputs, got 4"}


@pytest.mark.parametrize(
    "path",
    ["/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static/..%5capp.py", "/static/%00",
     "/static//etc/passwd", "/static/view/../../serve/app.py", "/static/view/%2e%2e%2fhtml.py", "/static", "/nothing"],
)  # fmt: skip
def test_path_traversal_is_refused(client, path):
    answer = client.get(path)
    assert answer.status_code == 404
    assert "no route" in answer.json()["error"]


def test_a_wrong_method_is_reported(client):
    answer = client.get("/v1/predict")
    assert answer.status_code == 405
    assert answer.json() == {"error": "'/v1/predict' does not accept GET; see /docs"}


def test_a_token_is_needed_for_the_api_and_not_for_the_page(make_client):
    client = make_client(token="open sesame")
    for path in ("/v1/models", "/metrics", "/openapi.json"):
        answer = client.get(path)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json() == {"error": "a token is needed; send the header Authorization: Bearer TOKEN"}
        assert client.get(path, headers={"authorization": "Bearer open sesame"}).status_code == 200
    assert client.get("/docs").status_code == client.get("/").status_code == 200
    description = client.get("/openapi.json", headers={"authorization": "Bearer open sesame"}).json()
    assert "security" in description["paths"]["/v1/predict"]["post"]


def test_responses_without_the_token_reveal_nothing(make_client):
    client = make_client(token="open sesame")
    assert client.get("/health").json() == {"status": "ok"}
    for method, path in (("GET", "/nothing"), ("GET", "/v1/predict"), ("POST", "/openapi.json"), ("GET", "/docs/x")):
        answer = client.request(method, path)
        assert (answer.status_code, answer.json()["error"].partition(";")[0]) == (401, "a token is needed")


@pytest.mark.parametrize("given", ["Bearer open", "Basic open sesame", "open sesame", "Bearer öffne"])
def test_a_wrong_token_is_refused(make_client, given):
    answer = make_client(token="open sesame").get("/v1/models", headers={"authorization": given.encode("latin-1")})
    assert answer.status_code == 401


def test_cross_origin_requests_are_refused(client):
    """DNS rebinding to 127.0.0.1, and cross-origin requests of another page in the same browser."""
    answer = client.get("/v1/models", headers={"host": "evil.example:80"})
    assert answer.status_code == 421
    assert "expected localhost or 127.0.0.1 as Host, got 'evil.example:80'" in answer.json()["error"]
    assert client.get("/v1/models", headers={"host": "[::1"}).status_code == 421
    answer = client.get("/v1/models", headers={"origin": "http://evil.example"})
    assert answer.status_code == 403
    for host in ("localhost:8000", "127.0.0.1:8000", "127.0.0.2:8000", "[::1]:8000"):
        assert client.get("/v1/models", headers={"host": host, "origin": f"http://{host}"}).status_code == 200


def test_every_answer_has_strict_headers(client):
    for path in ("/", "/v1/models", "/nothing", "/static/try.js"):
        headers = client.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'self';")
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers


def test_an_internal_error_is_reported_without_a_traceback(client, translator, monkeypatch, caplog):
    def broken(*_, **__):
        raise RuntimeError("the secret path")

    monkeypatch.setattr(translator, "candidates", broken)
    answer = client.post("/v1/predict", json={"input": "1"})
    assert answer.status_code == 500
    assert answer.json() == {"error": "internal server error; see the log of the server"}
    assert "the secret path" in caplog.text


def long_inputs(text: str) -> list[tuple[str, dict]]:
    """Requests with a long value in one place each."""
    bodies = [
        {text: 1}, {"input": [1, text]}, {"input": "a", "model": text}, {"input": "a", "stream": text},
        {"input": "a", "settings": text}, {"input": "a", "settings": {text: 1}},
        {"input": "a", "settings": {"beam": text}}, {"input": "a", "settings": {"seed": int("1" * len(text))}},
        {"input": "a", "settings": {"beam": 3, "terms": [["a", text + "?"]]}},
        {"input": "a", "settings": {"prefix": text + "?"}}, {"input": text}, {"input": "a", "output": text},
    ]  # fmt: skip
    sent = [(path, {"json": body}) for path in ("/v1/predict", "/v1/attention") for body in bodies]
    fields = [{"model": text}, {"settings": text}, {text: "1"}, {"packed": text}, {"file": text}]
    sent += [("/v1/attention", {"data": each, "files": [("file", (text, b"1"))]}) for each in fields]
    headers = [{"content-type": f"image/{text}"}, {"content-type": f"multipart/form-data; charset={text}"}]
    headers += [{"host": text}, {"origin": text}]
    sent += [("/v1/predict", {"content": b"1", "headers": each}) for each in headers]
    return [*sent, (f"/{text}", {"json": {}})]


@pytest.mark.parametrize("size", [400, 4200])
@pytest.mark.parametrize("letters", ["x", "x y'"])
def test_errors_echo_at_most_200_characters_of_a_request(client, letters, size):
    text = (letters * size)[:size]
    for path, request in long_inputs(text):
        answer = client.post(path, **request)
        assert 400 <= answer.status_code < 500, answer.text
        error = answer.json()["error"]
        assert sum(map(len, re.findall(r"[x1](?:[x1 y'\\]|%20)*", error))) <= 200, error


def test_names_of_models_differ():
    assert api.get_model_names(["runs/a", "b/", "x/a,y/c"]) == ["a", "b", "a,c"]
    with pytest.raises(ValueError, match="two runs are called 'a', but requests choose models by name"):
        api.get_model_names(["x/a", "y/a"])
