"""`saccade predict`: decode inputs with a trained run."""

from __future__ import annotations

import difflib
import gc
import json
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, TextIO

import typer

from saccade.cli.arguments import Json, Plugins, split_overrides
from saccade.cli.corpus import (
    Column,
    CorpusName,
    CorpusOptions,
    ModelOptions,
    OnError,
    Processes,
    Ray,
    check_corpus_options,
    predict_corpus,
)
from saccade.cli.embed import Embed, write_embeddings
from saccade.cli.prompts import Examples, TemplateText, check_continues_prompts, parse_prompt_options
from saccade.config.plugins import load_plugins
from saccade.config.renames import get_renamed_keys
from saccade.errors import SaccadeError

if TYPE_CHECKING:
    from saccade.config.schema import Decoding, Recipe
    from saccade.predict.outputs import Hypothesis
    from saccade.predict.predictors.predictor import Predictor

TABLES = (".tsv", ".csv", ".jsonl", ".parquet")  # files with columns
MAX_FILE_NAME = 255  # characters; longer texts are no names of files
Runs = Annotated[str, typer.Argument(metavar="RUN", help="Folder or name of a run; RUN,RUN is an ensemble.")]
Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="TEXT|KEY=VALUE",
        help="Inputs (- is stdin): texts, or image or audio files and folders; and decoding settings such as top_k=5 "
        "(give texts of that form by --input).",
    ),
]
Fields = Annotated[
    list[str],
    typer.Option(
        "--field",
        metavar="NAME=VALUE",
        help="One field of a multimodal input: --field image=FILE --field question=TEXT.",
    ),
]
Input = Annotated[
    str | None, typer.Option("--input", "-i", metavar="FILE", help="Read inputs from FILE, one per line; - is stdin.")
]
Output = Annotated[
    str | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="Write outputs to FILE instead of stdout; with --corpus, a folder."
    ),
]
NBest = Annotated[
    int | None, typer.Option("--n-best", min=1, help="Print the n best hypotheses per input, with scores.")
]
Beam = Annotated[int | None, typer.Option("--beam", min=1, help="Beam size; 1 is greedy search.")]
Terms = Annotated[
    str | None,
    typer.Option(
        "--terms",
        metavar="FILE",
        help="Terminology: lines of a source phrase, a tab and the target phrase that outputs must contain.",
    ),
]
Engine = Annotated[str, typer.Option("--engine", help="Inference engine: auto, torch or ctranslate2.")]
Precision = Annotated[
    str, typer.Option("--precision", help="Precision of the weights: auto, fp32, bf16, or int8 on CPU.")
]
Verbose = Annotated[
    bool,
    typer.Option("--verbose", help="Report on stderr which engine decoded and why others did not; also in --json."),
]
With = Annotated[list[str], typer.Option("--with", metavar="RUN", help="Add a run to the ensemble. Repeatable.")]


def predict(  # noqa: PLR0913  # the options of a command are its parameters
    run: Runs,
    inputs: Inputs = [],  # noqa: B006  # typer copies it
    field: Fields = [],  # noqa: B006
    input: Input = None,
    output: Output = None,
    n_best: NBest = None,
    beam: Beam = None,
    others: With = [],  # noqa: B006
    terms: Terms = None,
    engine: Engine = "auto",
    precision: Precision = "auto",
    template: TemplateText = None,
    examples: Examples = None,
    embed: Embed = None,
    plugin: Plugins = [],  # noqa: B006
    as_json: Json = False,
    verbose: Verbose = False,
    corpus: CorpusName = None,
    column: Column = None,
    processes: Processes = 1,
    on_error: OnError = "stop",
    ray: Ray = None,
) -> None:
    """Decode inputs with a run: translate, continue prompts, label or caption; one output per input."""
    texts, overrides = split_overrides(inputs)
    texts += join_fields(field)
    in_corpus = CorpusOptions(corpus, output, column, processes, on_error, ray, as_json)
    given = {"inputs": texts, "--input": input, "--template": template, "--examples": examples, "--embed": embed}
    check_corpus_options(in_corpus, {**given, "--verbose": verbose})
    texts, input = ([], "-") if texts == ["-"] and input is None else (texts, input)
    lines = () if in_corpus.corpus else read_inputs(texts, input=input, output=output)
    few_shot = parse_prompt_options(template, examples)
    model = ModelOptions([*run.split(","), *others], engine, precision, plugin)
    predictor = load_predictor(model.runs, engine=engine, precision=precision, plugins=plugin)
    check_inputs(predictor, texts, field, overrides)
    check_input_file(predictor, None if few_shot is not None else input)  # prompts may be made of columns
    skipped = list[str]()
    # Embeddings come without names: an unreadable input must fail there, else rows could not be matched to inputs.
    lines = predictor.expand_inputs(lines, report=None if embed else skipped.append)
    if embed is not None:
        write_embeddings(predictor, lines, pool=embed, output=output)
        return
    if few_shot is not None:
        check_continues_prompts(predictor)
        lines, overrides = few_shot.build_prompts(lines, input=input), few_shot.add_stop(overrides)
        texts = [*lines] if texts else []
        lines = texts or lines
    decoding = add_term_file(build_decoding(predictor.recipe, overrides, beam=beam, n_best=n_best), terms, predictor)
    if in_corpus.corpus:
        predict_corpus(predictor, decoding, model, in_corpus)
        return
    if should_stream(predictor, texts, decoding, plain=not as_json and output is None):
        print_stream(predictor, texts[0], decoding)
        return
    shown = OutputFormat(as_json, decoding.n_best > 1, bool(texts), verbose, strips=few_shot is not None)
    write_outputs(predictor, lines, decoding, shown, output)
    report_skipped(skipped)
    for line in predictor.engines.describe() if verbose else ():
        print(line, file=sys.stderr)


def read_inputs(texts: Sequence[str], *, input: str | None, output: str | None) -> Iterable[str]:
    """Return the inputs: the arguments, or the lines of a file or of stdin."""
    if texts and input is not None:
        raise SaccadeError(f"give inputs as arguments or by --input, not both; got '{texts[0]}' and --input {input}")
    if texts:
        return texts
    if input is None and sys.stdin.isatty():
        raise SaccadeError('no input; give it as in `saccade predict RUN "a text"`, or by --input FILE')
    if input and output and Path(input).exists() and Path(output).exists() and Path(input).samefile(output):
        raise SaccadeError(f"--input and --output are the same file '{input}'; choose another --output")
    from saccade.data.sources.pairs import read_lines

    return read_lines(input or "-")


def join_fields(fields: Sequence[str]) -> list[str]:
    """Join the values of `--field` into one input, a JSON object on one line; an empty list where there are none."""
    values: dict[str, str] = {}
    for field in fields:
        name, equals, value = field.partition("=")
        if not equals or name in values:
            why = "is given twice" if equals else "has no value"
            raise SaccadeError(f"--field {field[:60]}: {name[:60]} {why}; expected NAME=VALUE, each name once")
        values[name] = value
    return [json.dumps(values, ensure_ascii=False)] if values else []


def check_fields(predictor: Predictor, fields: Sequence[str]) -> None:
    if fields and not predictor.fields:
        raise SaccadeError("--field is for runs with multimodal inputs, but this run has none; give the input as it is")


def check_inputs(predictor: Predictor, texts: Sequence[str], fields: Sequence[str], overrides: Sequence[str]) -> None:
    """Raise where inputs or settings are not for this run."""
    check_fields(predictor, fields)
    check_texts(predictor, texts)
    check_settings(predictor.recipe, overrides)


def check_input_file(predictor: Predictor, input: str | None) -> None:
    """Raise where the lines of a table would be taken for texts, with all of their columns."""
    path = Path(input or "-")
    kind = path.name.lower().removesuffix(".gz").removesuffix(".xz")
    labels = predictor.tokenizers.labels
    takes_lines = predictor.medium or predictor.fields or (labels is not None and labels.num_texts == 2)
    if takes_lines or not kind.endswith((".csv", ".tsv", ".parquet")) or not path.is_file():
        return
    if kind.endswith(".tsv"):
        from saccade.data.sources.pairs import read_lines

        if "\t" not in next(iter(read_lines(path)), ""):
            return
    raise SaccadeError(
        f"--input reads lines of text, but {input} is a table; give a column of it by --corpus {input} --column NAME "
        "--output FOLDER"
    )


def check_texts(predictor: Predictor, texts: Sequence[str]) -> None:
    """Raise where an input of a model that reads texts is the name of a file, whose lines are certainly meant."""
    for text in texts if not predictor.medium else ():
        if len(text) < MAX_FILE_NAME and Path(text).suffix and Path(text).is_file():
            option = f"its lines by --input {text}"
            if text.lower().removesuffix(".gz").removesuffix(".xz").endswith(TABLES):
                option = f"a column of it by --corpus {text} --column NAME --output FOLDER"
            raise SaccadeError(
                f"'{text}' is a file, but this run reads texts, not files; give {option}, or if the name itself is the "
                "text, by --input - and stdin"
            )


def check_settings(recipe: Recipe, overrides: Sequence[str]) -> None:
    """Raise where an argument such as `a=b` was parsed as a setting, but no setting has a similar name."""
    known, old = [*type(recipe.predict).model_fields], get_renamed_keys(type(recipe.predict))
    for word in overrides:
        name = word.partition("=")[0].removeprefix("predict.")
        if name not in known and name not in old and not difflib.get_close_matches(name, known, n=1):
            raise SaccadeError(
                f"'{word[:60]}' looks like a setting, but no setting has that name ({', '.join(known)}); "
                "if it is an input text, give it by --input FILE, or --input - and stdin"
            )


def load_predictor(
    runs: Sequence[str], *, engine: str = "auto", precision: str = "auto", plugins: Sequence[str] = ()
) -> Predictor:
    """Load one run, or several as an ensemble, and let PyTorch use all CPU cores."""
    with pause_garbage_collection():
        from saccade.predict.predictors.predictor import Predictor
        from saccade.predict.threads import use_all_cores
        from saccade.runs import find_run

        use_all_cores()
        folders = [find_run(name) for name in runs if name]
        return Predictor.load(folders, kinds=load_plugins(*plugins), engine=engine, precision=precision)


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Look for no garbage inside the block: among the objects that torch makes when it is imported, it takes 0.2 s."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def build_decoding(
    recipe: Recipe,
    overrides: Sequence[str],
    *,
    beam: int | None = None,
    n_best: int | None = None,
) -> Decoding:
    """Apply overrides from the command line, whose prefix `predict.` is optional, to the run's decoding settings."""
    from saccade.config.load import override

    if n_best is not None:
        wide = max(n_best, recipe.predict.beam)  # n hypotheses need a beam of at least n
        overrides = [f"beam={wide}", f"n_best={n_best}", *overrides]
    if beam is not None:
        overrides = [*overrides, f"beam={beam}"]
    full = [unescape_stop(f"predict.{word.removeprefix('predict.')}") for word in overrides]
    return override(recipe, full, origin="settings").predict


def add_term_file(decoding: Decoding, file: str | None, predictor: Predictor) -> Decoding:
    """Add the terms of the file of `--terms`, where one is given."""
    if file is None:
        return decoding
    from saccade.predict.terms import add_terms, read_terms

    return add_terms(decoding, read_terms(file, predictor.tokenizers.target), predictor.recipe)


def unescape_stop(change: str) -> str:
    r"""Replace `\n` by a newline in an unquoted `predict.stop=` override, since shells pass it as two characters."""
    name, _, value = change.partition("=")
    if name != "predict.stop" or value[:1] in "[\"'":
        return change
    stop = value.replace(r"\n", "\n")
    return f"{name}={json.dumps(stop, ensure_ascii=False)}"


def prefetch_first(results: Iterable[list[Hypothesis]]) -> Iterable[list[Hypothesis]]:
    """Decode the first result now, so that unreadable input raises before an existing --output file is truncated."""
    results = iter(results)
    first = next(results, None)
    return [] if first is None else chain([first], results)


def record_inputs(lines: Iterable[str], pending: deque[str]) -> Iterator[str]:
    """Yield the lines and append each to `pending`: results come later, in the same order, and are matched to them."""
    for line in lines:
        pending.append(line)
        yield line


def report_truncated_at_end(results: Iterable[list[Hypothesis]], recipe: Recipe) -> Iterator[list[Hypothesis]]:
    """Yield the results, and after the last one report how many outputs were truncated or lack terms."""
    from saccade.predict.outputs import format_missing_terms_message, get_truncated_lengths

    lengths, outputs, missing = list[int](), 0, list[tuple[str, ...]]()
    for hypotheses in results:
        missing += [item.missing_terms for item in hypotheses[:1] if item.missing_terms]
        lengths += get_truncated_lengths(hypotheses[:1])
        outputs += 1
        yield hypotheses
    report_truncated(lengths, outputs, recipe)
    if missing:
        print(format_missing_terms_message(missing, outputs), file=sys.stderr)


def report_truncated(lengths: Sequence[int], outputs: int, recipe: Recipe) -> None:
    """Print a note on stderr if outputs were truncated at the maximum length."""
    from saccade.predict.outputs import format_truncation_message

    if lengths:
        print(format_truncation_message(lengths, outputs, max_length=recipe.data.max_length), file=sys.stderr)


def report_skipped(messages: Sequence[str]) -> None:
    """Print a note on stderr for each file of a folder that was skipped because it cannot be read."""
    for message in messages:
        print(f"skipped: {message}", file=sys.stderr)
    if messages:
        print(f"skipped {len(messages):,} unreadable files", file=sys.stderr)


class OutputFormat(NamedTuple):
    """How outputs are printed."""

    as_json: bool
    many: bool  # hypotheses for each input
    are_arguments: bool  # whether inputs are arguments of the command; prompts are printed with their continuation
    verbose: bool
    strips: bool  # white space


def write_outputs(
    predictor: Predictor, lines: Iterable[str], decoding: Decoding, shown: OutputFormat, output: str | None
) -> None:
    """Decode lines, and write the outputs for each to a file or stdout as soon as they are there."""
    pending: deque[str] = deque()
    scored = shown.as_json or shown.many
    results = prefetch_first(predictor.stream(record_inputs(lines, pending), decoding=decoding, scored=scored))
    results = results if predictor.continues_prompts else report_truncated_at_end(results, predictor.recipe)
    with open(output, "w", encoding="utf-8") if output else nullcontext(sys.stdout) as file:
        for index, hypotheses in enumerate(results):
            line = format_output(predictor, index, pending.popleft(), hypotheses, shown, file)
            print(line.strip() if shown.strips else line, file=file, flush=True)


def format_output(
    predictor: Predictor, index: int, source: str, hypotheses: Sequence[Hypothesis], shown: OutputFormat, file: TextIO
) -> str:
    """Format the outputs for one input, as JSON, after their prompt, or as lines."""
    if shown.as_json:
        return format_json(predictor, source, hypotheses, verbose=shown.verbose)
    if predictor.continues_prompts and shown.are_arguments and not shown.many:
        return f"{dim_prompt(source, file)}{hypotheses[0].text}"
    return format_lines(index, hypotheses, name=source * predictor.shows_input_names, many=shown.many)


def format_lines(index: int, hypotheses: Sequence[Hypothesis], *, name: str, many: bool) -> str:
    """Format the best output, or with `many` one line per hypothesis: file name or input number, score, output.

    Outputs for files are preceded by the file name.
    """
    from saccade.predict.outputs import join_lines

    if not many:
        return f"{name}\t{join_lines(hypotheses[0].text)}" if name else join_lines(hypotheses[0].text)
    return "\n".join(f"{name or index + 1}\t{item.score:.4f}\t{join_lines(item.text)}" for item in hypotheses)


def format_json(predictor: Predictor, source: str, hypotheses: Sequence[Hypothesis], *, verbose: bool) -> str:
    """Format the hypotheses of one input as one line of JSON; with `verbose`, including the engine that decoded."""
    engine = {"engine": hypotheses[0].engine} if verbose and hypotheses[0].engine else {}
    return json.dumps({**predictor.describe(source, hypotheses), **engine}, ensure_ascii=False)


def should_stream(predictor: Predictor, texts: Sequence[str], decoding: Decoding, *, plain: bool) -> bool:
    """Whether to print tokens as they are generated: one prompt, one hypothesis, and stdout is a terminal."""
    single = decoding.n_best == 1 and (decoding.sample or decoding.beam == 1)
    return plain and predictor.continues_prompts and len(texts) == 1 and single and sys.stdout.isatty()


def print_stream(predictor: Predictor, prompt: str, decoding: Decoding) -> None:
    """Print a prompt and its continuation, as it is generated."""
    chunks = predictor.write(prompt, decoding=decoding)
    first = next(chunks, "")  # before anything is printed: the prompt may be invalid
    print(dim_prompt(prompt, sys.stdout), end=first, flush=True)
    for chunk in chunks:
        print(chunk, end="", flush=True)
    print()


def dim_prompt(prompt: str, file: TextIO) -> str:
    """Format the prompt dimmed for a terminal; in a file, outputs come without their prompt."""
    return f"\x1b[2m{prompt}\x1b[0m" if file.isatty() else ""
