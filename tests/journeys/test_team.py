"""A small team: trains on a table of its own, scores, serves and exports the model, and trains it further."""

import csv
import json

import pytest

NUMBERS = {"two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs", "seven": "sieben"}
THINGS = {"cars": "Autos", "houses": "Häuser", "dogs": "Hunde", "books": "Bücher", "trees": "Bäume", "doors": "Türen"}
PLACES = {"here": "hier", "there": "dort", "outside": "draußen", "upstairs": "oben", "below": "unten"}
FORM = "reader.positions.layout=concatenated writer.positions.layout=concatenated"  # that of Marian
SETTINGS = (
    "tokenizer.kind=words train.steps=300 train.valid_every=100 train.save_every=100 train.schedule.warmup_steps=100"
)


@pytest.fixture(scope="module")
def tickets(place):
    """A table with more columns than two, as it comes out of a data base."""
    rows = [
        (f"{n}-{t}", f"{n} {t} {p}", f"{NUMBERS[n]} {THINGS[t]} {PLACES[p]}", "2026")
        for n in NUMBERS for t in THINGS for p in PLACES
    ]  # fmt: skip
    for name, part in (("tickets.csv", [row for i, row in enumerate(rows) if i % 9]), ("test.csv", rows[::9])):
        with (place.folder / name).open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("id", "english", "german", "year"), *part])
    return place


@pytest.mark.slow
def test_table_to_deployed_model(tickets):
    place = tickets
    refused = place.run("saccade train small-data --tiny --data tickets.csv --run team", code=2)
    assert "english" in refused and "columns" in refused and not place.list_files("runs/*")

    columns = """data.train.0.columns='["english", "german"]'"""
    place.run(
        f"saccade train transformer --tiny --data tickets.csv {columns} --valid 0.05 --run team {FORM} {SETTINGS}"
    )
    assert "tickets.csv" in place.read("runs/team/card.md")
    before = place.run_json("saccade evaluate team --data test.csv")["scores"]["accuracy"]["value"]
    assert before > 80
    assert place.run('saccade predict team "three dogs outside"') == "drei Hunde draußen\n"

    with place.serve("saccade serve team") as address:
        [result] = place.post(
            f"{address}/v1/predict", {"input": "three dogs outside", "settings": {"beam": 3, "n_best": 2}}
        )["results"]
        assert result["output"] == "drei Hunde draußen" and len(result["candidates"]) == 2

    place.run("saccade export team exported")
    config = json.loads(place.read("exported/config.json"))
    assert config["model_type"] == "marian" and place.list_files("exported/*.safetensors")
    place.run("saccade import exported --run back")
    assert place.run('saccade predict back "three dogs outside" --beam 4') == "drei Hunde draußen\n"

    place.run("saccade train --resume team train.steps=350")
    [state] = [run for run in place.run_json("saccade runs") if run["name"] == "team"]
    assert state["step"] == 350 and state["state"] == "finished"
    assert place.run_json("saccade evaluate team --data test.csv")["scores"]["accuracy"]["value"] >= before - 5
