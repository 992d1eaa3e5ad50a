"""Checks on prompting: an article from its title, a task given by examples, and parodies in the style of authors."""

from __future__ import annotations

import copy
import io
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from saccade.config.load import load, override
from saccade.config.schema import Decoding
from saccade.data.tokenization.tokenizers import START, UNKNOWN, train_tokenizers
from saccade.errors import SaccadeError
from saccade.lectures.claims import (
    CheckResult,
    Comparison,
    build_result,
    check,
    expect_at_least,
    expect_at_most,
    expect_equal,
    expect_near,
)
from saccade.lectures.references.basics import apply_linear, gelu_tanh
from saccade.lectures.references.transformer import Style, decode_text
from saccade.lectures.small import max_difference, randomize_parameters
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.model.run import load_run
from saccade.predict.predictors.language import LanguageModel
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.prompts import PromptTask, Template, parse_template
from saccade.score.answers import evaluate_answers
from saccade.train.api import train

ARTICLE = parse_template(r"Title: {title}\nSubtitle: {subtitle}\nArticle: {article}")
PARODY = parse_template(r"By {author}:\n{parody}\n")
PARODY_TOPIC = (
    "Topic: humor: literary parodies and homages, pastiches, style parodies.\n"
    "Parodies of the fantasy novel series Harry Potter in the style of various famous authors:\n"
)
AUTHORS = ("Ernest Hemingway", "Jane Austen", "Arthur Conan Doyle")
CORRECTION = parse_template(r"Poor English input: {poor}\nGood English output: {good}")
CORRECTIONS = (
    ("I eated the purple berries.", "I ate the purple berries."),
    (
        "Thank you for picking me as your designer. I'd appreciate it.",
        "Thank you for choosing me as your designer. I appreciate it.",
    ),
    (
        "The mentioned changes have done. or I did the alteration that you requested. or I changed things you wanted "
        "and did the modifications.",
        "The requested changes have been made. or I made the alteration that you requested. or I changed things you "
        "wanted and made the modifications.",
    ),
)
LETTERS = "abcdefghijklmnopqrst"
RULES: Mapping[str, Callable[[str], str]] = {
    "the letter itself": str, "a capital": str.upper, "twice": lambda letter: letter + letter,
    "with a question mark": lambda letter: f"{letter}?",
}  # fmt: skip
RULE = parse_template(r"{given}: {answer}")
DOCUMENTS, STEPS = 4_000, 200  # training documents of five lines; each follows one rule, which it does not state
EXAMPLE_LETTERS, TEST_LETTERS = "dkp", "bghmr"  # letters of the examples, and of the test tasks
WINDOW, RULE_WINDOW = 6, 16  # letters that every other layer attends to, without and with training
SAMPLES = 600  # of the first letter of an article


def build_language_model(length: int = 256) -> tuple[LanguageModel, Model]:
    """Build a small GPT-3 over letters with random weights, and return it with a copy in float64."""
    sizes = ("layers=2", "dim=24", "heads=2", "ff=32", "dropout=0.0", f"window=['none', {WINDOW}]")
    changes = [*(f"writer.stack.{size}" for size in sizes), f"data.max_length={length}"]
    recipe = load("gpt3", tiny=True, overrides=[*changes, f"writer.positions.length={length}", "writer.tie=none"])
    letters = "".join(map(chr, range(32, 127))) + "\n"
    tokenizers = train_tokenizers(recipe.tokenizer, lambda: [(letters,)])  # type: ignore[list-item]
    model = build(recipe, source_size=tokenizers.source.size, target_size=tokenizers.target.size).eval()
    randomize_parameters(model, scale=0.1)
    model.writer.output.weight.data *= 3  # some letters are much more probable than others
    exact = copy.deepcopy(model).double()
    return LanguageModel(model, recipe=recipe, tokenizers=tokenizers), exact


def encode(model: LanguageModel, text: str) -> list[int]:
    """The token ids of a text, without the end."""
    return model.tokenizers.target.encode(text)[:-1]


@torch.no_grad()
def compute_log_probs(exact: Model, ids: Sequence[int], window: int | None = WINDOW) -> Tensor:
    """Log-probabilities of the token after the start, after each token, written out: a row more than tokens."""
    style, inputs = Style(activation=gelu_tanh, pre_norm=True), torch.tensor([START, *ids])
    states = decode_text(exact.writer, inputs, style, (None, window))
    return apply_linear(exact.writer.output, states).log_softmax(-1)


def score_written_out(exact: Model, before: Sequence[int], ids: Sequence[int]) -> Tensor:
    """The log-probability of each token of `ids` after those of `before`, written out."""
    log_probs = compute_log_probs(exact, [*before, *ids])[len(before) : -1]
    return log_probs.gather(1, torch.tensor(list(ids))[:, None])[:, 0]


def continue_greedily(exact: Model, ids: Sequence[int], count: int, window: int | None = WINDOW) -> list[int]:
    """The most probable tokens one by one, written out; special tokens are left out."""
    found: list[int] = []
    for _ in range(count):
        last = compute_log_probs(exact, [*ids, *found], window)[-1]
        found.append(int(last[UNKNOWN + 1 :].argmax()) + UNKNOWN + 1)
    return found


def get_decoding(model: Predictor, *changes: str) -> Decoding:
    return override(model.recipe, [f"predict.{change}" for change in changes]).predict


def build_task(fields: Mapping[str, str]) -> PromptTask:
    return PromptTask("the task", fields)


@check(
    100,
    "S3:1800-1822",
    "GPT-3 writes an article from its title and subtitle: results keep the prompt apart from the completion.",
    formula=r"P(y) = \prod_t P(y_t | \mathrm{prompt}, y_1, \dots, y_{t-1})",
    code=(Template, LanguageModel),
    recipes=("gpt3",),
    breaks=(
        "uniform-attention", "no-positions", "prompt-not-read", "prompt-in-the-completion", "greedy-sampling",
        "seed-ignored",
    ),
)  # fmt: skip
def article() -> CheckResult:
    model, exact = build_language_model()
    prompt = ARTICLE.format_prompt(
        build_task({"title": "A comet is back", "subtitle": "It was last seen by our grandparents"})
    )
    ids = encode(model, prompt)
    settings = [
        get_decoding(model, "sample=true", f"seed={seed}", "min_length=20", "max_length=20") for seed in (3, 3, 4)
    ]
    [first], [repeated], [other] = (model.candidates([prompt], decoding=one)[0] for one in settings)
    described = model.describe(prompt, [first])
    log_probs = score_written_out(exact, ids, encode(model, described["completion"]))
    greedy = get_decoding(model, "sample=false", "beam=1", "min_length=12", "max_length=12")
    other_prompt = prompt.replace("comet", "horse")
    found = [encode(model, text) for text in model.predict([prompt, other_prompt], decoding=greedy)]
    expected = [continue_greedily(exact, encode(model, text), 12) for text in (prompt, other_prompt)]
    same = sum(a == b for pair in zip(found, expected, strict=True) for a, b in zip(*pair, strict=False))
    return build_result(
        expect_equal(
            "the prompt, with | between its lines",
            prompt.replace("\n", " | "),
            "Title: A comet is back | Subtitle: It was last seen by our grandparents | Article:",
        ),
        expect_equal(
            "the prompt in the result is", "the same" if described["prompt"] == prompt else "another", "the same"
        ),
        expect_equal("characters of the completion, without the prompt", len(described["completion"]), 20),
        expect_at_most(
            "log P(letter | prompt, letters before): largest difference from the formulas written out",
            max_difference(torch.tensor(described["log_probs"], dtype=torch.float64), log_probs),
            1e-3,
        ),
        expect_equal("greedy search: letters as by the formulas written out, of 24", same, 24),
        *compare_samples(model, exact, prompt),
        expect_equal("difference of two completions with the same seed", int(repeated.text != first.text), 0),
        expect_equal("difference of two completions with two seeds", int(other.text != first.text), 1),
    )


def compare_samples(model: LanguageModel, exact: Model, prompt: str) -> list[Comparison]:
    """Sample the first letter many times: the mean of its log-probability is minus the entropy."""
    decoding = get_decoding(model, "sample=true", "seed=9", "min_length=1", "max_length=1")
    sampled = [encode(model, text)[0] for text in model.predict([prompt] * SAMPLES, decoding=decoding)]
    log_probs = compute_log_probs(exact, encode(model, prompt))[-1][UNKNOWN + 1 :].log_softmax(-1)
    mean = float(log_probs[torch.tensor(sampled) - UNKNOWN - 1].mean())
    expected = float((log_probs.exp() * log_probs).sum())
    return [
        expect_near(
            f"mean log P of the first letter, {SAMPLES} samples; minus the entropy", mean, expected, within=0.25
        )
    ]


@check(
    101,
    "S3:1824-1890",
    "In-context learning: a few examples in the prompt specify a task, and no weights are trained for it.",
    formula=r"y = \argmax_y P(y | x_1, y_1, x_2, y_2, x_3, y_3, x)",
    code=(Template, evaluate_answers),
    trains=True,
    recipes=("gpt3",),
    breaks=("uniform-attention", "examples-left-out", "prompt-not-read", "stop-ignored", "unshifted-targets"),
)
def by_examples() -> CheckResult:
    """Train on documents that each follow one of four rules, then test with prompts of 0, 1 and 3 examples."""
    with TemporaryDirectory() as folder:
        model = train_rule_model(Path(folder))
        exact = load_run(Path(folder, "run")).model.double()
        found = {shots: measure_accuracy(model, shots) for shots in (0, 1, 3)}
        same = count_same_answers(model, exact)
    solved = "".join(CORRECTION.format_example(build_task({"poor": poor, "good": good})) for poor, good in CORRECTIONS)
    poor = "I'd be more than happy to work with you in another project."
    prompt = CORRECTION.format_prompt(build_task({"poor": poor}), solved)
    lines = [
        line for pair in CORRECTIONS for line in (f"Poor English input: {pair[0]}", f"Good English output: {pair[1]}")
    ]
    return build_result(
        expect_equal(
            "lines of the prompt that are those of the notes",
            sum(a == b for a, b in zip(prompt.splitlines(), [*lines, f"Poor English input: {poor}"], strict=False)),
            7,
        ),
        expect_equal("lines of the prompt in the notes", len(prompt.splitlines()), 8),
        expect_equal(
            "last line of the prompt, which the model completes", prompt.splitlines()[-1], "Good English output:"
        ),
        expect_at_most("percent correct without an example, four rules", found[0], 50),
        expect_at_least("percent correct after one example", found[1], 70),
        expect_at_least("percent correct after three examples", found[3], 90),
        expect_at_least(
            f"first letters that the formulas written out choose too, of {4 * len(TEST_LETTERS)}", same, 19
        ),
        note=f"{DOCUMENTS:,} training documents of five lines, {STEPS} steps. The rules: {', '.join(RULES)}.",
    )


def count_same_answers(model: LanguageModel, exact: Model) -> int:
    """Count the tasks after three examples whose answer begins as the formulas written out say."""
    decoding = get_decoding(model, "sample=false", "beam=1", "min_length=1", "max_length=1")
    prompts = [
        "".join(f"{letter}: {rule(letter)}\n" for letter in EXAMPLE_LETTERS) + f"{given}: "
        for rule in RULES.values()
        for given in TEST_LETTERS
    ]
    found = [encode(model, text) for text in model.predict(prompts, decoding=decoding)]
    return sum(
        ids == continue_greedily(exact, encode(model, prompt), 1, RULE_WINDOW)
        for ids, prompt in zip(found, prompts, strict=True)
    )


def train_rule_model(folder: Path) -> LanguageModel:
    """Train a small language model on documents that follow four rules."""
    generator = random.Random(101)
    rules = [generator.choice(list(RULES.values())) for _ in range(DOCUMENTS)]
    texts = ("".join(f"{given}: {rule(given)}\n" for given in generator.choices(LETTERS, k=5)) for rule in rules)
    file = folder / "texts.txt"
    file.write_text("\n".join(texts), encoding="utf-8")
    every = [f"train.{key}={STEPS}" for key in ("steps", "valid_every", "save_every", "report_every")]
    changes = [
        f"writer.stack.window=['none', {RULE_WINDOW}]", "data.documents=blank", "data.max_length=32",
        "data.cross_document=false", "data.valid=[]", "train.device=cpu", "train.batch_tokens=2048",
        "train.schedule={kind='cosine', lr=0.005, warmup_steps=30}", "writer.dropout=0.0", "writer.stack.dropout=0.0",
    ]  # fmt: skip
    with redirect_stderr(io.StringIO()):
        model = train("gpt3", tiny=True, data=str(file), run=folder / "run", overrides=[*changes, *every])
    assert isinstance(model, LanguageModel)
    return model


def measure_accuracy(model: LanguageModel, shots: int) -> float:
    """Return the percentage of correct answers after this many examples of the rule."""
    decoding = get_decoding(model, "sample=false", "beam=1", "max_length=4", r'stop=["\n"]')
    found = []
    for rule in RULES.values():
        solved = "".join(
            RULE.format_example(build_task({"given": given, "answer": rule(given)}))
            for given in EXAMPLE_LETTERS[:shots]
        )
        tasks = [build_task({"given": given, "answer": rule(given)}) for given in TEST_LETTERS]
        found.append(evaluate_answers(model, tasks, RULE, examples=solved, decoding=decoding).scores["accuracy"].value)
    return sum(found) / len(found)


@check(
    102,
    "S3:1892-1934",
    "Parodies in the style of several authors: each is conditioned on the author's name and all earlier parodies.",
    formula=r"P(y_k) = P(y_k | a_1, y_1, \dots, a_{k-1}, y_{k-1}, a_k)",
    code=(Template, LanguageModel),
    recipes=("gpt3",),
    breaks=("uniform-attention", "no-positions", "prompt-not-read", "examples-left-out", "prompt-cut-at-its-end"),
)
def parodies() -> CheckResult:
    (model, exact), context, expected = build_language_model(length=512), PARODY_TOPIC, PARODY_TOPIC
    decoding = get_decoding(model, "sample=true", "min_length=12", "max_length=12", "seed=5")
    prompts, texts, same = list[str](), list[str](), 0
    for author in AUTHORS:
        expected += f"By {author}:\n"
        prompts.append(PARODY.format_prompt(build_task({"author": author}), context))
        texts += model.predict(prompts[-1:], decoding=decoding)
        same += prompts[-1] == expected
        expected += f"{texts[-1]}\n"
        context += PARODY.format_example(build_task({"author": author, "parody": texts[-1]}))
    last = [
        prompts[-1],
        prompts[-1].replace(AUTHORS[2], "Charles Dickens"),
        prompts[-1].replace(texts[0], "Harry felt nothing."),
        prompts[-1].replace(AUTHORS[1], "Emily Dickinson"),
    ]
    scores = model.score([(prompt, texts[-1]) for prompt in last])
    written = [float(score_written_out(exact, encode(model, text), encode(model, texts[-1])).sum()) for text in last]
    long_prompt, length = context * 9, 512 - 1 - 12
    greedy = get_decoding(model, "sample=false", "beam=1", "min_length=12", "max_length=12", "truncate_prompt=true")
    kept = continue_greedily(exact, encode(model, long_prompt)[-length:], 12)
    [cut] = model.predict([long_prompt], decoding=greedy)
    return build_result(
        expect_equal("prompts that are the topic, all earlier parodies and the next author's name, of 3", same, 3),
        expect_at_most(
            "log P(third parody | prompt): largest difference from the formulas written out",
            max(abs(a - b) for a, b in zip(scores, written, strict=True)),
            1e-2,
        ),
        expect_at_least("its difference for another author's name", abs(scores[1] - scores[0]), 1e-2),
        expect_at_least("its difference for another first parody", abs(scores[2] - scores[0]), 1e-2),
        expect_at_least("its difference for another name before the second parody", abs(scores[3] - scores[0]), 1e-2),
        expect_equal("a context longer than data.max_length is", try_prompt(model, long_prompt), "refused"),
        expect_equal(
            "with truncate_prompt=true: letters as by the formulas written out from its last letters, of 12",
            sum(a == b for a, b in zip(encode(model, cut), kept, strict=False)),
            12,
        ),
    )


def try_prompt(model: LanguageModel, prompt: str) -> str:
    try:
        model.predict([prompt], decoding=get_decoding(model, "sample=false", "beam=1", "max_length=3"))
    except SaccadeError:
        return "refused"
    return "read"
