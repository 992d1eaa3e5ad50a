"""The page "try the model" in a real browser, against a real server."""

import ast
import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def tab(browser, real_server) -> Iterator[Any]:
    """The page; asserts afterwards that no other hosts were requested, and no errors logged but refused requests."""
    asked, errors = [], []
    context = browser.new_context(viewport={"width": 1100, "height": 900}, reduced_motion="reduce")
    page = context.new_page()
    page.set_default_timeout(10_000)
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: message.type == "error" and errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"http://127.0.0.1:{real_server}/")
    yield page
    context.close()
    assert not [url for url in asked if not url.startswith((f"http://127.0.0.1:{real_server}/", "data:"))]
    assert not [text for text in errors if "Failed to load resource" not in text]


def run(page: Any, text: str, **settings: str) -> None:
    page.locator("#input").fill(text)
    for name, value in settings.items():
        page.get_by_label(name).fill(value)
    page.locator("#input").press("Control+Enter")


def test_a_text_is_answered_with_alternatives_and_attention(tab, translator, violations):
    tab.wait_for_selector("#model option >> nth=1", state="attached")
    run(tab, "3 May 1999", Alternatives="3")
    tab.wait_for_selector("#attention .saccade")
    rows = tab.locator("#alternatives tbody tr")
    assert rows.count() == 3
    best = rows.nth(0).locator("button").inner_text()
    assert tab.locator("#output").inner_text() == best
    second = rows.nth(1).locator("button")
    with tab.expect_response("**/v1/attention"):
        second.click()
    tab.wait_for_load_state("networkidle")  # the new attention has replaced the old one
    tab.get_by_role("tab", name="Steps").click()
    written = "".join(tab.get_by_role("group", name="Output").get_by_role("button").all_inner_texts())
    assert written == f"{second.inner_text().replace(' ', '␣')}<end>"
    assert violations(tab) == []


def test_a_language_model_streams_its_output(tab):
    tab.wait_for_selector("#model option >> nth=1", state="attached")
    tab.locator("#model").select_option("writer")
    run(tab, "the dog ")
    tab.wait_for_selector("#attention .saccade")
    assert tab.locator("#output").inner_text().startswith("the dog ")
    assert len(tab.locator("#output").inner_text()) > len("the dog ")


def test_what_is_wrong_is_reported(tab):
    run(tab, "1" * 100)
    tab.wait_for_selector("#problem:not([hidden])")
    assert "line 1 has 101 tokens" in tab.locator("#problem").inner_text()
    assert tab.locator("#go").is_enabled()


def test_outputs_are_never_markup(tab):
    tab.wait_for_selector("#model option >> nth=1", state="attached")
    tab.locator("#model").select_option("writer")
    run(tab, "<img src=x alt=y>")
    tab.wait_for_selector("#attention .saccade")
    assert tab.locator("#output").inner_text().startswith("<img src=x alt=y>")
    assert tab.locator("main img").count() == 0


def test_an_example_fills_the_form_and_becomes_the_placeholder(tab):
    tab.wait_for_selector("#model option >> nth=1", state="attached")
    assert tab.locator("#input").get_attribute("placeholder") == "21 June 2008"
    note = tab.locator("#example-note")
    for text, reference in (
        ("21 June 2008", "1 of 2; its reference: 2008-06-21"),
        ("3 May 1999", "2 of 2; its reference: 1999-05-03"),
    ):
        tab.locator("#example").click()
        assert tab.locator("#input").input_value() == text
        assert note.inner_text() == f"Validation example {reference}"
    tab.locator("#model").select_option("writer")  # its run has no examples
    assert not tab.locator("#example").is_visible()
    assert tab.locator("#input").get_attribute("placeholder") == "The beginning of a text"


def test_the_request_can_be_copied_and_run(tab, real_server, tmp_path):
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab.wait_for_selector("#model option >> nth=1", state="attached")
    run(tab, 'it\'s "3 May" ☃', Alternatives="2")
    tab.wait_for_selector("#attention .saccade")
    output = tab.locator("#output").inner_text()
    tab.get_by_role("button", name="Copy output").click()
    assert tab.evaluate("navigator.clipboard.readText()") == output
    tab.get_by_text("This request by curl and Python").click()
    tab.get_by_role("button", name="Copy curl").click()
    command = tab.evaluate("navigator.clipboard.readText()")
    words = shlex.split(command)
    assert words[:2] == ["curl", f"http://127.0.0.1:{real_server}/v1/predict"]
    assert json.loads(words[-1]) == {"model": "dates", "settings": {"n_best": 2}, "input": 'it\'s "3 May" ☃'}
    program = tab.locator(".try-code pre").nth(1).inner_text()
    call = ast.parse(program).body[1].value
    assert ast.literal_eval(call.keywords[0].value) == json.loads(words[-1])
    for code in tab.locator(".try-code pre").all():  # wrapped, not clipped
        assert code.evaluate("code => code.scrollWidth <= code.clientWidth")


def test_the_theme_is_that_of_all_parts_and_is_remembered(tab, real_server):
    run(tab, "3 May 1999")
    tab.wait_for_selector("#attention .saccade")
    grounds = []
    for name in ("system default", "light", "dark"):
        assert tab.locator("#top .theme").get_attribute("aria-label") == f"Theme: {name}. Change"
        parts = [
            tab.locator(one).evaluate("part => getComputedStyle(part).colorScheme") for one in (":root", ".saccade")
        ]
        grounds.append(parts)
        if name != "dark":
            tab.locator("#top .theme").click()
    assert grounds == [["light dark"] * 2, ["light"] * 2, ["dark"] * 2]
    tab.goto(f"http://127.0.0.1:{real_server}/docs")
    assert tab.evaluate("document.documentElement.dataset.theme") == "dark"


def test_the_page_fits_a_phone(tab):
    tab.set_viewport_size({"width": 360, "height": 740})
    run(tab, "3 May 1999")
    tab.wait_for_selector("#attention .saccade")
    assert tab.evaluate("document.documentElement.scrollWidth") == 360


def test_the_list_of_the_api_names_every_address(tab, real_server, violations):
    tab.goto(f"http://127.0.0.1:{real_server}/docs")
    tab.wait_for_selector("h2 >> nth=5")
    assert tab.locator("h2").all_inner_texts() == [
        "GET /v1/models", "GET /v1/examples/{model}", "POST /v1/predict", "POST /v1/attention",
        "GET /health", "GET /metrics",
    ]  # fmt: skip
    assert violations(tab) == []


def test_a_server_that_has_gone_is_reported(tab):
    tab.wait_for_selector("#model option >> nth=1", state="attached")
    tab.route("**/v1/predict", lambda route: route.abort())
    run(tab, "3 May 1999")
    tab.wait_for_selector("#problem:not([hidden])")
    assert "does not answer" in tab.locator("#problem").inner_text()
    tab.unroute("**/v1/predict")


def test_a_token_is_asked_for(browser, guarded_server):
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(10_000)
    page.goto(f"http://127.0.0.1:{guarded_server}/")
    page.wait_for_selector("#token-field:not([hidden])")
    assert "a token is needed" in page.locator("#problem").inner_text()
    page.locator("#token").fill("sesame")
    run(page, "3 May 1999")
    page.wait_for_selector("#attention .saccade")
    assert page.locator("#output").inner_text() != ""
    page.goto(f"http://127.0.0.1:{guarded_server}/docs")
    page.wait_for_selector("#token-form:not([hidden])")
    assert "a token is needed" in page.locator("#waiting").inner_text()
    page.locator("#token").fill("sesame")
    page.keyboard.press("Enter")
    page.wait_for_selector("h2 >> nth=4")
    context.close()
