"""`saccade predict`."""

from __future__ import annotations

import difflib
import json
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from saccade.cli.arguments import Json, separate
from saccade.cli.embed import Embed, write_vectors
from saccade.cli.prompts import Examples, TemplateText, asked, check_goes_on
from saccade.errors import SaccadeError

if TYPE_CHECKING:
    from saccade.config.schema import Decoding, Recipe
    from saccade.predict.outputs import Hypothesis
    from saccade.predict.predictors.predictor import Predictor

Runs = Annotated[str, typer.Argument(metavar="RUN", help="Folder or name of a run; RUN,RUN is an ensemble.")]
Words = Annotated[
    list[str],
    typer.Argument(
        metavar="TEXT|KEY=VALUE",
        help="Texts (- is stdin), of pictures and sound files or folders; settings as top_k=5 (texts like that: -i).",
    ),
]
Fields = Annotated[
    list[str],
    typer.Option(
        "--field", metavar="NAME=VALUE", help="Of what is given together: --field image=FILE --field question=TEXT."
    ),
]
Input = Annotated[str | None, typer.Option("--input", "-i", metavar="FILE", help="Lines of a file; - is stdin.")]
Output = Annotated[str | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file.")]
NBest = Annotated[int | None, typer.Option("--n-best", min=1, help="The n best of each, with scores.")]
Beam = Annotated[int | None, typer.Option("--beam", min=1, help="Width of the search; 1 is greedy.")]
Engine = Annotated[str, typer.Option("--engine", help="auto, torch or ctranslate2.")]
Precision = Annotated[str, typer.Option("--precision", help="auto, fp32, bf16, or on a CPU int8.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="Say on stderr which engine decoded, and why others did not; in --json too.")
]
With = Annotated[list[str], typer.Option("--with", metavar="RUN", help="One more run for the ensemble. Repeatable.")]


def predict(  # noqa: PLR0913  # the options of a verb are its parameters
    run: Runs,
    words: Words = [],  # noqa: B006  # typer copies it
    field: Fields = [],  # noqa: B006
    input: Input = None,
    output: Output = None,
    n_best: NBest = None,
    beam: Beam = None,
    others: With = [],  # noqa: B006
    engine: Engine = "auto",
    precision: Precision = "auto",
    template: TemplateText = None,
    examples: Examples = None,
    embed: Embed = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Translate texts, or go on from prompts: arguments, or the lines of a file or of stdin, one output for each."""
    texts, changes = separate(words)
    texts += together(field)
    if texts == ["-"] and input is None:
        texts, input = [], "-"
    lines, made = read(texts, input=input, output=output), asked(template, examples)
    predictor = load([*run.split(","), *others], engine=engine, precision=precision)
    check_fields(predictor, field)
    check_settings(predictor.recipe, changes)
    left_out = list[str]()
    # Of vectors in an array, nobody could tell which ones are not there.
    lines = predictor.inputs(lines, tell=None if embed else left_out.append)
    if embed is not None:
        write_vectors(predictor, lines, pool=embed, output=output)
        return
    if made is not None:
        check_goes_on(predictor)
        lines, changes = made.prompts(lines, input=input), made.ends(changes)
        texts = [*lines] if texts else []
        lines = texts or lines
    decoding = settings(predictor.recipe, changes, beam=beam, n_best=n_best)
    if shows_tokens(predictor, texts, decoding, plain=not as_json and output is None):
        show_tokens(predictor, texts[0], decoding)
        return
    seen: deque[str] = deque()
    scored = as_json or decoding.n_best > 1
    results = begun(predictor.stream(remember(lines, seen), decoding=decoding, scored=scored))
    results = results if predictor.goes_on else telling_cuts(results, predictor.recipe)
    with open(output, "w", encoding="utf-8") if output else nullcontext(sys.stdout) as file:
        for index, found in enumerate(results):
            given = seen.popleft()
            if as_json:
                shown = as_object(predictor, given, found, verbose=verbose)
            elif predictor.goes_on and texts and decoding.n_best == 1:
                shown = f"{dimmed(given, file)}{found[0].text}"
            else:
                name = given if predictor.names_inputs else ""
                shown = as_lines(index, found, name=name, many=decoding.n_best > 1)
            print(shown if made is None else shown.strip(), file=file, flush=True)
    tell_left_out(left_out)
    for line in predictor.engines.describe() if verbose else ():
        print(line, file=sys.stderr)


def read(texts: Sequence[str], *, input: str | None, output: str | None) -> Iterable[str]:
    """What is to be predicted: the arguments, or the lines of a file or of stdin."""
    if texts and input is not None:
        raise SaccadeError(f"give texts or --input, not both; got the text '{texts[0]}' and --input {input}")
    if texts:
        return texts
    if input is None and sys.stdin.isatty():
        raise SaccadeError('nothing to predict; give texts, as in `saccade predict RUN "a text"`, or --input FILE')
    if input and output and Path(input).exists() and Path(output).exists() and Path(input).samefile(output):
        raise SaccadeError(f"--input and --output are the same file '{input}'; choose another --output")
    from saccade.data.sources.pairs import read_lines

    return read_lines(input or "-")


def together(fields: Sequence[str]) -> list[str]:
    """What `--field` gives, as one line of JSON; nothing where it gives nothing."""
    found: dict[str, str] = {}
    for field in fields:
        name, equals, value = field.partition("=")
        if not equals or name in found:
            why = "is given twice" if equals else "has no value"
            raise SaccadeError(f"--field {field[:60]}: {name[:60]} {why}; expected NAME=VALUE, each name once")
        found[name] = value
    return [json.dumps(found, ensure_ascii=False)] if found else []


def check_fields(predictor: Predictor, fields: Sequence[str]) -> None:
    if fields and not predictor.fields:
        raise SaccadeError("--field is for runs that read several things, but this one reads one; give it as it is")


def check_settings(recipe: Recipe, changes: Sequence[str]) -> None:
    """A text such as `a=b` was taken for a setting; where none has a name like that, the way on is told."""
    known = [*type(recipe.predict).model_fields]
    for word in changes:
        name = word.partition("=")[0].removeprefix("predict.")
        if name not in known and not difflib.get_close_matches(name, known, n=1):
            raise SaccadeError(
                f"'{word[:60]}' looks like a setting, but there is none of that name ({', '.join(known)}); "
                "if it is a text, give it by --input FILE, or --input - and stdin"
            )


def load(runs: Sequence[str], *, engine: str = "auto", precision: str = "auto") -> Predictor:
    """One run, or several as an ensemble, on all cores of the machine."""
    from saccade.predict.predictors.predictor import Predictor
    from saccade.predict.threads import use_all_cores
    from saccade.runs import find_run

    use_all_cores()
    return Predictor.load([find_run(name) for name in runs if name], engine=engine, precision=precision)


def settings(recipe: Recipe, changes: Sequence[str], *, beam: int | None = None, n_best: int | None = None) -> Decoding:
    """The run's own decoding settings with those of the command line, which may leave `predict.` out."""
    from saccade.config.load import override

    if n_best is not None:
        wide = max(n_best, recipe.predict.beam)  # the n best are found by a search of at least that width
        changes = [f"beam={wide}", f"n_best={n_best}", *changes]
    if beam is not None:
        changes = [*changes, f"beam={beam}"]
    full = [with_line_ends(f"predict.{word.removeprefix('predict.')}") for word in changes]
    return override(recipe, full, origin="settings").predict


def with_line_ends(change: str) -> str:
    r"""`stop=\n` as it is typed means the end of a line, not these two letters."""
    name, _, value = change.partition("=")
    if name != "predict.stop" or value[:1] in "[\"'":
        return change
    ends = value.replace(r"\n", "\n")
    return f"{name}={json.dumps(ends, ensure_ascii=False)}"


def begun(results: Iterable[list[Hypothesis]]) -> Iterable[list[Hypothesis]]:
    """The same results, of which the first is known: an older --output is not emptied for input that cannot be read."""
    results = iter(results)
    first = next(results, None)
    return [] if first is None else chain([first], results)


def remember(lines: Iterable[str], seen: deque[str]) -> Iterator[str]:
    """The same lines, each noted when it is taken: results come later, in the same order."""
    for line in lines:
        seen.append(line)
        yield line


def telling_cuts(results: Iterable[list[Hypothesis]], recipe: Recipe) -> Iterator[list[Hypothesis]]:
    """The same results, and at their end what is told of those that were cut."""
    from saccade.predict.outputs import cut_lengths

    lengths, outputs = list[int](), 0
    for found in results:
        lengths += cut_lengths(found[:1])
        outputs += 1
        yield found
    tell_cuts(lengths, outputs, recipe)


def tell_cuts(lengths: Sequence[int], outputs: int, recipe: Recipe) -> None:
    """A note for the user, where outputs were cut at the most tokens that they may have."""
    from saccade.predict.outputs import told_of_cut

    if lengths:
        print(told_of_cut(lengths, outputs, longest=recipe.data.max_length), file=sys.stderr)


def tell_left_out(messages: Sequence[str]) -> None:
    """A note for the user, where files of a folder cannot be read: each of them, as all others are done."""
    for message in messages:
        print(f"left out: {message}", file=sys.stderr)
    if messages:
        print(f"left out {len(messages):,} that cannot be read", file=sys.stderr)


def as_lines(index: int, found: Sequence[Hypothesis], *, name: str, many: bool) -> str:
    """The best output, behind the name of a file; of several, each behind that or its input's number, and its score."""
    if not many:
        return f"{name}\t{one_line(found[0].text)}" if name else one_line(found[0].text)
    return "\n".join(f"{name or index + 1}\t{item.score:.4f}\t{one_line(item.text)}" for item in found)


def as_object(predictor: Predictor, given: str, found: Sequence[Hypothesis], *, verbose: bool) -> str:
    """One line of JSON; with `verbose`, also which engine decoded."""
    engine = {"engine": found[0].engine} if verbose and found[0].engine else {}
    return json.dumps({**predictor.described(given, found), **engine}, ensure_ascii=False)


def shows_tokens(predictor: Predictor, texts: Sequence[str], decoding: Decoding, *, plain: bool) -> bool:
    """Whether somebody who gave one prompt sits there and reads along."""
    single = decoding.n_best == 1 and (decoding.sample or decoding.beam == 1)
    return plain and predictor.goes_on and len(texts) == 1 and single and sys.stdout.isatty()


def show_tokens(predictor: Predictor, prompt: str, decoding: Decoding) -> None:
    """A prompt, and what comes after it as it comes."""
    pieces = predictor.write(prompt, decoding=decoding)
    first = next(pieces, "")  # before anything is shown: a prompt may be refused
    print(dimmed(prompt, sys.stdout), end=first, flush=True)
    for piece in pieces:
        print(piece, end="", flush=True)
    print()


def dimmed(prompt: str, file: TextIO) -> str:
    """The prompt in the terminal, told apart by its colour; elsewhere nothing: a file has what was written."""
    return f"\x1b[2m{prompt}\x1b[0m" if file.isatty() else ""


def one_line(text: str) -> str:
    """Line n of the output belongs to line n of the input, whatever the model writes."""
    return " ".join(text.splitlines())
