"""Every recipe's tiny table trains: a few steps of each here, the whole of each in the slow suite."""

import json
import math
import time
from collections import Counter
from pathlib import Path

import pytest

import saccade
from saccade.config.load import list_recipes, load
from saccade.config.schema import MediaReader
from saccade.data.synthetic.grammar import generate_sentences
from saccade.demo.listing import get_demonstration
from saccade.demo.targets import DATA_TARGETS

NAMES = list_recipes()
MEDIA = [name for name in NAMES if isinstance(load(name).reader, MediaReader)]  # these have tests of their own
ELSEWHERE = ("sasrec", "smiles")  # language models of other things than words, with tests of their own
WRITING = [name for name in NAMES if load(name).task.name == "language-model" and name not in ELSEWHERE]
LABELLING = [name for name in NAMES if load(name).task.name == "classify" and name not in MEDIA]
OF_PAIRS = [name for name in NAMES if load(name).task.name == "translate"]
# At tiny size these have the form of gpt2, roberta, t5 or xlnet.
SAME_FORM = (
    "gpt2-medium",
    "gpt2-large",
    "gpt2-xl",
    "megatron",
    "roberta-large",
    "t5-base",
    "turing-nlg",
    "xlnet-large",
)


def test_every_recipe_is_tried():
    assert (len(NAMES), len(WRITING), len(MEDIA)) == (56, 11, 12)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in (*SAME_FORM, *MEDIA, "listen-attend-walk")])
def test_tiny_takes_a_few_steps_and_predicts_the_same_after_loading(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    few = ["train.steps=3", "train.schedule.warmup_steps=1", "train.valid_predictions=5", "train.batch_tokens=512"]
    small = ["data.train.0.examples=300", "train.metric=loss"]
    if name not in LABELLING:
        small = ["data.train=[{ files = ['embedded:dates'], examples = 300 }]", "predict.max_length=5"]
    if name != "dates":  # which takes a share of its training data
        small.append("data.valid.0.examples=20")
    trained = saccade.train(name, tiny=True, run="x", overrides=[*few, *small])
    hidden = {"encode": " [MASK]", "denoise": " <extra_id_0>"}.get(load(name).task.name, "")
    texts = [f"3 May 1999{hidden}", f"21 juin 2008{hidden}"]
    assert saccade.load("runs/x").predict(texts) == trained.predict(texts)


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_PAIRS)
def test_tiny_learns_in_three_minutes(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    begin = time.perf_counter()
    saccade.train(name, tiny=True, run="x")
    assert time.perf_counter() - begin < 180
    lines = [json.loads(line) for line in Path("runs/x/metrics.jsonl").read_text().splitlines()]
    best = max(line["accuracy"] for line in lines if line["event"] == "valid")  # percent of dates, all characters
    # whose demonstration is not tiny
    target = DATA_TARGETS["dates"] if name == "dates" else get_demonstration(name).target
    assert target.is_reached(best)


@pytest.mark.slow
@pytest.mark.parametrize("name", LABELLING)
def test_tiny_learns_to_label(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    begin = time.process_time()
    saccade.train(name, tiny=True, run="x")
    assert time.process_time() - begin < 80
    lines = [json.loads(line) for line in Path("runs/x/metrics.jsonl").read_text().splitlines()]
    best = max(line["accuracy"] for line in lines if line["event"] == "valid")
    assert get_demonstration(name).target.is_reached(best)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*WRITING, "xlnet"])
def test_tiny_language_models_learn_more_than_how_frequent_letters_are(name, tmp_path, monkeypatch):
    """Held-out loss below half of what the frequencies of letters in the training text give: that is the target."""
    monkeypatch.chdir(tmp_path)
    begin = time.process_time()
    saccade.train(name, tiny=True, run="x")
    assert time.process_time() - begin < 80
    lines = [json.loads(line) for line in Path("runs/x/metrics.jsonl").read_text().splitlines()]
    best = min(line["nll"] for line in lines if line["event"] == "valid")
    assert get_demonstration(name).target.is_reached(math.exp(best))


def unigram_loss():
    """Nats for each letter and END of the held-out sentences, by their frequency in those of training."""
    seen = Counter(letter for text in generate_sentences(4000, seed=1) for letter in [*text, ""])
    held = [letter for text in generate_sentences(300, seed=1, heldout=True) for letter in [*text, ""]]
    return -sum(math.log(seen[letter] / seen.total()) for letter in held) / len(held)


@pytest.mark.parametrize("name", [*WRITING, "xlnet"])
def test_the_target_of_language_models_is_half_the_loss_by_the_frequencies_of_letters(name):
    target = get_demonstration(name).target
    assert target.metric == "perplexity"
    assert 0.95 * unigram_loss() / 2 < math.log(target.number) <= unigram_loss() / 2
