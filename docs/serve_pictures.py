"""Takes the screenshot of README.md: `python docs/serve_pictures.py http://127.0.0.1:8000`.

The address is that of `saccade serve` with a run of `saccade train dates --tiny`. Needs playwright and chromium.
"""

import sys
from pathlib import Path
from shutil import which

from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).parent / "images"


def main(address: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1100, "height": 1080}, color_scheme="light", reduced_motion="reduce")
        page.goto(address)
        page.locator("#input").fill("Tuesday, 5 March 1024")
        page.get_by_label("Alternatives").fill("3")
        page.locator("#go").click()
        page.wait_for_selector("#attention .saccade")
        page.locator(".tokens.from .token").nth(5).hover()
        page.wait_for_timeout(300)
        page.screenshot(path=IMAGES / "serve.png")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])
