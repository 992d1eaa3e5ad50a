"""Decode parts of a corpus and write their outputs; run as a program, for the parts that it reads from stdin.

Requests and replies are lines of JSON: first the settings, then one part after the other.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from saccade.config.decoding import Decoding
from saccade.config.plugins import load_plugins
from saccade.errors import SaccadeError
from saccade.files import atomic_replace, atomic_write
from saccade.predict.corpora.parts import BadRow, Part, iter_rows, name_row
from saccade.predict.outputs import get_truncated_lengths, join_lines

if TYPE_CHECKING:
    from saccade.predict.outputs import Hypothesis

BLOCK_ROWS = 2048  # rows in memory at a time
REPORT_SECONDS = 0.5  # between two reports of progress
ERRORS_SUFFIX = ".errors.jsonl"


class CorpusSettings(NamedTuple):
    """What a process needs to know to decode parts."""

    runs: list[str]  # absolute paths
    output: str
    decoding: dict[str, Any]
    engine: str = "auto"
    precision: str = "auto"
    plugins: tuple[str, ...] = ()
    column: str | None = None
    as_json: bool = False
    skip_bad_rows: bool = False

    @property
    def suffix(self) -> str:
        """The end of the names of output files."""
        return ".jsonl" if self.as_json else ".txt"


Report = Callable[[int, int], None]  # called after each block, with rows and characters of the part so far


class PartPredictor:
    """A model that decodes parts of a corpus, one after the other."""

    def __init__(self, settings: CorpusSettings) -> None:
        from saccade.predict.predictors.predictor import Predictor
        from saccade.predict.threads import use_all_cores

        use_all_cores()
        self.settings, self.decoding = settings, Decoding.model_validate(settings.decoding)
        self.predictor = Predictor.load(
            settings.runs, kinds=load_plugins(*settings.plugins), engine=settings.engine, precision=settings.precision
        )

    def predict_part(self, part: Part, report: Report = lambda rows, characters: None) -> dict[str, Any]:
        """Write the outputs of a part, one line for each row; return how many, and what was unusual.

        A bad row is an error with its file and row number; or else its output is empty, and it is listed in a file.
        """
        folder, errors = Path(self.settings.output), list[dict[str, Any]]()
        lengths, num_rows, num_characters = Counter[int](), 0, 0
        path = folder / f"{part.name}{self.settings.suffix}"
        with atomic_replace(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
            rows = iter_rows(part, self.settings.column)
            while block := list(islice(rows, BLOCK_ROWS)):
                outputs = self._predict_block(block, seed=self.decoding.seed + part.number * 1_000_003 + num_rows)
                for row, (text, result) in enumerate(zip(block, outputs, strict=True), num_rows):
                    if isinstance(result, BadRow):
                        where = name_row(part, row)
                        if not self.settings.skip_bad_rows:
                            raise SaccadeError(f"{where}: {result.reason}")
                        errors.append({"row": where, "error": result.reason})
                    else:
                        lengths.update(get_truncated_lengths(result[:1]))
                    print(self._format(text, result), file=file)
                num_rows += len(block)
                num_characters += sum(len(text) for text in block if isinstance(text, str))
                report(num_rows, num_characters)
            if errors:
                content = "".join(json.dumps(error, ensure_ascii=False) + "\n" for error in errors)
                atomic_write(folder / f"{part.name}{ERRORS_SUFFIX}", content.encode())
        return {"rows": num_rows, "bad": len(errors), "truncated": dict(lengths)}

    def _predict_block(self, block: Sequence[str | BadRow], *, seed: int) -> list[list[Hypothesis] | BadRow]:
        """Decode the texts of a block; a row that the model refuses, as one that is too long, becomes a bad one."""
        decoding = self.decoding.model_copy(update={"seed": seed}) if self.decoding.sample else self.decoding
        texts = [text for text in block if isinstance(text, str)]
        try:
            decoded: Iterator[list[Hypothesis] | BadRow] = iter(self._decode(texts, decoding))
        except SaccadeError:
            decoded = iter([self._decode_row(text, decoding) for text in texts])
        return [row if isinstance(row, BadRow) else next(decoded) for row in block]

    def _decode_row(self, text: str, decoding: Decoding) -> list[Hypothesis] | BadRow:
        try:
            return self._decode([text], decoding)[0]
        except SaccadeError as error:
            return BadRow(str(error))

    def _decode(self, texts: Sequence[str], decoding: Decoding) -> list[list[Hypothesis]]:
        scored = self.settings.as_json
        return self.predictor.candidates(texts, decoding=decoding, scored=scored) if texts else []

    def _format(self, text: str | BadRow, result: list[Hypothesis] | BadRow) -> str:
        if isinstance(result, BadRow) or isinstance(text, BadRow):
            return json.dumps({"error": getattr(result, "reason", "")}) if self.settings.as_json else ""
        if self.settings.as_json:
            return json.dumps(self.predictor.describe(text, result), ensure_ascii=False)
        return join_lines(result[0].text)


def main() -> None:
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print does not get among the replies

    def reply(values: dict[str, Any]) -> None:
        print(json.dumps(values), file=replies, flush=True)

    parent = os.getppid()
    try:
        values = json.loads(sys.stdin.readline())
        predictor = PartPredictor(CorpusSettings(**{**values, "plugins": tuple(values["plugins"])}))
        reply({"ready": True})
        for line in sys.stdin:
            part, reported = Part(**json.loads(line)), time.monotonic()

            def report(rows: int, characters: int, number: int = part.number) -> None:
                nonlocal reported
                if os.getppid() != parent:  # it was killed; the next start decodes this part
                    raise SystemExit(1)
                if time.monotonic() - reported >= REPORT_SECONDS:
                    reported = time.monotonic()
                    reply({"part": number, "rows": rows, "characters": characters})

            reply({"part": part.number, "done": predictor.predict_part(part, report)})
    except SaccadeError as error:
        reply({"error": str(error)})


if __name__ == "__main__":
    main()
