"""How fluid the attention page is on 2,000 x 2,000 tokens: frames per second while panning, zooming and scrolling.

    python benchmarks/page_frames.py

A real mouse drags in headless Chromium without a GPU; times are those between animation frames of the page.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Page, sync_playwright
from results import save

from saccade.view.html import build_page as html

RECORD = """() => {
  window.seen = [];
  const tick = (now) => (window.seen.push(now), window.next = requestAnimationFrame(tick));
  window.next = requestAnimationFrame(tick);
}"""
STOP = "() => (cancelAnimationFrame(window.next), window.seen)"
PICTURE = "canvas => canvas.toDataURL()"
ZOOMS = {"whole matrix in sight, 2 x closer": 2, "8 x closer": 5, "as close as it goes": 14}  # presses of the plus key


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(html(document(options.tokens, options.heads)), encoding="utf-8")
        rows = [row("size of the file", round(file.stat().st_size / 1e6, 2), "MB"), *measure_frames(file)]
    for one in rows:
        print(one)
    notes = (
        f"{options.tokens} x {options.tokens} tokens, {options.heads} heads; "
        "frames of headless Chromium without a GPU, which draws at most 60 in a second"
    )
    print(save("page_frames", rows, minutes=(time.perf_counter() - start) / 60, folder=options.out, notes=notes))


def document(count: int, heads: int) -> dict[str, Any]:
    """Build a document with causal self-attention: a band along the diagonal, and random distant positions."""
    numbers = np.random.default_rng(0)
    places = np.arange(count)
    near = -np.abs(places[:, None] - places) / 300
    scores = near + 1.5 * numbers.standard_normal((heads, count, count), dtype=np.float32)
    scores[:, places[:, None] < places] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    words = [f"word{i}" for i in places]
    entry = {
        "address": "writer.0", "name": "self-attention, layer 1", "part": "writer", "layer": 1, "rows": "target",
        "columns": "seen", "heads": heads, "shape": weights.shape, "weights": weights / weights.sum(-1, keepdims=True),
    }  # fmt: skip
    labels = {"source": [], "target": words, "seen": words}
    return {"schema": 1, "title": "long", "input": None, "output": "", "labels": labels, "maps": [entry]}


def measure_frames(file: Path) -> list[dict[str, Any]]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        start = time.perf_counter()
        page.goto(file.as_uri())
        page.get_by_role("tab", name="Matrix").wait_for()
        rows = [row("opening the page", round(time.perf_counter() - start, 2), "s")]
        rows.append(frames(page, "scrolling lines between tokens", scroll))
        page.get_by_role("tab", name="Matrix").click()
        page.locator(".thumb").first.click()
        for what, presses in ZOOMS.items():
            page.keyboard.press("0")
            rows.append(frames(page, f"zooming in, {presses} steps", lambda p, n=presses: zoom(p, n)))
            canvas = page.locator(".matrix .heat canvas")
            before = canvas.evaluate(PICTURE)
            rows.append(frames(page, f"panning, {what}", pan))
            assert canvas.evaluate(PICTURE) != before, "nothing moved"
        browser.close()
    return rows


def row(what: str, value: float, unit: str) -> dict[str, Any]:
    return {"what": what, "value": value, "unit": unit}


def frames(page: Page, what: str, act: Callable[[Page], None]) -> dict[str, Any]:
    page.wait_for_timeout(300)
    page.evaluate(RECORD)
    act(page)
    gaps = np.diff(page.evaluate(STOP))
    rate = row(what, round(1000 * len(gaps) / float(gaps.sum()), 1), "frames/s")
    return {**rate, "slowest_frame_ms": round(float(gaps.max()), 1), "frames": len(gaps)}


def pan(page: Page) -> None:
    """Drag back and forth over the middle of the map for at least two seconds."""
    box = page.locator(".matrix .heat canvas").bounding_box()
    assert box
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    for dx, dy in ((-220, -180), (180, 150), (-200, 160), (200, -160), (-80, -60)):
        page.mouse.move(x + dx, y + dy, steps=40)
    page.mouse.up()


def zoom(page: Page, presses: int) -> None:
    page.locator(".matrix .heat canvas").focus()
    for _ in range(presses):
        page.keyboard.press("+")
        page.wait_for_timeout(40)


def scroll(page: Page) -> None:
    page.locator(".tokens.from .token").first.hover()
    page.mouse.move(400, 500)
    for _ in range(60):
        page.mouse.wheel(0, 120)
        page.wait_for_timeout(16)


if __name__ == "__main__":
    main()
