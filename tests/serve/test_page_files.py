"""The page with models for images and audio: files are chosen or dropped, sent, and shown with their attention."""

import base64
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from saccade.data.media.sound import Recording

DROP = """([data, type]) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const held = new DataTransfer();
  held.items.add(new File([bytes], "dropped.png", { type }));
  const place = document.querySelector("#file-field");
  for (const kind of ["dragover", "drop"]) {
    place.dispatchEvent(new DragEvent(kind, { dataTransfer: held, bubbles: true, cancelable: true }));
  }
}"""


@pytest.fixture
def tab(browser, media_server) -> Iterator[Any]:
    """The page; asserts afterwards that there were no console errors but refused requests."""
    errors = []
    context = browser.new_context(viewport={"width": 1100, "height": 900}, reduced_motion="reduce")
    page = context.new_page()
    page.set_default_timeout(15_000)
    page.on("console", lambda message: message.type == "error" and errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"http://127.0.0.1:{media_server}/")
    page.wait_for_selector("#model option >> nth=4", state="attached")
    yield page
    context.close()
    assert not [text for text in errors if "Failed to load resource" not in text]


def picture(size: tuple[int, int] = (60, 50)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, "red").save(file, "PNG")
    return file.getvalue()


def choose(page: Any, name: str, data: bytes) -> None:
    page.get_by_label("Audio" if name.endswith(".wav") else "Image").set_input_files(
        {"name": name, "mimeType": "", "buffer": data}
    )


def test_a_picture_is_shown_with_its_classes_and_attention(tab, violations):
    assert not tab.locator("#input").is_visible()
    choose(tab, "red.png", picture())
    tab.wait_for_selector("#preview img")
    tab.get_by_role("button", name="Run").click()
    tab.wait_for_selector("#attention .saccade")
    rows = tab.locator("#alternatives tbody tr")
    assert rows.nth(0).locator("td").nth(0).inner_text() == tab.locator("#output").inner_text()
    shares = [float(row.split()[-2]) for row in rows.all_inner_texts() if row.endswith("%")]
    assert shares == sorted(shares, reverse=True)
    assert tab.locator("#preview img").get_attribute("alt") == "Chosen image, red.png"
    assert violations(tab) == []


def test_a_caption_has_attention_word_by_word(tab):
    tab.locator("#model").select_option("scenes")
    choose(tab, "red.png", picture())
    tab.get_by_label("Alternatives").fill("2")
    tab.get_by_role("button", name="Run").click()
    tab.wait_for_selector("#attention .stage.photo img")
    second = tab.locator("#alternatives tbody tr button").nth(1)
    second.click()
    tab.wait_for_selector("#attention .saccade")
    assert tab.locator("#attention-problem").is_hidden()


def test_audio_is_transcribed_and_its_spectrogram_shown(tab, tmp_path, violations):
    tab.locator("#model").select_option("tones")
    Recording(np.sin(np.arange(4000) / 3), 8000).save(tmp_path / "a.wav")
    choose(tab, "a.wav", (tmp_path / "a.wav").read_bytes())
    tab.wait_for_selector("#preview audio")
    tab.get_by_role("button", name="Run").click()
    tab.wait_for_selector("#attention .saccade")
    assert tab.locator("#output").inner_text() != ""
    assert violations(tab) == []


def test_a_question_is_asked_about_a_picture(tab, violations):
    tab.locator("#model").select_option("questions")
    choose(tab, "red.png", picture())
    tab.get_by_role("textbox", name="Question").fill("what colour is it")
    tab.get_by_role("textbox", name="Question").press("Control+Enter")
    tab.wait_for_selector("#attention .saccade")
    assert tab.locator("#output").inner_text() != ""
    assert violations(tab) == []


def test_a_file_may_be_dropped(tab):
    tab.evaluate(DROP, [base64.b64encode(picture()).decode(), "image/png"])
    tab.wait_for_selector("#preview img")
    tab.get_by_role("button", name="Run").press("Enter")
    tab.wait_for_selector("#attention .saccade")
    assert tab.locator("#problem").is_hidden()


def test_what_is_wrong_with_a_file_is_reported(tab):
    tab.get_by_role("button", name="Run").click()
    assert tab.locator("#problem").inner_text() == "Choose a picture file first."
    assert tab.evaluate("document.activeElement.id") == "file"
    choose(tab, "dog.jpg", b"a text")
    tab.get_by_role("button", name="Run").click()
    tab.wait_for_selector("#problem:has-text('dog.jpg is not a readable picture')")
    assert tab.locator("#go").is_enabled()


def test_another_kind_of_model_forgets_the_file(tab):
    choose(tab, "red.png", picture())
    tab.wait_for_selector("#preview img")
    tab.locator("#model").select_option("dates")
    assert not tab.locator("#file-field").is_visible()
    assert tab.locator("#input").is_visible()
    tab.locator("#model").select_option("tones")
    assert tab.locator("#preview img").count() == 0
    assert tab.locator("#file").input_value() == ""


def test_the_page_fits_a_phone(tab):
    tab.set_viewport_size({"width": 360, "height": 740})
    choose(tab, "wide.png", picture((900, 100)))
    tab.get_by_role("button", name="Run").click()
    tab.wait_for_selector("#attention .saccade")
    assert tab.evaluate("document.documentElement.scrollWidth") == 360
