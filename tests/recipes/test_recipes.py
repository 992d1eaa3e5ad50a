"""The recipes that are shipped: their form, and the numbers of the papers that they name."""

import re

import pytest
import torch

from saccade.config.load import get_recipe_path, list_recipes, load
from saccade.config.schema import NextToken, Recipe
from saccade.lectures.listing import list_claims
from saccade.model.build.model import build

NAMES = [
    "albert", "ask-attend-answer", "bahdanau", "bert", "bert-large", "bytenet", "classify", "cnn-self-attention",
    "convs2s", "dates", "deep-att", "gnmt", "gnmt-reward", "gopher", "gpt2", "gpt2-large", "gpt2-medium", "gpt2-xl",
    "gpt3", "listen-attend-spell", "listen-attend-walk", "listen-transformer", "llama", "mask-predict", "megatron",
    "moe", "multi30k", "nat", "probe", "reformer", "roberta", "roberta-large", "sasrec", "set-encoder", "shakespeare",
    "show-ask-attend-answer", "show-attend-interact", "show-attend-interact-streams", "show-attend-read",
    "show-attend-tell", "show-attend-tell-transformer", "small-data", "smiles", "sutskever", "t5", "t5-1.0", "t5-base",
    "tag", "tatoeba", "transformer", "transformer-big", "turing-nlg", "vit", "vit-masked", "xlnet", "xlnet-large",
]  # fmt: skip
SIZES = {
    "layers", "dim", "hidden_dim", "heads", "kv_heads", "ff", "dropout", "attention_dropout", "ff_dropout", "window",
    "head_dim", "chunks",
}  # fmt: skip


def parameters(recipe: Recipe, *, vocabulary: int) -> int:
    with torch.device("meta"):
        model = build(recipe, source_size=vocabulary, target_size=vocabulary)
    return sum(parameter.numel() for parameter in model.parameters())


def test_these_recipes_are_shipped():
    assert list_recipes() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_short_and_says_where_it_comes_from(name):
    text = get_recipe_path(name).read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert len(text.splitlines()) >= 20 and len(text.partition("[paper]")[0].splitlines()) <= 40
    assert len(text.splitlines()) <= 50
    about = load(name).about
    assert re.search(r"et al\. \d{4}", about)
    assert not re.search(r"\brows? \d", about)


def test_claims_of_the_lecture_notes_are_about_every_recipe_but_those_of_later_papers():
    assert {name for claim in list_claims() for name in claim.recipes} == {*NAMES} - {"llama"}


@pytest.mark.parametrize("name", NAMES)
def test_tiny_is_small_and_needs_no_files(name):
    recipe = load(name, tiny=True)
    valid = recipe.data.valid if isinstance(recipe.data.valid, tuple) else ()
    corpora = [*recipe.data.train, *valid]
    assert recipe.data.train
    assert recipe.data.valid
    assert all(corpus.files[0].startswith("embedded:") for corpus in corpora)
    assert recipe.train.steps <= 1000
    assert parameters(recipe, vocabulary=500) < 1_000_000


@pytest.mark.parametrize("name", NAMES)
def test_tiny_keeps_the_architecture(name):
    whole, tiny = load(name), load(name, tiny=True)
    parts = [(whole.reader, tiny.reader), (whole.writer, tiny.writer)]
    for large, small in [both for both in parts if getattr(both[0], "stack", None)]:
        assert small.stack.model_dump(exclude=SIZES) == large.stack.model_dump(exclude=SIZES)


@pytest.mark.parametrize(
    ("name", "dim", "heads", "ff", "dropout", "steps", "averaged", "count"),
    [
        ("transformer", 512, 8, 2048, 0.1, 100_000, 5, 63_082_496),
        ("transformer-big", 1024, 16, 4096, 0.3, 300_000, 20, 214_245_376),
    ],
)
def test_numbers_of_the_paper(name, dim, heads, ff, dropout, steps, averaged, count):
    """Vaswani et al. 2017, sections 3, 5 and 6.1, and table 3."""
    recipe = load(name)
    for part in (recipe.reader, recipe.writer):
        stack = part.stack
        assert (stack.layers, stack.dim, stack.heads, stack.ff, stack.norm) == (6, dim, heads, ff, "post")
        assert (stack.dropout, part.dropout, stack.activation) == (dropout, dropout, "relu")
        assert part.positions.kind == "sinusoidal"
    assert (recipe.tokenizer.kind, recipe.tokenizer.size, recipe.tokenizer.shared) == ("bpe", 37_000, True)
    assert recipe.objectives == (NextToken(label_smoothing=0.1),)
    train = recipe.train
    assert (train.steps, train.batch_tokens, train.schedule.kind, train.schedule.warmup_steps) == (
        steps,
        25_000,
        "warmup",
        4000,
    )
    assert (train.optimizer.betas, train.optimizer.eps) == ((0.9, 0.98), 1e-9)
    assert (train.average.kind, train.average.n) == ("last", averaged)
    assert (recipe.predict.beam, recipe.predict.length_penalty) == (4, 0.6)
    assert parameters(recipe, vocabulary=37_000) == count


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
        ("gpt3", 174_604_259_328),
        ("megatron", 8_317_040_640),
        ("turing-nlg", 17_176_845_728),
        ("gopher", 279_701_110_784),
        ("llama", 8_030_261_248),
    ],
)
def test_language_models_have_the_parameters_of_the_released_ones(name, count):
    """GPT-2 and Llama as `transformers` counts them; the others as lecture rows 94 to 97 do."""
    recipe = load(name)
    assert parameters(recipe, vocabulary=recipe.tokenizer.size) == count


def test_layers_of_gpt3_are_dense_and_banded_in_turn():
    with torch.device("meta"):
        model = build(load("gpt3"), source_size=9, target_size=9)
    assert model.writer.stack.windows == [None, 256] * 48


def test_four_heads_of_llama_share_keys():
    with torch.device("meta"):
        model = build(load("llama"), source_size=9, target_size=9)
    assert model.writer.stack.blocks[0].self.project.shape == (8, 4 + 2, 128)
