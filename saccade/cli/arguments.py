"""Arguments that typer cannot parse itself: `--data SRC TGT` with one or two values, and `key=value` overrides."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from saccade.errors import SaccadeError

PAIRED_OPTIONS = ("--data", "--valid", "--test")
OVERRIDE = re.compile(r"[A-Za-z_][\w.]*=\S.*|[A-Za-z_][\w.]*=", re.DOTALL)
# A corpus whose source and target are in one file: `--data` takes no second value then.
SINGLE_FILE_CORPUS = re.compile(r"embedded:.*|.*\.(tsv|csv|jsonl|json|parquet)(\.(gz|xz))?")

Data = Annotated[
    list[str],
    typer.Option(
        "--data",
        metavar="SRC [TGT]",
        help="Two aligned files, one file with columns (.csv, .tsv, .jsonl, .parquet), text, or a folder of pictures "
        "or recordings. Repeatable.",
    ),
]
Valid = Annotated[
    list[str],
    typer.Option(
        "--valid", metavar="SRC [TGT]", help="Validation data, or the fraction of the training data to hold out."
    ),
]
Plugins = Annotated[
    list[str],
    typer.Option(
        "--plugin", metavar="FILE.py", help="Load your own kinds (KINDS) from a Python file, which is run. Repeatable."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


UsageError: Any = typer.BadParameter.__mro__[1]  # of typer's own click, or of click itself, as the version has it


class Command(TyperCommand):
    """A command whose help has no names of Python's types."""

    def get_params(self, ctx: Any) -> list[Any]:
        return clean_help(super().get_params(ctx))


class Group(TyperGroup):
    """A group of commands whose help has no names of Python's types, and whose mistakes are one line each."""

    def main(  # type: ignore[override]  # without the arguments of click's contexts
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
    ) -> Any:
        """Run one command; exit with its exit code, or return its result if it is not `standalone_mode`."""
        try:
            result = super().main(args, prog_name, complete_var, False, windows_expand_args)
        except UsageError as error:
            if type(error).__name__ == "NoArgsIsHelpError":
                error.show()
                raise SystemExit(error.exit_code) from None
            raise SaccadeError(describe_usage_error(error)) from None
        if not standalone_mode:
            return result
        raise SystemExit(result or 0)

    def get_params(self, ctx: Any) -> list[Any]:
        return clean_help(super().get_params(ctx))


def clean_help(params: list[Any]) -> list[Any]:
    """Show no value for a flag, VALUE for an option without a metavar, and of an argument only its name."""
    for param in params:
        if param.param_type_name == "argument":
            param.display_type = lambda ctx: ""
        elif param.metavar is None:
            param.metavar = "" if getattr(param, "is_flag", False) else "VALUE"
    return params


def describe_usage_error(error: Any) -> str:
    """One line: what a command does not understand, and what it expects."""
    message, context = error.format_message().rstrip(".").replace(". Did you", "; did you"), error.ctx
    message, option = message[:1].lower() + message[1:], getattr(error, "option_name", None)
    if context is None or message.startswith("invalid value"):
        return message
    if isinstance(context.command, TyperGroup) and option is None:
        names = ", ".join(context.command.list_commands(context))
        return f"{message} (commands of {context.command_path}: {names})"
    if option is not None and takes_overrides(context.command) and (key := find_key_of_option(option)):
        return f"no such option: {option}; settings are given as KEY=VALUE: {key}=..."
    usage = context.get_usage().removeprefix("Usage: ")
    return f"{message}; expected {usage}; {context.command_path} --help lists the options"


def takes_overrides(command: Any) -> bool:
    return any("KEY=VALUE" in (param.metavar or "") for param in command.params)


def find_key_of_option(option: str) -> str:
    """The key that an option of another toolkit stands for: train.schedule.lr for --lr; empty if there is none."""
    if not option.startswith("--"):
        return ""
    from saccade.config.messages import find_elsewhere

    return find_elsewhere(option[2:].replace("-", "_")).removeprefix("predict.")


def join_paired_values(arguments: Sequence[str]) -> list[str]:
    """Join the one or two values after each `--data`, `--valid` and `--test` into one JSON list, which typer can parse.

    `--data a.en a.de` becomes `--data=["a.en", "a.de"]`; everything after `--` is left as it is.
    """
    remaining = list(arguments)
    joined: list[str] = []
    while remaining:
        word = remaining.pop(0)
        if word == "--":
            return [*joined, word, *remaining]
        name, equals, first = word.partition("=")
        if name not in PAIRED_OPTIONS:
            joined.append(word)
            continue
        values = [first] if equals else _pop_value(remaining)
        if values and not SINGLE_FILE_CORPUS.fullmatch(values[0]):
            values += _pop_value(remaining)
        if not values:
            raise SaccadeError(f"{name} needs one or two values: {name} SRC TGT, or {name} FILE with both sides")
        joined.append(f"{name}={json.dumps(values)}")
    return joined


def parse_corpora(values: Sequence[str]) -> list[list[str]]:
    """Parse the values of `--data`, `--valid` or `--test` after `join_paired_values`: one list of files per corpus."""
    return [json.loads(item) for item in values]


def check_overrides(words: Sequence[str]) -> list[str]:
    """Raise unless every argument has the form `key=value`; return them as a list."""
    for word in words:
        if not is_override(word):
            if Path(word).exists():
                raise SaccadeError(
                    f"unexpected file '{word}'; a further corpus has an option of its own: --data {word}"
                )
            raise SaccadeError(f"unexpected argument '{word}'; expected key=value, such as train.steps=2000")
    return list(words)


def split_overrides(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split arguments into inputs and `key=value` overrides.

    An argument whose part before `=` has no spaces is an override, whether its key exists or not, so that a mistyped
    key is reported instead of translated.
    """
    overrides = [word for word in words if is_override(word) and " " not in word.partition("=")[0]]
    return [word for word in words if word not in overrides], overrides


def is_override(word: str) -> bool:
    return OVERRIDE.fullmatch(word) is not None


def _pop_value(arguments: list[str]) -> list[str]:
    """Remove and return the next argument as a list of one; an empty list where it is an option or an override."""
    if not arguments or (arguments[0].startswith("-") and arguments[0] != "-") or is_override(arguments[0]):
        return []
    return [arguments.pop(0)]
