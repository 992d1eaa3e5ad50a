"""Takes the screenshots of docs/watch.md: `python docs/watch_pictures.py PAGE.html`.

PAGE.html is written by `saccade watch RUN --html PAGE.html`. Needs playwright and chromium.
"""

import sys
from pathlib import Path
from shutil import which

from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).parent / "images"
THEMES = ("light", "dark")


def main(file: Path) -> None:
    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=which("chromium"), args=["--no-sandbox"])
        for theme in THEMES:
            context = browser.new_context(
                viewport={"width": 1160, "height": 800},
                color_scheme=theme,
                reduced_motion="reduce",
                offline=True,
            )
            page = context.new_page()
            page.goto(file.resolve().as_uri())
            if theme == "light":
                page.locator(".curve-place").first.hover()
            else:
                page.get_by_label("Attention during training").evaluate("part => part.scrollIntoView()")
                for _ in range(15):
                    page.get_by_role("button", name="Previous snapshot").click()
            page.wait_for_timeout(400)
            page.screenshot(path=IMAGES / f"watch-{theme}.png")
            context.close()
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
