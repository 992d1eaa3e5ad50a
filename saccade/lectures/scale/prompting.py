"""Checks on prompting: an article from its title, a task given by examples, and parodies in the style of authors."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from saccade.config.load import load, override
from saccade.config.schema import Decoding
from saccade.data.tokenization.tokenizers import train_tokenizers
from saccade.errors import SaccadeError
from saccade.lectures.claims import (
    CheckResult,
    build_result,
    check,
    expect_at_least,
    expect_at_most,
    expect_equal,
    expect_near,
)
from saccade.model.build.model import build
from saccade.predict.predictors.language import LanguageModel
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.prompts import PromptTask, Template, parse_template
from saccade.score.answers import evaluate_answers
from saccade.train.api import train

ARTICLE = parse_template(r"Title: {title}\nSubtitle: {subtitle}\nArticle: {article}")
PARODY = parse_template(r"A parody in the manner of {author}:\n{parody}\n")
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
DOCUMENTS, STEPS = 4_000, 150  # training documents of five lines; each follows one rule, which it does not state
EXAMPLE_LETTERS, TEST_LETTERS = "dkp", "bghmr"  # letters of the examples, and of the test tasks


def build_language_model(length: int = 256) -> LanguageModel:
    """Build a character language model with random weights."""
    sizes = ("layers=2", "dim=24", "heads=2", "ff=32", "dropout=0.0")
    changes = [*(f"writer.stack.{size}" for size in sizes), f"data.max_length={length}"]
    recipe = load("gpt2", tiny=True, overrides=[*changes, f"writer.positions.length={length}", "writer.tie=none"])
    letters = "".join(map(chr, range(32, 127))) + "\n"
    tokenizers = train_tokenizers(recipe.tokenizer, lambda: [(letters,)])  # type: ignore[list-item]
    model = build(recipe, source_size=tokenizers.source.size, target_size=tokenizers.target.size).eval()
    return LanguageModel(model, recipe=recipe, tokenizers=tokenizers)


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
)
def article() -> CheckResult:
    model = build_language_model()
    prompt = ARTICLE.format_prompt(
        build_task({"title": "A comet is back", "subtitle": "It was last seen by our grandparents"})
    )
    settings = [
        get_decoding(model, "sample=true", f"seed={seed}", "min_length=20", "max_length=20") for seed in (3, 3, 4)
    ]
    [first], [repeated], [other] = (model.candidates([prompt], decoding=one)[0] for one in settings)
    described = model.describe(prompt, [first])
    score = model.score([(prompt, first.text)])[0]
    return build_result(
        expect_equal("the prompt ends with", prompt.splitlines()[-1], "Article:"),
        expect_equal(
            "the prompt in the result is", "the same" if described["prompt"] == prompt else "another", "the same"
        ),
        expect_equal("characters of the completion, without the prompt", len(described["completion"]), 20),
        expect_near(
            "log P(completion | prompt): difference from the sum over its tokens",
            sum(described["log_probs"]) - score,
            0,
            within=1e-3,
        ),
        expect_equal(
            "the same seed generates", "the same" if repeated.text == first.text else "something else", "the same"
        ),
        expect_equal(
            "another seed generates", "the same" if other.text == first.text else "something else", "something else"
        ),
    )


@check(
    101,
    "S3:1824-1890",
    "In-context learning: a few examples in the prompt specify a task, and no weights are trained for it.",
    formula=r"y = \argmax_y P(y | x_1, y_1, x_2, y_2, x_3, y_3, x)",
    code=(Template, evaluate_answers),
    trains=True,
)
def by_examples() -> CheckResult:
    """Train on documents that each follow one of four rules, then test with prompts of 0, 1 and 3 examples."""
    with TemporaryDirectory() as folder:
        model = train_rule_model(Path(folder))
        found = {shots: measure_accuracy(model, shots) for shots in (0, 1, 3)}
    solved = "".join(CORRECTION.format_example(build_task({"poor": poor, "good": good})) for poor, good in CORRECTIONS)
    prompt = CORRECTION.format_prompt(
        build_task({"poor": "I'd be more than happy to work with you in another project."}), solved
    )
    return build_result(
        expect_equal("lines of the prompt in the notes", len(prompt.splitlines()), 8),
        expect_equal(
            "last line of the prompt, which the model completes", prompt.splitlines()[-1], "Good English output:"
        ),
        expect_at_most("percent correct without an example, four rules", found[0], 50),
        expect_at_least("percent correct after one example", found[1], 70),
        expect_at_least("percent correct after three examples", found[3], 90),
        note=f"{DOCUMENTS:,} training documents of five lines, {STEPS} steps. The rules: {', '.join(RULES)}.",
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
        "data.documents=blank", "data.max_length=32", "data.cross_document=false", "data.valid=[]", "train.device=cpu",
        "train.batch_tokens=2048", "train.schedule={kind='cosine', lr=0.005, warmup_steps=30}", "writer.dropout=0.0",
        "writer.stack.dropout=0.0",
    ]  # fmt: skip
    with redirect_stderr(io.StringIO()):
        model = train("gpt2", tiny=True, data=str(file), run=folder / "run", overrides=[*changes, *every])
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
)
def parodies() -> CheckResult:
    model, context = build_language_model(), ""
    decoding = get_decoding(model, "sample=true", "min_length=12", "max_length=12", "seed=5")
    prompts, texts = list[str](), list[str]()
    for author in ("Hemingway", "Austen", "Conan Doyle"):
        prompts.append(PARODY.format_prompt(build_task({"author": author}), context))
        texts += model.predict(prompts[-1:], decoding=decoding)
        context += PARODY.format_example(build_task({"author": author, "parody": texts[-1]}))
    steps = list(pairwise(prompts))
    follows = [after.startswith(before + text) for (before, after), text in zip(steps, texts, strict=False)]
    both = model.score(
        [(PARODY.format_prompt(build_task({"author": author})), texts[0]) for author in ("Hemingway", "Austen")]
    )
    return build_result(
        expect_equal("prompts that start with the previous prompt and its completion", sum(follows), 2),
        expect_at_least(
            "least growth from one prompt to the next, in characters",
            min(len(after) - len(before) for before, after in steps),
            40,
        ),
        expect_at_least("difference of log P(parody) for two authors", abs(both[0] - both[1]), 1e-4),
        expect_equal("a context longer than data.max_length is", try_prompt(model, context * 9), "refused"),
        expect_equal(
            "and with truncate_prompt=true its last letters are",
            try_prompt(model, context * 9, "truncate_prompt=true"),
            "read",
        ),
    )


def try_prompt(model: LanguageModel, prompt: str, *changes: str) -> str:
    try:
        model.predict([prompt], decoding=get_decoding(model, "sample=false", "beam=1", "max_length=3", *changes))
    except SaccadeError:
        return "refused"
    return "read"
