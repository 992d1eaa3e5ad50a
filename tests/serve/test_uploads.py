"""Uploads of images and audio give the same results as local files; unreadable ones give one line of error."""

import io
import json
import struct
import threading
import wave
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from saccade.config.load import override
from saccade.data.sources.media import read_media
from saccade.errors import SaccadeError
from saccade.serve.app import create_app
from saccade.serve.limits import Limits
from saccade.serve.served import list_form_fields
from saccade.serve.server import format_curl_command
from saccade.serve.uploads import sanitize_name

SMALL = {"max_body_bytes": 2_000_000, "max_pixels": 1_000_000}


@pytest.fixture(scope="module")
def client(media_models) -> Iterator[TestClient]:
    with TestClient(create_app(media_models, limits=Limits(**SMALL)), base_url="http://127.0.0.1") as opened:
        yield opened


@pytest.fixture(scope="module")
def shapes(looker) -> list[str]:
    [corpus] = looker.recipe.data.valid
    return [path for _, path, _ in read_media(corpus, medium="picture", target="label")][:3]


def picture(kind: str = "PNG", size: tuple[int, int] = (60, 50), **more) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, "red").save(file, kind, **more)
    return file.getvalue()


def sound(*, channels: int = 1, rate: int = 8000, seconds: float = 0.5) -> bytes:
    file = io.BytesIO()
    samples = np.sin(np.arange(int(rate * seconds) * channels) / 3) * 9000
    with wave.open(file, "wb") as written:
        written.setnchannels(channels)
        written.setsampwidth(2)
        written.setframerate(rate)
        written.writeframes(samples.astype("<i2").tobytes())
    return file.getvalue()


def png_header(wide: int, high: int) -> bytes:
    """Build the header of a PNG with the given size, without image data."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", wide, high, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    )


def send(client, *files: tuple[str, bytes], status=200, path="/v1/predict", **fields):
    answer = client.post(path, files=[("file", file) for file in files], data=fields)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_pictures_are_labelled_as_files_are(client, looker, shapes):
    sent = [(f"{number}.png", Path(path).read_bytes()) for number, path in enumerate(shapes)]
    answer = send(client, *sent)
    assert answer["model"] == "shapes"
    assert [result["input"] for result in answer["results"]] == ["0.png", "1.png", "2.png"]
    for result, path in zip(answer["results"], shapes, strict=True):
        expected = looker.describe(path, looker.candidates([path])[0])
        assert result["label"] == expected["label"]
        assert result["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-5)
    assert looker.codec.registered == {}


def test_a_caption_has_alternatives(client, teller, shapes):
    data = Path(shapes[0]).read_bytes()
    [result] = send(client, ("a.png", data), model="scenes", settings='{"n_best": 3}')["results"]
    several = override(
        teller.recipe, [f"predict.beam={max(3, teller.recipe.predict.beam)}", "predict.n_best=3"]
    ).predict
    expected = [found.text for found in teller.candidates([shapes[0]], decoding=several)[0]]
    assert [item["output"] for item in result["candidates"]] == expected


def test_attention_comes_with_the_picture(client, teller, shapes):
    data = Path(shapes[0]).read_bytes()
    said = send(client, ("a.png", data), path="/v1/attention", model="scenes")
    assert said["input"] == "a.png"
    assert said["background"]["image"].startswith("data:image/png")
    assert said["output"] == teller.predict([shapes[0]])[0]
    other = send(client, ("a.png", data), path="/v1/attention", model="scenes", output="red circle", packed="true")
    assert other["output"] == "red circle"
    assert teller.codec.registered == {}


def test_uploaded_audio_is_transcribed_as_local_files_are(client, listener, tmp_path):
    for number, options in enumerate(({}, {"channels": 2}, {"rate": 44100}, {"channels": 3, "rate": 16000})):
        path = tmp_path / f"{number}.wav"
        path.write_bytes(sound(**options))
        [result] = send(client, ("a.wav", path.read_bytes()), model="tones")["results"]
        assert result["output"] == listener.predict([str(path)])[0]
    said = send(client, ("a.wav", sound()), path="/v1/attention", model="tones")
    assert said["background"]["image"].startswith("data:image/png")


def test_questions_are_answered_about_pictures(client, answerer, shapes):
    data, asked = Path(shapes[0]).read_bytes(), "what colour is it"
    [result] = send(client, ("a.png", data), model="questions", question=f" {asked}\n")["results"]
    expected = answerer.describe(f"{shapes[0]}\t{asked}", answerer.candidates([f"{shapes[0]}\t{asked}"])[0])
    assert (result["image"], result["question"], result["label"]) == ("a.png", asked, expected["label"])
    assert result["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-5)
    said = send(client, ("a.png", data), path="/v1/attention", model="questions", question=asked)
    assert said["input"] == f"a.png: {asked}"
    found = {one["name"]: one["asks"] for one in client.get("/v1/models").json()["models"]}
    assert [name for name in found if found[name]] == ["questions"]


def test_the_smallest_picture_and_odd_ones_are_read(client):
    grey = io.BytesIO()
    Image.new("CMYK", (7, 5)).save(grey, "JPEG")
    for data in (picture(size=(1, 1)), picture("GIF"), picture("WEBP"), picture("JPEG"), grey.getvalue()):
        [result] = send(client, ("a", data))["results"]
        assert sum(result["probabilities"].values()) == pytest.approx(1, abs=1e-4)


BAD_FILES = {
    "text": (("dog.jpg", b"not a picture"), {}, 422, "dog.jpg is not a readable picture; expected JPEG"),
    "empty": (("a.png", b""), {}, 422, "a.png is not a readable picture"),
    "truncated": (("a.jpg", picture("JPEG", (300, 200))[:800]), {}, 422, "a.jpg is damaged: "),
    "bomb": (("a.png", png_header(20_000, 20_000)), {}, 422, "pixels; make it smaller"),
    "large": (("a.png", picture(size=(1001, 1000))), {}, 422, "a.png has 1,001 x 1,000 pixels, more than 1,000,000 in"),
    "vast": (("a.png", png_header(2**31 - 1, 2**31 - 1)), {}, 422, "pixels; make it smaller"),
    "program": (
        ("a.eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"),
        {},
        422,
        "a.eps is not a readable picture",
    ),
    "sound for a picture": (("a.wav", sound()), {}, 422, "a.wav is not a readable picture"),
    "picture for a sound": (("a.png", picture()), {"model": "tones"}, 422, "cannot read the sound a.png"),
    "no sound": (("a.wav", sound(seconds=0)), {"model": "tones"}, 422, "a.wav is empty: it has no samples"),
    "cut sound": (("a.wav", sound()[:500]), {"model": "tones"}, 422, "the sound a.wav is cut off"),
    "long sound": (("a.wav", sound(rate=1000, seconds=61)), {"model": "tones"}, 422, "a.wav lasts 61.0 seconds"),
    "frames": (("a.npy", b"\x93NUMPY\x01\x00"), {"model": "tones"}, 422, "cannot read the sound a.npy"),
    "path": (("/etc/x.png", b""), {}, 422, "x.png is not a readable picture"),
    "model of texts": (
        ("a.png", picture()),
        {"model": "dates"},
        422,
        "model 'dates' reads text; send JSON with the key input",
    ),
    "no question": (
        ("a.png", picture()),
        {"model": "questions"},
        422,
        "'questions' answers questions; send one as the",
    ),
    "a question": (("a.png", picture()), {"question": "why"}, 422, "model 'shapes' takes no question"),
    "no model": (("a.png", picture()), {"model": "cats"}, 404, "no model is called 'cats'"),
    "settings": (("a.png", picture()), {"settings": "{"}, 422, "settings: expected a JSON object, got '{'"),
    "wrong settings": (("a.png", picture()), {"settings": '{"beam": 0}'}, 422, "predict.beam: expected at least 1"),
    "key": (("a.png", picture()), {"modle": "dates"}, 422, "modle: unknown key; did you mean 'model'?"),
    "too large": (("a.png", b"0" * 2_000_000), {}, 413, "a request has at most 2000000 bytes, got 2000"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_what_cannot_be_read_is_reported_in_one_line(client, looker, case):
    file, fields, status, says = BAD_FILES[case]
    error = send(client, file, status=status, **fields)["error"]
    assert says in error
    assert "\n" not in error
    assert error.count("; make it") <= 1
    assert looker.codec.registered == {}


@pytest.mark.parametrize(
    ("name", "fields"), [("{1}.png", {"model": "questions", "question": "why"}), ("7", {"model": "greeting"})]
)
def test_file_names_have_no_effect(media_models, player, name, fields):
    """On the command line, a number would be an episode and a brace would start a JSON object."""
    models = {"questions": media_models["questions"], "greeting": player}
    with TestClient(create_app(models), base_url="http://127.0.0.1") as client:
        [result] = send(client, (name, picture()), **fields)["results"]
    assert result.get("image", result.get("input")) == name
    assert "label" in result or set(result["values"]) == set(player.actions)


def test_files_of_this_machine_are_not_opened(client, shapes):
    answer = client.post("/v1/predict", json={"model": "shapes", "input": shapes[0]})
    assert answer.status_code == 422
    assert (
        answer.json()["error"] == "model 'shapes' reads picture files; send them in a form, as curl -F file=@NAME does"
    )


def test_a_model_that_takes_names_of_files_alone_is_not_served(translator, monkeypatch):
    monkeypatch.setattr(translator, "shows_input_names", True, raising=False)
    with pytest.raises(SaccadeError, match=r"dates has inputs that cannot be sent over HTTP; use `saccade predict`"):
        create_app({"dates": translator})


def test_a_model_that_has_no_answer_is_not_served(masked_autoencoder, translator):
    with pytest.raises(SaccadeError, match=r"^masked cannot be served: this model has no output for a picture; ask"):
        create_app({"dates": translator, "masked": masked_autoencoder})


def test_the_command_to_try_is_answered(media_models):
    commands = {
        name: format_curl_command("http://x", "a", token=False, form_fields=list_form_fields(one))
        for name, one in media_models.items()
    }
    assert commands["shapes"] == "curl http://x/v1/predict -F file=@FILE"
    assert commands["questions"] == "curl http://x/v1/predict -F file=@FILE -F question='what is it'"
    assert commands["dates"].endswith("""-d '{"input": "a"}'""")


def test_models_report_their_modality(client):
    found = {one["name"]: one["reads"] for one in client.get("/v1/models").json()["models"]}
    assert found == {
        "shapes": "picture",
        "scenes": "picture",
        "tones": "sound",
        "questions": "picture",
        "dates": "text",
    }


def test_files_of_several_clients_are_read_together(client, looker, shapes, monkeypatch):
    sizes, original = [], looker.candidates

    def count_candidates(texts, **more):
        sizes.append(len(texts))
        return original(texts, **more)

    monkeypatch.setattr(looker, "candidates", count_candidates)
    data, answers = Path(shapes[0]).read_bytes(), []
    threads = [threading.Thread(target=lambda: answers.append(send(client, ("a.png", data)))) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({json.dumps(answer["results"][0]["label"]) for answer in answers}) == 1
    assert len(answers) == sum(sizes) == 12
    assert looker.codec.registered == {}


def test_too_many_bytes_of_all_clients_are_refused(looker):
    app = create_app({"shapes": looker}, limits=Limits(max_body_bytes=10_000, max_total_bytes=15_000))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        app.room.total = 14_900  # as if other clients had sent whole requests
        answer = client.post("/v1/predict", files=[("file", ("a.png", picture()))])
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")
        app.room.total = 0
        assert client.post("/v1/predict", files=[("file", ("a.png", picture()))]).status_code == 200
        assert app.room.total == 0
        assert not app.room.transfers and not app.room.by_client


def test_too_many_files_that_wait_are_refused(looker):
    with TestClient(
        create_app({"shapes": looker}, limits=Limits(max_waiting_files=2)), base_url="http://127.0.0.1"
    ) as client:
        answer = client.post("/v1/predict", files=[("file", ("a.png", picture()))] * 3)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")
    assert answer.json()["error"] == "0 files are waiting to be decoded, at most 2 may; try again in 2 s"


@pytest.mark.parametrize(
    ("given", "shown"),
    [("a.png", "a.png"), ("C:\\x\\a.png", "a.png"), ("/etc/passwd", "passwd"), ("a\tb", "a\ufffdb"), ("", "file"),
     ("../", "file"), ("é" * 200, "é" * 100)],
)  # fmt: skip
def test_file_names_of_clients_are_sanitized(given, shown):
    assert sanitize_name(given) == shown
