"""Accessibility of the page: screen readers, phones, both themes; and minimal documents."""

import json
from pathlib import Path

import numpy as np
import pytest

from saccade.view import html
from saccade.view.html import build_iframe

PAGE = Path(html.__file__).parent / "page"
VIEWS = ("Heads", "Matrix", "Steps", "Compare", "Statistics")
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def violations(page, *, only=None):
    """Find the accessibility violations of a page with axe, by the WCAG rules or by one rule."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    rules = {"type": "rule", "values": [only]} if only else {"type": "tag", "values": RULES}
    found = axe.run(page, options={"runOnly": rules}).response["violations"]
    return [(one["id"], [node["html"][:120] for node in one["nodes"][:3]]) for one in found]


@pytest.mark.parametrize(("scheme", "only"), [("light", None), ("dark", "color-contrast")])
def test_axe_finds_nothing_in_any_view(open_page, make_document, scheme, only):
    page = open_page({**make_document(), "other": make_document(seed=1)}, scheme=scheme)
    page.locator(".tokens.from .token").nth(1).click()
    for name in VIEWS:
        page.get_by_role("tab", name=name).click()
        assert violations(page, only=only) == [], name
    page.get_by_role("tab", name="Matrix").click()
    page.locator(".thumb").first.click()
    page.get_by_text("Weights as a table").click()
    assert violations(page, only=only) == []


def test_everything_fits_a_phone(open_page, make_document):
    page = open_page({**make_document(heads=8), "other": make_document(seed=1)}, width=360, height=740)
    for name in VIEWS:
        page.get_by_role("tab", name=name).click()
        assert page.evaluate("document.documentElement.scrollWidth") == 360, name
        assert page.get_by_role("tab", name=name).bounding_box()["x"] + 40 < 360
    page.get_by_role("tab", name="Matrix").click()
    page.locator(".thumb").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_a_long_input_is_marked_as_shortened(open_page, make_document):
    page = open_page({**make_document(), "input": "many words " * 60, "output": "few"}, width=360, height=740)
    [more] = page.get_by_role("button", name="Show all").all()
    shown = page.locator(".long").first
    assert shown.evaluate("text => text.scrollHeight > text.clientHeight")
    more.click()
    assert shown.evaluate("text => text.scrollHeight <= text.clientHeight + 1")
    assert page.get_by_role("button", name="Show less").get_attribute("aria-expanded") == "true"


def test_tabs_are_chosen_by_arrow_keys(open_page, make_document):
    page = open_page(make_document())
    page.get_by_role("tab", name="Heads").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("tab", name="Steps").get_attribute("aria-selected") == "true"
    assert page.get_by_role("tabpanel").count() == 1  # the others are hidden from screen readers too


def test_theme_button_goes_round(open_page, make_document):
    page = open_page(make_document(), scheme="dark")
    papers = []
    for _ in range(3):
        papers.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        page.get_by_role("button", name="Theme").click()
    dark, light = "rgb(16, 19, 24)", "rgb(251, 250, 248)"
    assert papers == [dark, light, dark]


LM = {"source": [], "target": ["once", "upon", "a"], "seen": ["<start>", "once", "upon"]}
ONE = {"source": ["hi"], "target": ["<end>"], "seen": ["<start>"]}


@pytest.mark.parametrize(
    ("parts", "heads", "labels"),
    [(("writer",), 2, LM), (("cross",), 1, None), (("reader", "writer", "cross"), 3, ONE), (("reader",), 2, None)],
    ids=["language model", "recurrent", "one token", "reader alone"],
)
def test_every_view_of_small_documents_opens(open_page, make_document, parts, heads, labels):
    document = {**make_document(parts=parts, layers=1, heads=heads, labels=labels), "input": None}
    page = open_page(document)
    for name in VIEWS:
        page.get_by_role("tab", name=name).click()
        assert page.get_by_role("tabpanel").inner_text().strip(), name
    page.get_by_role("tab", name="Matrix").click()
    page.locator(".thumb").last.click()
    assert page.locator(".matrix .heat canvas").bounding_box()["height"] > 20


def test_model_without_attention_shows_a_notice(open_page, make_document):
    page = open_page({**make_document(parts=()), "statistics": {}})
    for name in VIEWS:
        page.get_by_role("tab", name=name).click()
        text = page.get_by_role("tabpanel").inner_text()
        assert ("decodes without attention" if name == "Steps" else "No attention here") in text


def test_document_without_steps_and_statistics_goes_through_its_tokens(open_page, make_document):
    document = make_document()
    del document["steps"], document["statistics"]
    page = open_page(document)
    page.get_by_role("tab", name="Steps").click()
    page.get_by_role("button", name="Next step").click()
    assert page.locator(".out[aria-current=step]").inner_text() == "chat"
    assert not page.get_by_text("Next token").is_visible()
    page.get_by_role("tab", name="Statistics").click()
    assert "No statistics" in page.get_by_role("tabpanel").inner_text()


def test_quantized_weights_are_shown_with_their_error(open_page, make_document):
    count = 210
    words = [f"w{i}" for i in range(count)]
    labels = {"source": words, "target": words, "seen": words}
    document = make_document(parts=("cross",), layers=1, heads=3, labels=labels)
    page = open_page(document)
    page.get_by_role("tab", name="Matrix").click()
    page.locator(".thumb").nth(1).click()
    page.keyboard.press("ArrowRight")
    for key in ("ArrowDown", "ArrowRight"):
        page.keyboard.press(f"Shift+{key}")
    message = page.locator(".saccade > [role=status]").inner_text()
    where, _, number = message.partition(": ")
    shown, _, off = number.partition(" ± ")
    assert where == "w10 → w10"
    assert "16 bits" in page.get_by_role("tabpanel").inner_text()
    assert abs(float(shown) - document["maps"][0]["weights"][1, 10, 10]) <= 2 * float(off or 0) + 1e-6


PIXEL = "data:image/gif;base64,R0lGODlhAQABAIAAAP///wAAACH5BAEAAAAALAAAAAABAAEAAAICRAEAOw=="


def test_steps_highlight_the_patches_of_an_image(open_page, make_document):
    labels = {"source": [f"cell {i}" for i in range(6)], "target": ["a", "dog"], "seen": ["<start>", "a"]}
    document = make_document(parts=("cross",), layers=1, heads=1, labels=labels)
    document["maps"][0]["weights"][:] = 0
    document["maps"][0]["weights"][0, :, [1, 5]] = [[1, 0], [0, 1]]
    page = open_page({**document, "background": {"columns": "source", "image": PIXEL, "grid": [2, 3]}})
    page.get_by_role("tab", name="Steps").click()
    read = "c => [...c.getContext('2d').getImageData(0, 0, 3, 2).data].filter((_, i) => i % 4 === 3)"
    for lit in (1, 5):
        shade = page.locator(".photo canvas").evaluate(read)
        assert [i for i, dark in enumerate(shade) if dark == 0] == [lit]
        page.get_by_role("button", name="Next step").click()
    assert page.locator(".photo img").get_attribute("src") == PIXEL


def test_steps_go_through_every_map_over_the_picture(open_page, make_document):
    """Two glimpses of a question, and its tokens; the output, one answer, attends to nothing itself."""
    labels = {"source": ["a", "b", "c", "d"], "target": ["red", "or"], "seen": ["", ""]}
    document = make_document(parts=("cross",), layers=2, heads=1, labels=labels)
    rows = {"question": ["which", "colour", "?"], "glimpse": ["glimpse 1", "glimpse 2"]}
    for entry, (name, names) in zip(document["maps"], rows.items(), strict=True):
        weights = np.eye(4, dtype=np.float32)[None, : len(names)]
        weights[0, 1] *= name == "glimpse"  # the second token of the question has no weights
        entry |= {"rows": name, "weights": weights, "shape": list(weights.shape)}
    document["labels"] = {**labels, **rows}
    background = {"columns": "source", "image": PIXEL, "grid": [2, 2]}
    panel = open_page({**document, "background": background}).get_by_role("tabpanel", name="Steps")
    assert panel.get_by_role("group", name="glimpse").get_by_role("button").all_inner_texts() == rows["glimpse"]
    panel.get_by_role("button", name="Next step").click()
    assert "Attends most to b" in panel.inner_text() and "2 / 2" in panel.inner_text()
    panel.get_by_label("Attention").select_option(label="cross, layer 1")
    words = panel.get_by_role("group", name="question").get_by_role("button")
    assert words.all_inner_texts() == rows["question"]
    words.nth(2).click()
    assert "Attends most to c" in panel.inner_text() and "3 / 3" in panel.inner_text()
    words.nth(1).click()
    assert "Attends to nothing." in panel.inner_text() and not panel.locator(".photo circle").count()
    assert "Next token" not in panel.inner_text()  # which is about the output


WIDE = PIXEL.replace("AQABAIAAAP", "CAABAIAAAP", 1)  # eight pixels wide
AT_REST = """() => {
  const { clientWidth: wide, clientHeight: high } = document.querySelector(".photo");
  const eye = document.querySelector(".photo circle");
  const off = (name, at) => Math.abs(Number(eye.getAttribute(name)) - at);
  return wide > 4 * high && off("cx", wide * 5 / 6) < 1 && off("cy", high * 3 / 4) < 1;
}"""  # in the middle of the lower right patch


def test_the_fixation_is_redrawn_when_the_image_is_resized(open_page, make_document):
    labels = {"source": [f"cell {i}" for i in range(6)], "target": ["a", "dog"], "seen": ["<start>", "a"]}
    document = make_document(parts=("cross",), layers=1, heads=1, labels=labels)
    document["maps"][0]["weights"][:] = 0
    document["maps"][0]["weights"][0, :, 5] = 1  # the lower right patch
    page = open_page({**document, "background": {"columns": "source", "image": WIDE, "grid": [2, 3]}})
    for width in (1200, 500):
        page.set_viewport_size({"width": width, "height": 800})
        page.wait_for_function(AT_REST, timeout=3000)
        assert page.evaluate(AT_REST)


def test_each_step_may_have_a_picture_of_its_own(open_page, make_document):
    """A page with an image starts with the steps; a URL that is not a data URL is not loaded."""
    labels = {"source": [f"cell {i}" for i in range(6)], "target": ["call", "wave", "shake"], "seen": ["", "", ""]}
    document = make_document(parts=("cross",), layers=1, heads=1, labels=labels)
    images = [PIXEL, PIXEL + "#2", "https://nowhere.example/a.png"]
    page = open_page(
        {**document, "background": {"columns": "source", "image": PIXEL, "images": images, "grid": [2, 3]}}
    )
    for shown in (*images[:2], "data:,"):
        assert page.locator(".photo img").get_attribute("src") == shown
        page.get_by_role("button", name="Next step").click()


def test_page_in_a_frame_of_a_notebook_works(browser, make_document):
    context = browser.new_context(offline=True)
    tab = context.new_page()
    tab.set_content(f"<h1>notebook</h1>{build_iframe(make_document())}")
    inner = tab.frame_locator("iframe")
    inner.get_by_role("tab", name="Matrix").click()
    inner.locator(".thumb").first.click()
    assert inner.locator(".matrix .heat canvas").is_visible()
    context.close()


@pytest.mark.parametrize(("tokens", "scrolls"), [(3, False), (18, False), (26, False), (60, True)])
def test_a_frame_of_a_notebook_is_as_high_as_its_tokens_need(browser, make_document, tokens, scrolls):
    source = [str(n) for n in range(tokens)]
    labels = {"source": source, "target": ["a", "<end>"], "seen": ["<start>", "a"]}
    tab = browser.new_page(viewport={"width": 1000, "height": 700})
    tab.set_content(build_iframe(make_document(labels=labels)))
    tab.frame_locator("iframe").get_by_role("tab", name="Heads").wait_for()
    [_, frame] = tab.frames
    assert frame.locator(".lines").evaluate("lines => lines.scrollHeight > lines.clientHeight + 1") == scrolls
    assert tab.locator("iframe").bounding_box()["height"] <= 1320
    tab.close()


HOST = """<!doctype html><html lang="en"><title>host</title><link rel="stylesheet" href="/page.css">
<h1>host</h1><main id="place"></main><script type="module" src="/host.js"></script></html>"""
SCRIPT = """import { mount } from "./main.js";
const place = document.getElementById("place");
const shown = await (await fetch("/document.json")).json();
mount(place, shown, { heading: false });
window.page = await mount(place, shown, { heading: false, view: "steps", theme: "dark" });
document.body.dataset.ready = "true";"""


def test_modules_draw_into_an_element_of_a_strict_host(browser, make_document):
    """The modules as a server sends them: strict CSP, weights as nested lists, mounted twice in one element."""
    document = make_document()
    listed = {**document, "maps": [{**entry, "weights": entry["weights"].tolist()} for entry in document["maps"]]}
    own = {"/": ("text/html", HOST), "/host.js": ("text/javascript", SCRIPT)}
    own["/document.json"] = ("application/json", json.dumps(listed))
    kinds = {".js": "text/javascript", ".css": "text/css"}

    def answer(route):
        path = "/" + route.request.url.split("/", 3)[3]
        file = PAGE / path[1:]
        kind, body = own.get(path) or (kinds[file.suffix], file.read_text("utf-8"))
        policy = {"content-security-policy": "default-src 'self'; img-src 'self' data:"}
        route.fulfill(body=body, content_type=kind, headers=policy)

    errors = []
    context = browser.new_context()
    tab = context.new_page()
    tab.on("console", lambda message: message.type == "error" and errors.append(message.text))
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.route("**/*", answer)
    tab.goto("http://host.test/")
    # A function polled in the page would need eval, which the policy forbids.
    tab.locator("body[data-ready]").wait_for()
    assert tab.get_by_role("tablist").count() == 1
    assert tab.get_by_role("heading", level=1).all_inner_texts() == ["host"]
    assert tab.get_by_role("tab", name="Steps").get_attribute("aria-selected") == "true"
    assert tab.locator(".out[aria-current=step]").inner_text() == "le"
    tab.evaluate("page.close()")
    assert tab.locator("#place").inner_html() == ""
    context.close()
    assert not errors
