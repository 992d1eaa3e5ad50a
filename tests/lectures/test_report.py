"""The report: a self-contained page, and figures with their data."""

import csv
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from saccade.errors import SaccadeError
from saccade.lectures.catalogue import find_row
from saccade.lectures.drawing import Lines, Matrix, to_csv, to_svg
from saccade.lectures.outcomes import format_number, run_check
from saccade.lectures.report import collect_rows, find_decision, load_errata, write_report
from saccade.lectures.scale import complexity

VOID = {"meta", "img", "input"}
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


class Balanced(HTMLParser):
    """Collects links and targets, and checks that every element is closed."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.links, self.shown = [], set(), set(), []

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids.add(found.get("id"))
        self.links.add(found.get("href"))
        self.shown.append(found.get("src"))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Write the report of one lecture with quick rows."""
    folder = tmp_path_factory.mktemp("report")
    path = write_report([run_check(row, train=False) for row in collect_rows(["S2"])], folder, lectures=["S2"])
    return path, path.read_text("utf-8")


def test_the_page_is_well_formed_and_its_links_lead_somewhere(page):
    path, text = page
    seen = Balanced()
    seen.feed(text)
    assert not seen.open
    inside = {link[1:] for link in seen.links if link and link.startswith("#")}
    assert inside <= seen.ids
    outside = {link for link in seen.links if link and not link.startswith("#")}
    assert outside
    assert all((path.parent / link).exists() for link in outside)


def test_the_page_needs_nothing_from_elsewhere(page):
    _, text = page
    seen = Balanced()
    seen.feed(text)
    assert all(source.startswith("data:") for source in seen.shown if source)
    assert "<script" not in text
    assert "@import" not in text


def test_rows_stand_in_slide_order_with_formula_and_numbers(page):
    _, text = page
    numbers = [int(row) for row in re.findall(r'<article id="row-(\d+)"', text)]
    assert numbers[:4] == [105, 106, 12, 13]
    assert numbers.index(45) < numbers.index(48) < numbers.index(72)
    assert "<math" in text
    assert "saccade/layers/attention/positions.py" in text
    assert "Errata" in text


def test_places_in_the_notes_link_to_their_titles(page):
    _, text = page
    title = "Transformers and Vision Transformers (Neural Networks and Machine Learning, Eric C. Larson)"
    assert f'<a href="#notes-S2" title="{title}, line 81">S2:81</a>' in text
    links = re.findall(r"<a [^>]*>S\d:[^<]*</a>", text)
    visible = re.sub(
        r"<(style|pre)\b.*?</\1>|<[^>]+>", "", re.sub(r"<a [^>]*>S\d:[^<]*</a>", "", text), flags=re.DOTALL
    )
    assert len(links) > 20
    assert re.findall(r"S\d:\d+", visible) == ["S3:121"]  # the explanation


@pytest.mark.parametrize(("width", "scheme"), [(1160, "light"), (390, "dark")])
def test_the_page_is_accessible_and_fits_a_phone(browser, page, width, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    context = browser.new_context(
        viewport={"width": width, "height": 844}, color_scheme=scheme, offline=True, bypass_csp=True
    )
    tab = context.new_page()
    tab.goto(page[0].as_uri())
    found = axe.run(tab, options={"runOnly": {"type": "tag", "values": RULES}}).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"]) for one in found] == []
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    before = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    tab.get_by_label("light" if scheme == "dark" else "dark", exact=True).check()
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") != before
    context.close()


def test_pictures_and_numbers_are_files_too(page):
    path, _ = page
    ElementTree.parse(path.parent / "row-72.svg")
    lines = list(csv.reader((path.parent / "row-72.csv").read_text("utf-8").splitlines()))
    assert lines[0] == ["curve", "k", "PE(p) · PE(p + k)"]
    assert len(lines) == 102


def test_a_drawing_of_lines_and_of_a_matrix():
    lines = Lines("x", "y", {"a": ([1, 2], [3, 4]), "b": ([1, 2], [5, 6])}, "caption", log_x=True, log_y=True)
    matrix = Matrix("row", "column", [[0.5, -0.5], [1.0, 0.0]], "caption", ["p", "q"], ["r", "s"])
    assert to_csv(lines) == "curve,x,y\na,1,3\na,2,4\nb,1,5\nb,2,6\n"
    assert to_csv(matrix) == "row / column,r,s\np,0.5,-0.5\nq,1.0,0.0\n"
    assert to_svg(lines) == to_svg(lines)
    assert ">caption<" not in to_svg(matrix)


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(SaccadeError, match="is not a folder; give another --out"):
        write_report([], tmp_path / "taken", lectures=[])


def test_every_mistake_is_decided_by_a_measurement_or_a_source(monkeypatch):
    monkeypatch.setattr(
        complexity, "compare_path_lengths", lambda: [complexity.expect_equal("layers of contiguous convolutions", 1, 1)]
    )
    found = {number: run_check(find_row(number)) for number in {item.row for item in load_errata() if item.row}}
    undecided = [item.where for item in load_errata() if item.row and find_decision(item, found) is None]
    assert not undecided
    assert all(bool(item.row) != bool(item.source) for item in load_errata())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "yes"),
        (63_082_496, "63,082,496"),
        (2.3e19, "2.3e+19"),
        (0.12341, "0.1234"),
        (1500.0, "1,500"),
        ("a", "a"),
    ],
)
def test_numbers_have_as_many_digits_as_matter(value, text):
    assert format_number(value) == text
