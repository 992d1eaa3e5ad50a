"""A researcher: changes a recipe, trains two seeds of two systems, compares them, and brings a score of their own."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

PROGRAM = """
import json
import saccade

runs = {}
for system, norm in (("post", "post"), ("pre", "pre")):
    for seed in (1, 2):
        overrides = {
            "train.seed": seed, "reader.stack.norm": norm, "writer.stack.norm": norm,
            "train.steps": 30, "train.valid_every": 30, "train.schedule.warmup_steps": 10, "data.train.0.examples": 500,
        }
        runs[system, seed] = saccade.train("mine.toml", tiny=True, run=f"{system}-{seed}", overrides=overrides)

scores = saccade.evaluate(runs["pre", 1], "embedded:dates-heldout", metrics="chrf,accuracy")
table = saccade.compare(list(runs.values()), "test.tsv", metric="accuracy").to_pandas()
frame = scores.to_pandas()
table.to_csv("table.csv")
print(json.dumps({
    "columns": list(frame.columns), "rows": len(frame), "table": list(table.columns), "systems": len(table),
    "recipes": len(saccade.recipes().to_pandas()), "plan": len(saccade.plan("mine.toml").to_pandas()),
}))
"""


@pytest.mark.slow
def test_own_recipe_to_compared_table(place):
    place.run("saccade recipes copy multi30k mine.toml")
    text = place.read("mine.toml")
    assert "[reader]" in text and 'norm = "pre"' in text
    (place.folder / "mine.toml").write_text(text.replace("dropout = 0.3 }", "dropout = 0.1 }"), encoding="utf-8")
    (place.folder / "test.tsv").write_text("5 May 1994\t1994-05-05\n21 June 2008\t2008-06-21\n" * 5, encoding="utf-8")
    assert "train.schedule.lr" in place.run("saccade explain train.schedule.lr")
    mistake = place.run("saccade train mine.toml --tiny reader.stack.nrom=pre", code=2)
    assert "did you mean" in mistake

    found = json.loads(place.run_python(PROGRAM).splitlines()[-1])
    assert found["rows"] >= 2 and found["systems"] >= 2 and found["recipes"] > 40 and found["plan"] > 0
    markdown = place.run("saccade compare post-1 post-2 pre-1 pre-2 --data test.tsv --markdown")
    assert markdown.count("|") > 10 and "pre" in markdown
    compared = place.run_json("saccade compare post-1 post-2 pre-1 pre-2 --data test.tsv")
    assert compared["sentences"] == 10
    assert place.read("runs/pre-2/recipe.toml").count("seed = 2") == 1
    assert 'norm = "pre"' in place.read("runs/pre-1/recipe.toml") and 'norm = "post"' in place.read(
        "runs/post-1/recipe.toml"
    )


@pytest.mark.slow
def test_own_score_is_a_plugin(place):
    page = (ROOT / "docs" / "adding-a-score.md").read_text("utf-8")
    source = re.search(r"<!-- file: cosine.py -->\n```python\n(.*?)\n```", page, re.DOTALL)
    assert source
    (place.folder / "cosine.py").write_text(source[1] + "\n", encoding="utf-8")
    place.run(
        "saccade train dates --tiny --plugin cosine.py --run cosine reader.positions.kind=rotary "
        "writer.positions.kind=rotary writer.stack.score.kind=cosine train.steps=10 train.schedule.warmup_steps=2 "
        "data.train.0.examples=300"
    )
    forgotten = place.run('saccade predict cosine "5 May 1994"', code=2)
    assert "--plugin" in forgotten and "cosine" in forgotten
    assert place.run('saccade predict cosine "5 May 1994" --plugin cosine.py').endswith("\n")
