"""Multipart forms: their fields, their files, and the messages for invalid ones."""

import io
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from saccade.serve.app import create_app


@pytest.fixture(scope="module")
def client(media_models) -> Iterator[TestClient]:
    with TestClient(create_app(media_models), base_url="http://127.0.0.1") as opened:
        yield opened


def picture() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (60, 50), "red").save(file, "PNG")
    return file.getvalue()


def test_forms_without_a_file_are_reported(client):
    answer = client.post("/v1/predict", data={"model": "shapes"}, files={"other": b"1"})
    assert answer.status_code == 422
    assert answer.json()["error"] == "other: expected one text, got a file; send files in the field file"
    answer = client.post("/v1/predict", files=[("model", (None, "shapes"))])
    assert answer.json()["error"] == "file: is missing; expected a file, as curl -F file=@NAME sends it"
    answer = client.post("/v1/predict", files=[("file", (None, "dog.jpg"))])
    assert "file: expected a file, got the text 'dog.jpg'" in answer.json()["error"]
    answer = client.post("/v1/predict", content=b"x", headers={"content-type": "multipart/form-data"})
    assert (answer.status_code, answer.json()["error"]) == (
        400,
        "the form cannot be read: Missing boundary in multipart.",
    )
    many = client.post("/v1/predict", files=[("file", ("a", b"1"))] * 17)
    assert (many.status_code, "Too many files" in many.json()["error"]) == (400, True)
    two = client.post("/v1/attention", files=[("file", ("a", picture()))] * 2)
    assert two.json()["error"] == "file: attention needs one file, got 2; send one per request"


def form(*parts: tuple[str, bytes], charset: str = "") -> dict:
    """Build the bytes of a malformed form."""
    said = b"".join(
        b'--x\r\nContent-Disposition: form-data; name="' + name.encode() + b"\r\n\r\n" + data + b"\r\n"
        for name, data in parts
    )
    return {
        "content": said + b"--x--\r\n",
        "headers": {"content-type": f"multipart/form-data; boundary=x{charset and '; charset='}{charset}"},
    }


@pytest.mark.parametrize("charset", ["punycode", "idna", "undefined", "utf-16", 'utf-8; charset="punycode"'])
def test_forms_are_read_as_utf8_alone(client, charset):
    """Decoding a megabyte of punycode takes half a minute: a denial-of-service attack."""
    answer = client.post("/v1/predict", **form(('model"', b"baaa" * 9), charset=charset))
    assert answer.status_code == 415
    assert "expected a form in UTF-8, got the charset" in answer.json()["error"]
    assert "file: is missing" in client.post("/v1/predict", **form(('model"', b"x"), charset="UTF-8")).text


def test_deeply_nested_settings_are_reported(client):
    answer = client.post("/v1/predict", **form(('file"; filename="a.png"', picture()), ('settings"', b"[" * 200_000)))
    assert answer.status_code == 422
    assert "settings: expected a JSON object, got '[[[" in answer.json()["error"]


def test_a_file_as_the_whole_body_gets_a_hint_how_to_send_it(client):
    answer = client.post("/v1/predict", content=picture(), headers={"content-type": "image/png"})
    assert answer.status_code == 415
    assert answer.json()["error"] == "expected JSON or a form, got image/png; send files as curl -F file=@NAME does"


def test_forms_are_described(client):
    paths = client.get("/openapi.json").json()["paths"]
    predict = paths["/v1/predict"]["post"]["requestBody"]["content"]
    assert list(predict) == ["application/json", "multipart/form-data"]
    form = predict["multipart/form-data"]["schema"]
    assert (form["required"], list(form["properties"])) == (["file"], ["file", "model", "settings", "question"])
    assert form["properties"]["model"]["enum"] == ["shapes", "scenes", "tones", "questions", "dates", None]
