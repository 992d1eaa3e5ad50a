"""Takes the screenshots of docs/attention-page.md: `python docs/page_pictures.py PAGE.html`.

PAGE.html is written by `saccade view --html` with two runs (`--compare`). Needs playwright and chromium.
"""

import sys
from pathlib import Path
from shutil import which

from playwright.sync_api import Page, sync_playwright

IMAGES = Path(__file__).parent / "images"


def main(file: Path) -> None:
    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=which("chromium"), args=["--no-sandbox"])
        for theme, ((width, height), views) in SETS.items():
            context = browser.new_context(
                viewport={"width": width, "height": height},
                color_scheme="dark" if theme == "dark" else "light",
                reduced_motion="reduce",
                offline=True,
            )
            page = context.new_page()
            page.goto(file.resolve().as_uri())
            for view in views:
                page.evaluate("scrollTo(0, 0)")
                view(page)
                page.wait_for_timeout(250)
                page.screenshot(path=IMAGES / f"page-{view.__name__}-{theme}.png")
            context.close()
        browser.close()


def open_tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=name).click()


def heads(page: Page) -> None:
    page.locator(".tokens.from .token").nth(4).click()
    page.mouse.move(1, 1)


def matrices(page: Page) -> None:
    open_tab(page, "Matrix")


def matrix(page: Page) -> None:
    open_tab(page, "Matrix")
    page.locator(".thumb").nth(1).click()
    page.mouse.move(1, 1)
    for key in ["ArrowDown"] * 7 + ["ArrowRight"] * 2:
        page.keyboard.press(key)


def steps(page: Page) -> None:
    open_tab(page, "Steps")
    page.locator(".word.out").nth(6).click()


def compare(page: Page) -> None:
    open_tab(page, "Compare")
    page.locator(".compare .heat canvas").first.hover()
    page.evaluate("scrollTo(0, 0)")


def statistics(page: Page) -> None:
    open_tab(page, "Statistics")
    page.get_by_role("button", name="Diagonal").click()


WIDE, PHONE = (1160, 860), (360, 760)
SETS = {
    "light": (WIDE, (heads, matrices, matrix, steps, compare, statistics)),
    "dark": (WIDE, (heads, matrix, steps)),
    "phone": (PHONE, (heads, steps, statistics)),
}

if __name__ == "__main__":
    main(Path(sys.argv[1]))
