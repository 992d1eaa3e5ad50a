"""The page in a browser: hovering, pinning, zooming, playing, comparing; shown weights are those of the document."""

import re

import numpy as np
import pytest

ROUNDING = 0.000501  # the page shows weights with three decimal places


def tab(page, name):
    page.get_by_role("tab", name=name).click()
    return page.get_by_role("tabpanel", name=name)


def wait_for_frame(page):
    """Wait until pending drawing is done."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def weight(document, address, head, row, column):
    """Get a weight by the labels of its row and column; without a head, the mean of all heads."""
    entry = next(entry for entry in document["maps"] if entry["address"] == address)
    where = (document["labels"][entry["rows"]].index(row), document["labels"][entry["columns"]].index(column))
    weights = np.asarray(entry["weights"], dtype=np.float64)
    return (weights.mean(0) if head is None else weights[head])[where]


def cell(text):
    """Parse the description of a cell, such as `chat → cat: 0.25`."""
    found = re.fullmatch(r"(.+) → (.+): (\S+)(?: ± (\S+))?", text)
    assert found, text
    return found[1], found[2], float(found[3])


def pixels(canvas):
    """Read the RGBA pixels of the middle columns of a canvas."""
    read = "c => [...c.getContext('2d').getImageData(c.width / 2 - 20, 0, 40, c.height).data]"
    return np.array(canvas.evaluate(read)).reshape(-1, 4)


def rows_of(table):
    return [row.all_inner_texts()[0].split("\t") for row in table.locator("tbody tr").all()]


def test_heading_shows_texts_as_they_are(open_page, make_document):
    page = open_page(make_document())
    assert page.get_by_role("heading", level=1).inner_text() == "a <b>run</b>"
    assert page.locator(".texts dd").all_inner_texts() == ["the black cat sl eeps", "le chat noir dort bien ."]
    assert page.title() == "a <b>run</b> · saccade"


def test_hover_and_pin_show_what_a_token_attends_to(open_page, make_document):
    document = make_document()
    page = open_page(document)
    side = page.locator(".heads .side")
    token = page.locator(".tokens.from").get_by_role("button", name="noir")
    token.hover()
    assert side.get_by_role("heading").inner_text() == "noir attends to"
    for label, _, number in rows_of(side.locator("table")):
        assert float(number) == pytest.approx(weight(document, "cross.2", None, "noir", label), abs=ROUNDING)
    page.mouse.move(5, 5)
    assert side.get_by_role("heading").count() == 0
    token.click()
    page.mouse.move(5, 5)
    page.get_by_role("tab", name="Heads").focus()
    assert token.get_attribute("aria-pressed") == "true"
    assert side.get_by_role("heading").inner_text() == "noir attends to"
    assert page.get_by_role("status").first.inner_text().startswith("noir attends to")
    token.press("Escape")
    assert token.get_attribute("aria-pressed") == "false"


def test_columns_show_who_attends_to_them_in_the_chosen_heads(open_page, make_document):
    document = make_document()
    page = open_page(document)
    for head in ("Head 1", "Head 3"):
        page.get_by_role("button", name=head).click()
    page.locator(".tokens.to").get_by_role("button", name="cat").hover()
    side = page.locator(".heads .side")
    assert side.get_by_role("heading").inner_text() == "cat is attended to by"
    assert "head 2" in side.inner_text()
    for label, _, number in rows_of(side.locator("table")):
        assert float(number) == pytest.approx(weight(document, "cross.2", 1, label, "cat"), abs=ROUNDING)


def test_lines_are_drawn_in_the_colour_of_their_head(open_page, make_document):
    page = open_page(make_document())
    for head in ("Head 1", "Head 3"):
        page.get_by_role("button", name=head).click()
    wait_for_frame(page)
    drawn = [pixel[:3] for pixel in pixels(page.locator(".lines canvas")) if pixel[3] > 90]
    assert len(drawn) > 20
    assert np.abs(np.median(drawn, axis=0) - [0xC2, 0x5E, 0x00]).max() <= 3  # vermilion, of the second head


def test_arrow_keys_walk_along_tokens(open_page, make_document):
    page = open_page(make_document())
    page.locator(".tokens.from .token").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert page.locator(".heads .side h2").inner_text() == "chat attends to"
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.textContent") == "<end>"


def test_words_merge_their_subword_tokens(open_page, make_document):
    document = make_document()
    page = open_page(document)
    page.locator(".heads").get_by_label("Whole words").check()
    assert page.locator(".tokens.to .token").all_inner_texts() == ["the", "black", "cat", "sleeps"]
    page.locator(".tokens.from").get_by_role("button", name="dort").hover()
    shown = {label: float(number) for label, _, number in rows_of(page.locator(".heads .side table"))}
    pieces = sum(weight(document, "cross.2", None, "dort", piece) for piece in ("sl", "eeps"))
    assert shown["sleeps"] == pytest.approx(pieces, abs=ROUNDING)


def test_thumbnail_opens_a_matrix_whose_cells_show_their_weight(open_page, make_document):
    document = make_document()
    page = open_page(document)
    panel = tab(page, "Matrix")
    assert panel.locator(".thumb").count() == 18
    panel.get_by_role("button", name="writer, layer 1, head 3").click()
    canvas = panel.locator(".heat canvas")
    box = canvas.bounding_box()
    seen = set()
    for x, y in ((0.4, 0.4), (0.6, 0.9), (0.5, 0.6)):
        page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
        wait_for_frame(page)
        row, column, shown = cell(panel.locator(".tip").inner_text())
        assert shown == pytest.approx(weight(document, "writer.1", 2, row, column), abs=ROUNDING)
        seen.add((row, column))
    assert len(seen) == 3


def test_keys_walk_zoom_and_leave_a_matrix(open_page, make_document):
    document = make_document()
    page = open_page(document)
    panel = tab(page, "Matrix")
    panel.get_by_role("button", name="cross, layer 1, head 2").click()
    canvas = panel.locator(".heat canvas")
    assert canvas.evaluate("canvas => canvas === document.activeElement")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    status = page.locator(".saccade > [role=status]")
    row, column, shown = cell(status.inner_text())
    assert (row, column) == ("chat", "black")
    assert shown == pytest.approx(weight(document, "cross.1", 1, row, column), abs=ROUNDING)
    before = canvas.bounding_box()["width"]
    page.keyboard.press("+")
    wait_for_frame(page)
    assert canvas.bounding_box()["width"] > before * 1.2
    page.keyboard.press("0")
    wait_for_frame(page)
    assert canvas.bounding_box()["width"] == before
    page.keyboard.press("Escape")
    assert panel.locator(".thumb").first.is_visible()


def test_matrix_is_there_as_a_table(open_page, make_document):
    document = make_document()
    page = open_page(document)
    panel = tab(page, "Matrix")
    panel.get_by_role("button", name="cross, layer 2, head 1").click()
    panel.get_by_text("Weights as a table").click()
    table = panel.locator("table.whole")
    table.wait_for()
    shown = np.array([[float(number) for number in row[1:]] for row in rows_of(table)])
    assert np.abs(shown - document["maps"][5]["weights"][0]).max() <= 0.00051
    assert table.get_by_role("columnheader").all_inner_texts() == document["labels"]["source"]


def test_dragging_a_zoomed_matrix_moves_it(open_page, make_document):
    page = open_page(make_document())
    panel = tab(page, "Matrix")
    panel.locator(".thumb").first.click()
    for _ in range(4):
        panel.get_by_role("button", name="Zoom in").click()
    wait_for_frame(page)
    box = panel.locator(".heat canvas").bounding_box()
    middle = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    cells = []
    for drag in (-150, 0):
        page.mouse.move(*middle)
        wait_for_frame(page)
        cells.append(cell(panel.locator(".tip").inner_text())[:2])
        page.mouse.down()
        page.mouse.move(middle[0], middle[1] + drag, steps=3)
        page.mouse.up()
    assert cells[0] != cells[1]


def test_steps_play_pause_and_go_by_keys(open_page, make_document):
    document = make_document()
    page = open_page(document)
    panel = tab(page, "Steps")
    page.clock.install()
    assert panel.locator(".steps .bar .number").inner_text() == "1 / 7"
    panel.get_by_role("button", name="Play").click()
    page.clock.run_for(1900)
    assert panel.locator(".steps .bar .number").inner_text() == "3 / 7"
    panel.get_by_role("button", name="Pause").click()
    page.clock.run_for(3000)
    assert panel.locator(".steps .bar .number").inner_text() == "3 / 7"
    panel.get_by_role("button", name="Step 3: noir").focus()
    page.keyboard.press("ArrowRight")
    assert panel.locator(".out[aria-current=step]").inner_text() == "dort"
    weights = {label: weight(document, "cross.2", None, "dort", label) for label in document["labels"]["source"]}
    best = max(weights, key=weights.__getitem__)
    assert panel.locator(".word.attended").inner_text() == best
    assert best in page.locator(".saccade > [role=status]").inner_text()
    assert float(re.search(r"with weight (\S+)\.", panel.inner_text())[1]) == pytest.approx(weights[best], abs=ROUNDING)
    page.keyboard.press("End")
    assert panel.locator(".steps .bar .number").inner_text() == "7 / 7"
    assert rows_of(panel.locator(".likely"))[0][0::2] == ["<end>", "75.0 %"]


def test_search_shows_what_became_the_output(open_page, make_document):
    page = open_page(make_document())
    panel = tab(page, "Steps")
    assert panel.locator(".beam .box.chosen").count() == 7
    assert panel.locator(".beam .box.dropped").count() == 7
    assert panel.locator(".beam .future .box.chosen").count() == 6


def test_two_heads_are_compared_cell_by_cell(open_page, make_document):
    document = make_document()
    page = open_page(document)
    panel = tab(page, "Compare")
    panel.locator(".heat canvas").last.focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    wait_for_frame(page)
    text = panel.locator("[role=status]").inner_text()
    first, second, difference = map(float, re.search(r"first (\S+), second (\S+), difference (\S+)", text).groups())
    assert text.startswith("noir → the:")
    assert first == pytest.approx(weight(document, "cross.2", 0, "noir", "the"), abs=ROUNDING)
    assert second == pytest.approx(weight(document, "cross.2", 1, "noir", "the"), abs=ROUNDING)
    assert difference == pytest.approx(first - second, abs=2 * ROUNDING)


def test_two_runs_are_compared(open_page, make_document):
    document = {**make_document(), "other": {**make_document(seed=1), "title": "second"}}
    page = open_page(document)
    panel = tab(page, "Compare")
    assert panel.get_by_label("Run").nth(1).input_value() == "other"
    panel.locator(".heat canvas").first.focus()
    page.keyboard.press("ArrowRight")
    wait_for_frame(page)
    found = re.search(r"first (\S+), second (\S+),", panel.locator("[role=status]").inner_text())
    assert float(found[1]) == pytest.approx(weight(document, "cross.2", 0, "le", "the"), abs=ROUNDING)
    assert float(found[2]) == pytest.approx(weight(document["other"], "cross.2", 0, "le", "the"), abs=ROUNDING)
    panel.get_by_label("Attention").first.select_option("reader, layer 1")
    assert "different shapes" in panel.locator("[role=status]").inner_text()


def test_statistics_sort_and_lead_to_the_head(open_page, make_document):
    document = make_document()
    page = open_page(document)
    panel = tab(page, "Statistics")
    panel.get_by_role("button", name="Entropy").click()
    shown = [float(text) for text in panel.locator("tbody tr td:nth-child(2)").all_inner_texts()]
    every = [value for entry in document["maps"] for value in document["statistics"][entry["address"]]["entropy"]]
    assert shown == [pytest.approx(value, abs=0.006) for value in sorted(every, reverse=True)]
    assert panel.locator("th[aria-sort=descending]").inner_text().startswith("Entropy")
    panel.get_by_role("button", name="writer, layer 2, head 2").click()
    matrix = page.get_by_role("tabpanel", name="Matrix")
    assert matrix.get_by_role("combobox", name="Attention").locator(":checked").inner_text() == "writer, layer 2"
    assert matrix.get_by_role("combobox", name="Head").locator(":checked").inner_text() == "head 2"


def test_a_pin_does_not_outlive_its_map(open_page, make_document):
    page = open_page(make_document())
    page.locator(".tokens.from").get_by_role("button", name="<end>").click()
    tab(page, "Statistics").get_by_role("button", name="reader, layer 1, head 1").click()
    panel = tab(page, "Heads")
    assert panel.locator(".token").count() == 10
    assert panel.locator(".token[aria-pressed=true]").count() == 0
