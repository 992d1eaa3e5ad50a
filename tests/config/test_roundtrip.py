"""Any valid recipe is the same after saving and loading."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from saccade.config.load import list_recipes, load, save, validate

count = st.integers(1, 10**9)
share = st.floats(0, 0.999)
text = st.text(max_size=20)
flag = st.booleans()


def some(**keys: st.SearchStrategy) -> st.SearchStrategy:
    """A table with any of these keys, each there or left to its default."""
    return st.fixed_dictionaries({}, optional=keys)


optional_count = count | st.just("none")
corpus = st.fixed_dictionaries(
    {"files": st.lists(text, min_size=1, max_size=2)},
    optional={"weight": st.floats(0.001, 1e6), "examples": optional_count, "columns": st.tuples(text, text)},
)
positions = st.one_of(
    some(kind=st.just("sinusoidal"), layout=st.sampled_from(["interleaved", "concatenated"])),
    st.fixed_dictionaries({"kind": st.just("learned")}, optional={"length": count}),
    st.fixed_dictionaries(
        {"kind": st.just("rotary")},
        optional={"base": st.floats(1, 1e9), "scaling": st.fixed_dictionaries({"factor": st.floats(1, 64)})},
    ),
    st.just({"kind": "none"}),
)
score = st.sampled_from(["scaled-dot", "concat", {"kind": "additive"}, {"kind": "additive", "hidden_dim": 7}])
stack = some(
    layers=st.integers(1, 10_000), dim=st.sampled_from([64, 512]), norm=st.sampled_from(["pre", "post"]),
    window=optional_count, score=score, cross_score=score | st.just("none"),
)  # fmt: skip
objective = st.one_of(
    some(label_smoothing=share),
    st.fixed_dictionaries({"kind": st.just("r-drop")}, optional={"alpha": st.floats(0, 1e3)}),
)
recipes = some(
    name=text,
    about=text,
    data=some(train=st.lists(corpus, max_size=3), valid=st.lists(corpus, max_size=2) | share, max_length=count),
    tokenizer=some(
        kind=st.sampled_from(["bpe", "words"]), shared=flag, dropout=share, files=st.lists(text, max_size=2)
    ),
    reader=some(stack=stack, positions=positions, dropout=share),
    writer=some(stack=stack, positions=positions, tie=st.sampled_from(["none", "output", "all"])),
    objectives=st.lists(objective, min_size=1, max_size=3),
    train=some(steps=optional_count, minutes=st.floats(0.1, 1e9), deterministic=flag | st.just("none"), compile=flag),
    predict=some(max_length=optional_count, prefix=text, length_penalty=st.floats(-50, 50)),
    freeze=st.lists(st.sampled_from(["reader", "writer"]), max_size=2),
)


@given(recipes)
@settings(max_examples=100, deadline=None)
def test_saving_and_loading_gives_the_same_recipe(values):
    if values.get("writer", {}).get("tie", "all") == "all":  # needs one vocabulary
        values.get("tokenizer", {}).pop("shared", None)
    recipe = validate(values)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recipe.toml"
        save(recipe, path)
        assert load(path) == recipe


def test_shipped_recipes_survive_too(tmp_path):
    for name in list_recipes():
        for tiny in (False, True):
            recipe = load(name, tiny=tiny)
            save(recipe, tmp_path / "recipe.toml")
            assert load(tmp_path / "recipe.toml") == recipe
