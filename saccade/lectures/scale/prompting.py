"""Rows about prompts: an article from its title, a task told by examples, one text in the manner of several authors."""

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
from saccade.lectures.claims import Measured, at_least, at_most, check, measured, near, same
from saccade.model.build.model import build
from saccade.predict.predictors.language import LanguageModel
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.prompts import Task, Template, parse
from saccade.score.answers import evaluate_answers
from saccade.train.api import train

ARTICLE = parse(r"Title: {title}\nSubtitle: {subtitle}\nArticle: {article}")
PARODY = parse(r"A parody in the manner of {author}:\n{parody}\n")
POOR = parse(r"Poor English input: {poor}\nGood English output: {good}")
CORRECTED = (
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
RULE = parse(r"{given}: {answer}")
TEXTS, STEPS = 4_000, 150  # documents of five lines, each with a rule of its own that is not told
SHOWN, ASKED = "dkp", "bghmr"  # letters of the examples, and of the tasks


def small_writer(length: int = 256) -> LanguageModel:
    """A language model of letters that has learned nothing."""
    sizes = ("layers=2", "dim=24", "heads=2", "ff=32", "dropout=0.0")
    changes = [*(f"writer.stack.{size}" for size in sizes), f"data.max_length={length}"]
    recipe = load("gpt2", tiny=True, overrides=[*changes, f"writer.positions.length={length}", "writer.tie=none"])
    letters = "".join(map(chr, range(32, 127))) + "\n"
    tokenizers = train_tokenizers(recipe.tokenizer, lambda: [(letters,)])  # type: ignore[list-item]
    model = build(recipe, source_size=tokenizers.source.size, target_size=tokenizers.target.size).eval()
    return LanguageModel(model, recipe=recipe, tokenizers=tokenizers)


def chosen(model: Predictor, *changes: str) -> Decoding:
    return override(model.recipe, [f"predict.{change}" for change in changes]).predict


def task(fields: Mapping[str, str]) -> Task:
    return Task("the task", fields)


@check(
    100,
    "S3:1800-1822",
    "An article by GPT-3 from its title and subtitle: the prompt is told apart from what the model wrote.",
    formula=r"P(y) = \prod_t P(y_t | \mathrm{prompt}, y_1, \dots, y_{t-1})",
    code=(Template, LanguageModel),
)
def article() -> Measured:
    model = small_writer()
    prompt = ARTICLE.prompt(task({"title": "A comet is back", "subtitle": "It was last seen by our grandparents"}))
    drawn = [chosen(model, "sample=true", f"seed={seed}", "min_length=20", "max_length=20") for seed in (3, 3, 4)]
    [first], [again], [other] = (model.candidates([prompt], decoding=one)[0] for one in drawn)
    told = model.described(prompt, [first])
    behind = model.score([(prompt, first.text)])[0]
    return measured(
        same("the prompt ends with", prompt.splitlines()[-1], "Article:"),
        same("what is told as the prompt is", "the prompt" if told["prompt"] == prompt else "another", "the prompt"),
        same("letters of the completion, which the prompt is no part of", len(told["completion"]), 20),
        near("log P(completion | prompt) less that of its tokens", sum(told["log_probs"]) - behind, 0, within=1e-3),
        same("the same seed writes", "the same" if again.text == first.text else "something else", "the same"),
        same("another seed writes", "the same" if other.text == first.text else "something else", "something else"),
    )


@check(
    101,
    "S3:1824-1890",
    "Programming by prompt: a few examples of input and output tell a model what to do, and nothing is trained for it.",
    formula=r"y = \argmax_y P(y | x_1, y_1, x_2, y_2, x_3, y_3, x)",
    code=(Template, evaluate_answers),
    trains=True,
)
def by_examples() -> Measured:
    """Four rules, of which each text of the training follows one without naming it."""
    with TemporaryDirectory() as folder:
        model = rule_reader(Path(folder))
        found = {shots: accuracy(model, shots) for shots in (0, 1, 3)}
    solved = "".join(POOR.example(task({"poor": poor, "good": good})) for poor, good in CORRECTED)
    prompt = POOR.prompt(task({"poor": "I'd be more than happy to work with you in another project."}), solved)
    return measured(
        same("lines of the prompt of the notes", len(prompt.splitlines()), 8),
        same("its last line, where the model goes on", prompt.splitlines()[-1], "Good English output:"),
        at_most("percent right without an example, of four rules", found[0], 50),
        at_least("percent right after one example", found[1], 70),
        at_least("percent right after three examples", found[3], 90),
        note=f"{TEXTS:,} texts of five lines, {STEPS} steps. The rules: {', '.join(RULES)}.",
    )


def rule_reader(folder: Path) -> LanguageModel:
    """A small model that has seen texts of four rules."""
    draw = random.Random(101)
    rules = [draw.choice(list(RULES.values())) for _ in range(TEXTS)]
    texts = ("".join(f"{given}: {rule(given)}\n" for given in draw.choices(LETTERS, k=5)) for rule in rules)
    file = folder / "texts.txt"
    file.write_text("\n".join(texts), encoding="utf-8")
    every = [f"train.{key}={STEPS}" for key in ("steps", "valid_every", "save_every", "report_every")]
    changes = [
        "data.documents=blank", "data.max_length=32", "data.cross=false", "data.valid=[]", "train.device=cpu",
        "train.batch_tokens=2048", "train.schedule={kind='cosine', lr=0.005, warmup=30}", "writer.dropout=0.0",
        "writer.stack.dropout=0.0",
    ]  # fmt: skip
    with redirect_stderr(io.StringIO()):
        model = train("gpt2", tiny=True, data=str(file), run=folder / "run", overrides=[*changes, *every])
    assert isinstance(model, LanguageModel)
    return model


def accuracy(model: LanguageModel, shots: int) -> float:
    """Percent of all tasks that are right after so many examples of their rule."""
    decoding = chosen(model, "sample=false", "beam=1", "max_length=4", r'stop=["\n"]')
    found = []
    for rule in RULES.values():
        solved = "".join(RULE.example(task({"given": given, "answer": rule(given)})) for given in SHOWN[:shots])
        tasks = [task({"given": given, "answer": rule(given)}) for given in ASKED]
        found.append(evaluate_answers(model, tasks, RULE, examples=solved, decoding=decoding).scores["accuracy"].value)
    return sum(found) / len(found)


@check(
    102,
    "S3:1892-1934",
    "Parodies of one text in the manner of several authors: each is written after the author's name and all before it.",
    formula=r"P(y_k) = P(y_k | a_1, y_1, \dots, a_{k-1}, y_{k-1}, a_k)",
    code=(Template, LanguageModel),
)
def parodies() -> Measured:
    model, context = small_writer(), ""
    decoding = chosen(model, "sample=true", "min_length=12", "max_length=12", "seed=5")
    prompts, texts = list[str](), list[str]()
    for author in ("Hemingway", "Austen", "Conan Doyle"):
        prompts.append(PARODY.prompt(task({"author": author}), context))
        texts += model.predict(prompts[-1:], decoding=decoding)
        context += PARODY.example(task({"author": author, "parody": texts[-1]}))
    steps = list(pairwise(prompts))
    follows = [after.startswith(before + text) for (before, after), text in zip(steps, texts, strict=False)]
    both = model.score([(PARODY.prompt(task({"author": author})), texts[0]) for author in ("Hemingway", "Austen")])
    return measured(
        same("prompts that begin with the one before and what was written then", sum(follows), 2),
        at_least("letters that each prompt is longer", min(len(after) - len(before) for before, after in steps), 40),
        at_least("how far log P(parody) is apart for two authors", abs(both[0] - both[1]), 1e-4),
        same("a context that is too long is", told_of(model, context * 9), "refused"),
        same("and with slide=true its last letters are", told_of(model, context * 9, "slide=true"), "read"),
    )


def told_of(model: LanguageModel, prompt: str, *changes: str) -> str:
    try:
        model.predict([prompt], decoding=chosen(model, "sample=false", "beam=1", "max_length=3", *changes))
    except SaccadeError:
        return "refused"
    return "read"
