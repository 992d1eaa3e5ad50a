"""The watch page: history read from the files of a run, the server, and the page in a browser."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from saccade.runs import lock_run
from saccade.serve.history import read_history, read_history_with_attention, subsample_evenly, to_columns
from saccade.serve.server import bind, create_server, format_url, run_in_background
from saccade.serve.watch import LIMITS, create_watch_app
from saccade.view import moments
from saccade.view.html import build_training_page
from saccade.view.maps import AttentionMap
from saccade.view.viewing import View

RECIPE = 'name = "copy"\n[train]\nsteps = 40\nmetric = "bleu"\nwatch = true\n'
LABELS = {"source": ["a", "b", "c", "<end>"], "target": ["x", "y", "<end>"], "seen": ["<start>", "x", "y"]}


def view(text: str, sharp: float) -> View:
    """Build a view whose attention has the weight `sharp` on the second position."""
    weights = np.full((2, 3, 4), (1 - sharp) / 3, dtype=np.float32)
    weights[:, :, 1] = sharp
    cross = AttentionMap("writer.cross", "cross", 1, weights, rows="target", columns="source", labels=LABELS)
    return View("copy-1", text, "x y", LABELS, [cross])


def add_step(run: Path, step: int) -> None:
    """Write the log lines, samples and attention snapshot of a training step."""
    report = {"event": "train", "step": step, "loss": 9 / (step + 1), "lr": 0.01, "tokens_per_second": 900.0 + step}
    valid = {"event": "valid", "step": step, "loss": 10 / (step + 1), "bleu": float(step), "signature": "s"}
    with (run / "metrics.jsonl").open("a") as file:
        for line in (report, valid):
            print(json.dumps({**line, "seconds": 60.0 * step}), file=file)
    samples = [
        {"input": "a <b>", "reference": "x y", "output": "x" * step},
        {"input": "c", "reference": "z", "output": "z"},
    ]
    with (run / "samples.jsonl").open("a") as file:
        print(json.dumps({"event": "samples", "step": step, "samples": samples}), file=file)
    documents = [view(text, 0.3 + step / 100).data() for text in ("a <b>", "c")]
    moments.write(run, step, documents, every=10)


@pytest.fixture
def watched_run(tmp_path) -> Path:
    run = tmp_path / "copy-1"
    run.mkdir()
    (run / "recipe.toml").write_text(RECIPE)
    for step in (10, 20, 30):
        add_step(run, step)
    return run


@pytest.fixture
def client(watched_run) -> TestClient:
    return TestClient(create_watch_app(lambda: watched_run), base_url="http://127.0.0.1")


# ---- what is read


def test_the_history_has_curves_samples_and_moments(watched_run):
    found = read_history(watched_run)
    assert (found["name"], found["recipe"], found["state"], found["step"]) == ("copy-1", "copy", "interrupted", 30)
    assert found["budget"] == {"steps": 40, "epochs": None, "minutes": None} and found["metric"] == "bleu"
    assert found["train"]["step"] == found["valid"]["step"] == [10, 20, 30]
    assert found["train"]["tokens_per_second"] == [910, 920, 930] and found["valid"]["bleu"] == [10, 20, 30]
    assert "signature" not in found["valid"] and "event" not in found["valid"]
    assert [line["step"] for line in found["samples"]] == found["moments"] == [10, 20, 30]
    entropy = found["sharpness"]["output to input"]
    assert entropy == sorted(entropy, reverse=True) and len(set(entropy)) == 3


def test_state_of_a_run_in_training_and_of_one_without_metrics(watched_run, tmp_path):
    with lock_run(watched_run):
        assert read_history(watched_run)["state"] == "training"
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    assert read_history(None)["state"] == read_history(fresh)["state"] == "preparing"
    assert read_history(fresh)["train"] == {} and read_history(fresh)["moments"] == []


def test_incomplete_lines_and_non_numbers_are_skipped(watched_run):
    with (watched_run / "metrics.jsonl").open("a") as file:
        file.write('{"event": "train", "step": 40, "loss": NaN, "lr": 0.01}\n{"event": "train", "st')
    found = read_history(watched_run)
    assert found["train"]["step"] == [10, 20, 30, 40] and found["train"]["loss"][-1] is None
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_long_curves_are_thinned_and_keep_their_end():
    lines = [{"event": "train", "step": step, "loss": 1.0} for step in range(5001)]
    steps = to_columns(lines)["step"]
    assert len(steps) <= 2000 and steps[-1] == 5000
    assert (
        subsample_evenly([1, 2, 3], 3) == [1, 2, 3]
        and subsample_evenly([1, 2, 3, 4], 3) == [2, 4]
        and subsample_evenly([], 3) == []
    )


# ---- what the server says


def test_an_unchanged_history_gives_status_304(client, watched_run):
    first = client.get("/v1/run")
    assert first.json() == read_history(watched_run)
    again = client.get("/v1/run", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304 and again.content == b""
    add_step(watched_run, 40)
    news = client.get("/v1/run", headers={"If-None-Match": first.headers["etag"]})
    assert news.status_code == 200 and news.json()["step"] == 40


def test_a_moment_is_served_as_saved(client, watched_run):
    assert client.get("/v1/moments/20").json() == moments.read(watched_run, 20)
    missing = client.get("/v1/moments/21")
    assert missing.status_code == 404
    assert missing.json() == {"error": "no attention was saved at step 21; /v1/run lists the steps in moments"}


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/v1/moments/..%2f..%2frecipe.toml", 404, "no route"),
        ("GET", "/v1/moments/-1", 404, "no route"),
        ("GET", "/static/../watch.py", 404, "no route"),
        ("GET", "/recipe.toml", 404, "no route '/recipe.toml'; / is the page"),
        ("POST", "/v1/run", 405, "does not accept POST"),
    ],
)
def test_other_addresses_are_refused(client, method, path, status, message):
    answer = client.request(method, path)
    assert answer.status_code == status and message in answer.json()["error"]


def test_cross_origin_requests_to_the_watch_page_are_refused(client):
    assert client.get("/v1/run", headers={"Host": "example.org"}).status_code == 421
    assert client.get("/v1/run", headers={"Origin": "http://example.org"}).status_code == 403
    assert client.get("/").headers["content-security-policy"].startswith("default-src 'self'")


def test_before_the_run_exists_the_state_is_preparing():
    client = TestClient(create_watch_app(lambda: None), base_url="http://127.0.0.1")
    assert client.get("/v1/run").json()["state"] == "preparing"
    assert client.get("/v1/moments/0").status_code == 404


# ---- the page

DRAWN = "[aria-label='Attention during training'] [role=tablist]"


@contextmanager
def open_page(browser: Any, url: str, *, width: int = 1100, offline: bool = False) -> Iterator[Any]:
    """Open a page; asserts afterwards that there were no requests to other hosts and no console errors."""
    asked, errors = [], []
    context = browser.new_context(
        viewport={"width": width, "height": 800}, reduced_motion="reduce", offline=offline, color_scheme="dark"
    )
    page = context.new_page()
    page.set_default_timeout(8000)
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: message.type == "error" and errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(url)
    yield page
    context.close()
    origin = re.match(r"file://|http://[^/]*", url)
    assert origin and not [one for one in asked if not one.startswith((origin[0], "data:", "blob:"))]
    assert errors == []


@pytest.fixture
def saved_page(watched_run, tmp_path) -> str:
    file = tmp_path / "page.html"
    file.write_text(build_training_page(read_history_with_attention(watched_run)), encoding="utf-8")
    return file.as_uri()


def attention(page: Any) -> Any:
    page.wait_for_selector(DRAWN)
    return page.get_by_label("Attention during training")


def test_the_page_follows_a_run_as_it_goes_on(browser, watched_run):
    place = bind("127.0.0.1", 0)
    server = create_server(create_watch_app(lambda: watched_run), LIMITS)
    with lock_run(watched_run), place, run_in_background(server, place), open_page(browser, format_url(place)) as page:
        part = attention(page)
        assert page.locator(".watch-facts").inner_text().startswith("recipe copy · step 30 of 40 · 30 min")
        assert page.locator(".watch-state").inner_text() == "in training"
        add_step(watched_run, 40)
        page.locator(".watch-facts", has_text="step 40 of 40").wait_for()
        page.locator(".watch-step", has_text="step 40").wait_for()
        assert part.get_by_label("Snapshot", exact=True).input_value() == "3"


def test_a_head_stays_chosen_while_the_moments_go_by(browser, saved_page, watched_run):
    with open_page(browser, saved_page, offline=True) as page:
        part = attention(page)
        part.locator(".thumb").nth(1).click()
        part.get_by_role("button", name="Zoom in").click()
        heat = part.locator(".heat canvas").first
        heat.focus()
        for key in ("ArrowRight", "ArrowRight"):
            page.keyboard.press(key)
        seen = []
        for step in ("step 20", "step 10"):
            part.get_by_role("button", name="Previous snapshot").click()
            page.locator(".watch-step", has_text=step).wait_for()
            page.wait_for_timeout(100)
            seen.append(part.locator(".tip").inner_text())
        assert part.locator(".field", has_text="Head").locator("select").input_value() == "1"
        assert [float(text.rpartition(" ")[2]) for text in seen] == pytest.approx([0.5, 0.4])


def test_another_text_and_the_player(browser, saved_page):
    with open_page(browser, saved_page, offline=True) as page:
        part = attention(page)
        assert part.get_by_label("Input").first.locator("option").all_inner_texts() == ["a <b>", "c"]
        part.get_by_label("Input").first.select_option("1")
        part.get_by_role("button", name="Play").click()
        page.locator(".watch-step", has_text="step 20").wait_for()
        part.get_by_role("button", name="Pause").click()


def test_curves_show_their_values_by_pointer_and_keys(browser, saved_page):
    with open_page(browser, saved_page, offline=True) as page:
        score = page.get_by_label("Validation score", exact=True)
        assert score.locator(".curve-values").inner_text() == "bleu 30"
        score.locator(".curve-place").focus()
        page.keyboard.press("ArrowLeft")
        assert score.locator(".curve-values").inner_text() == "bleu 20"
        assert page.locator(".watch > [role=status]").inner_text() == "step 20: bleu 20"
        rate = page.get_by_label("Learning rate", exact=True)
        assert rate.locator(".curve-cursor").count() == 1
        page.get_by_label("Over").select_option("minutes")
        page.get_by_label("Logarithmic loss").check()
        page.get_by_text("Metrics as a table").click()
        page.locator(".numbers caption", has_text="Validation").wait_for()
        assert [table.locator("tbody tr").count() for table in page.locator(".numbers").all()] == [3, 3]


def test_numbers_below_the_curves_are_not_cut_off(browser, watched_run, tmp_path):
    with (watched_run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        print(json.dumps({"event": "train", "step": 100_000, "loss": 1.0, "lr": 0.01, "seconds": 9000.0}), file=file)
    page_file = tmp_path / "long.html"
    page_file.write_text(build_training_page(read_history_with_attention(watched_run)), encoding="utf-8")
    with open_page(browser, page_file.as_uri(), offline=True) as page:
        attention(page)
        cut = (
            "[...document.querySelectorAll('.curve text')].filter(one => one.getBoundingClientRect().right > "
            "one.closest('svg').getBoundingClientRect().right + 1).map(one => one.textContent)"
        )
        assert page.locator(".curve text", has_text="100,000").count() > 0
        assert page.evaluate(cut) == []


def test_samples_at_a_step_and_through_all_steps(browser, saved_page):
    with open_page(browser, saved_page, offline=True) as page:
        part = page.get_by_label("Sample outputs")
        cells = part.locator("tbody tr").nth(0).locator("td")
        assert cells.all_inner_texts() == ["a <b>", "x y", "x" * 30]
        part.get_by_label("Show").select_option("step 10")
        assert cells.nth(2).inner_text() == "x" * 10
        part.get_by_label("Show").select_option("text 1")
        assert part.locator("tbody th").all_inner_texts() == ["10", "20", "30"]
        assert part.locator("tbody td.right").count() == 3


def test_the_page_is_for_everybody_and_fits_a_phone(browser, saved_page, violations):
    with open_page(browser, saved_page, width=360, offline=True) as page:
        attention(page)
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        assert violations(page) == []


def test_a_run_without_metrics_shows_a_notice(browser, watched_run, tmp_path):
    for name in ("metrics.jsonl", "samples.jsonl"):
        (watched_run / name).unlink()
    for step in moments.list_steps(watched_run):
        moments.get_path(watched_run, step).unlink()
    file = tmp_path / "empty.html"
    file.write_text(build_training_page(read_history_with_attention(watched_run)), encoding="utf-8")
    with open_page(browser, file.as_uri()) as page:
        page.get_by_text("No metrics yet").wait_for()
        assert page.get_by_text("No attention was saved yet.").is_visible()
        assert page.get_by_text("No samples yet.").is_visible()
        assert not page.get_by_label("Curves").is_visible()
