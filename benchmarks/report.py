"""Writes docs/results.md and the tables of README.md and docs/speed.md from benchmarks/results/*.json.

    python benchmarks/report.py [--check]

With `--check` nothing is written, and the exit code is 1 when a file is not what it should be.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from saccade.reproduce.spec import Peer, Spec, list_specs

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- results: written by benchmarks/report.py -->", "<!-- results: end -->"
TABLE = re.compile(r"(<!-- table: (\w+) -->)\n.*?(<!-- table: end -->)", re.DOTALL)
KEYS = ("name", "command", "commit", "date", "hardware", "versions", "minutes", "rows")
ROW_KEYS = ("what", "value", "unit")
# Speed on the front page: the beginning of a row of results, and its title there
FRONT = {
    "train Transformer-base, mixed lengths": "train Transformer-base, sentences of mixed lengths, H200",
    "train GPT-2 124M, 1024 tokens, H200: MFU": "train GPT-2 124M, H200, share of peak FLOP/s (MFU)",
    "train the 2.35 M multi30k model": "train the 2.35 M multi30k model, about 4,200 target tokens an update, H200",
    "decode GPT-2 124M, batch 64,": "decode GPT-2 124M, batch 64, H200",
    "translate, Transformer-base, beam 4, batch 64": "translate, Transformer-base, beam 4, batch 64, H200",
    "translate on CPU, float32, batch 32, beam 4": "translate on one core, float32, batch 32, beam 4",
    "translate on CPU, int8, batch 32, beam 4": "translate on one core, int8, batch 32, beam 4",
    "train 3+3 x 256 on CPU, mixed lengths": "train a 3 + 3 x 256 Transformer on one core, mixed lengths",
}
# Results of `saccade reproduce` on the front page
FRONT_RESULTS = (
    "multi30k-en-de", "nat", "tatoeba-de-en", "gpt2-books", "cifar10",
    "flickr8k", "an4", "fsdd", "sail-sentences-grid-jelly", "sail-sentences-jelly-grid",
)  # fmt: skip
SEEDS = 3  # that a result should have
REPEATABLE = (
    "Quality, mean ± standard deviation over the seeds. `saccade reproduce NAME --data-folder DATA` trains one again "
    "and says pass or fail. One seed has no spread: small differences mean nothing then."
)

INTRODUCTION = """# Results

What saccade reached: quality with seeds and spread, speed and memory beside other libraries, each number with its
command, hardware and caveats. This page is written by `benchmarks/report.py` from the recorded results of
`saccade reproduce` and from the files in `benchmarks/results`.

## Results that can be repeated

    saccade reproduce NAME --data-folder DATA

trains a result of this table with three seeds and scores each one once, with the recorded settings. The outcome is a
card, `runs/reproduce/NAME/card.md` and `card.json`, with pass or fail (exit code 0 or 1) against the recorded number.
It passes if the mean of the seeds differs from the recorded mean by at most two recorded spreads or a floor, whichever
is larger (the card shows both), and if the model has as many parameters. Finished seeds are kept: `--seeds 3` after
`--seeds 1` trains two more. `--only-new` leaves out seeds of the record, to add others to them.

DATA is a folder with one folder for each data set, such as `DATA/multi30k/train.en.gz`. Each file is checked by the
SHA-256 of its content, decompressed for .gz files, before anything is trained; a missing or different file is reported
with its hash and the place that it comes from. Embedded data needs no folder. Several data sets are half of an official
test (`test_a`), or are scaled or compressed again: these numbers compare with numbers on the same files only.

Mean ± spread: the spread is the standard deviation over the seeds. One seed has none, and then nothing is known about
it. Minutes are those of training one seed. A test is scored once per seed, with settings that are fixed before:
`saccade reproduce NAME --heldout KEY=VALUE` tries others on data that is held out from training.
"""

MEASUREMENTS = """## All measurements

Each number below was measured by the command that stands above its table, at that commit, on that hardware; commands of
scripts that are gone are those of that commit. Numbers of peers were measured on the same data and the same kind of
machine, unless the row says otherwise; a ratio is ours divided by theirs.
"""


def main() -> int:
    results = read(ROOT / "benchmarks" / "results")
    specs = {name: spec for name, spec in list_specs().items() if spec.recorded is not None}
    readme, speed = ROOT / "README.md", ROOT / "docs" / "speed.md"
    pages = {
        ROOT / "docs" / "results.md": page(results, specs),
        readme: with_table(readme.read_text("utf-8"), results, specs),
        speed: with_tables(speed.read_text("utf-8"), results),
    }
    return publish(pages, about=__doc__, root=ROOT)


def publish(pages: Mapping[Path, str], *, about: str, root: Path) -> int:
    """Write the pages that are out of date, or with `--check` only list them; return the exit code."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 when something is stale")
    check = parser.parse_args().check
    stale = [path for path, text in pages.items() if not path.exists() or path.read_text("utf-8") != text]
    for path in stale:
        if check:
            print(f"{path.relative_to(root)} is not up to date: run `make docs`", file=sys.stderr)
        else:
            path.write_text(pages[path], "utf-8")
            print(path.relative_to(root))
    return int(check and bool(stale))


def read(folder: Path) -> list[dict[str, Any]]:
    """Read all results in the order of their names; report a file with missing keys."""
    results = []
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text("utf-8"))
        missing = [key for key in KEYS if key not in result]
        missing += [
            f"{key} of row {i + 1}"
            for i, row in enumerate(result.get("rows", []))
            for key in ROW_KEYS
            if key not in row
        ]
        if missing:
            raise SystemExit(f"{path.name} lacks {', '.join(missing)}")
        results.append(result)
    return results


def page(results: Iterable[Mapping[str, Any]], specs: Mapping[str, Spec]) -> str:
    """Return the page of all results."""
    sections = [section(result, specs) for result in results] or ["Nothing has been recorded yet.\n"]
    return "\n".join([INTRODUCTION, *repeatable(specs), MEASUREMENTS, *sections])


def repeatable(specs: Mapping[str, Spec]) -> list[str]:
    """Return the table of what `saccade reproduce` can repeat, what lacks seeds, and what settings were chosen on."""
    few = [f"`{name}`" for name, spec in specs.items() if len(spec.recorded.values) < SEEDS]
    chosen = [f"* `{name}`: {spec.tuned}" + (f"; {spec.caveat}" if spec.caveat else "") for name, spec in specs.items()]
    return [
        *result_table(list(specs.values())), "",
        f"Not measured with three seeds (most need a GPU): {', '.join(few)}.",
        "`benchmarks/gpu_seeds.sh DATA OUT MINUTES` trains what is missing, as far as it gets in these minutes.", "",
        "## What was chosen on what", "", *chosen, "",
    ]  # fmt: skip


def result_table(specs: Sequence[Spec], *, caveats: bool = False) -> list[str]:
    """Return a table of recorded results: mean, spread, seeds, and sizes of both sides."""
    columns = ["name", "what", "mean ± spread", "seeds", "parameters", "beside it", *(["caveat"] if caveats else [])]
    columns += [] if caveats else ["minutes", "hardware"]
    right = ("mean ± spread", "seeds", "parameters", "minutes")
    lines = [f"| {' | '.join(columns)} |", f"|{'|'.join('--:' if name in right else '---' for name in columns)}|"]
    for spec in specs:
        recorded = spec.recorded
        spread = "" if recorded.spread is None else f" ± {recorded.spread:.2g}"
        minutes = "" if recorded.minutes is None else number(recorded.minutes)
        cells = [
            f"`{spec.name}`", spec.title, f"{number(recorded.mean)}{spread} {spec.unit}", str(len(recorded.values)),
            format_size(recorded.parameters), format_peer(spec.peer),
        ]  # fmt: skip
        cells += [spec.caveat] if caveats else [minutes, recorded.hardware]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def format_peer(peer: Peer | None) -> str:
    """Return name, value and size of a peer."""
    if peer is None:
        return ""
    size = f", {format_size(peer.parameters)} parameters" if peer.parameters else ""
    return f"{number(peer.value)}, {peer.name}{size}"


def format_size(parameters: float | None) -> str:
    if not parameters:
        return "not recorded"
    return f"{parameters / 1e6:.{1 if parameters >= 1e7 else 2}f} M"


def section(result: Mapping[str, Any], specs: Mapping[str, Spec]) -> str:
    """Return the section of one results file: how it was obtained, how to repeat it, then its rows."""
    rows = {row["what"] for row in result["rows"]}
    repeated = [f"`saccade reproduce {name}`" for name, spec in specs.items() if spec.recorded.row in rows]
    versions = ", ".join(f"{package} {version}" for package, version in result["versions"].items())
    lines = [
        f"### {result['name']}",
        "",
        f"    {result['command']}",
        "",
        f"{result['hardware']}; {result['date']}, commit {result['commit']};",
        f"{number(result['minutes'])} minutes in all; {versions}.",
        *([result["notes"]] if result.get("notes") else []),
        *([f"Repeat: {', '.join(repeated)}."] if repeated else []),
        "",
        *table(result["rows"]),
    ]
    signatures = dict.fromkeys(row["signature"] for row in result["rows"] if row.get("signature"))
    if signatures:
        lines += ["", "Signatures:", "", *(f"* `{signature}`" for signature in signatures)]
    return "\n".join([*lines, ""])


def table(rows: Iterable[Mapping[str, Any]], *, show: Callable[[Any], str] | None = None) -> list[str]:
    """Return a table of rows, with columns for seeds and peers only if there are any; `show` formats numbers."""
    rows = list(rows)
    columns = ["what", "value"]
    columns += ["seed"] if any("seed" in row for row in rows) else []
    columns += ["peer", "ratio"] if any("peer" in row for row in rows) else []
    lines = [f"| {' | '.join(columns)} |", f"|{'|'.join('--:' if name == 'value' else '---' for name in columns)}|"]
    return lines + [f"| {' | '.join(cell(row, name, show or number) for name in columns)} |" for row in rows]


def cell(row: Mapping[str, Any], column: str, show: Callable[[Any], str]) -> str:
    if column == "value" and row["value"] is None:
        return "not measured"
    if column == "value":
        spread = f" ± {row['spread']:.2g}" if row.get("spread") is not None else ""
        return f"{show(row['value'])}{spread} {row['unit']}".strip()
    if column == "peer" and "peer" in row:
        return f"{row['peer']}: {show(row['peer_value'])}" if row.get("peer_value") is not None else row["peer"]
    if column == "ratio" and row.get("ratio") is not None:
        return f"{row['ratio']:.2f}"
    return str(row.get(column, "")).replace("|", "\\|")


def round_number(value: float | str) -> str:
    """Format a number for people, with three significant digits, such as 1.57 M and 83,700 and 41.3."""
    if isinstance(value, str) or value == 0:
        return str(value)
    rounded = float(f"{value:.3g}")
    if abs(rounded) >= 1e6:
        return f"{rounded / 1e6:.2f} M"
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:#.3g}"


def number(value: float | str) -> str:
    """Format a number with few significant digits, such as 12,345 and 41.27 and 0.031."""
    if isinstance(value, str):
        return value
    if float(value).is_integer() or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.3g}"


def with_table(readme: str, results: Iterable[Mapping[str, Any]], specs: Mapping[str, Spec]) -> str:
    """Return README with the tables between its two marks replaced."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"README.md lacks the marks {BEGIN} and {END}")
    rows = headlines(results)
    body = table(rows, show=round_number) if rows else ["Nothing has been recorded yet."]
    shown = result_table([specs[name] for name in FRONT_RESULTS], caveats=True)
    return "\n".join([before + BEGIN, *body, "", REPEATABLE, "", *shown, END + after])


def with_tables(text: str, results: Iterable[Mapping[str, Any]]) -> str:
    """Return a page with the table of each results file that it names, below a line on its hardware."""
    found = {result["name"]: result for result in results}

    def build_table(mark: re.Match[str]) -> str:
        result = found.get(mark[2])
        body = ["Not recorded yet."]
        if result is not None:
            body = [f"{result['hardware']}; `{result['command']}`, {result['date']}.", "", *table(result["rows"])]
        return "\n".join([mark[1], *body, mark[3]])

    return TABLE.sub(build_table, text)


def headlines(results: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows for the front page, without their seeds."""
    rows = [row for result in results for row in result["rows"] if not row.get("detail")]
    found = {begin: next((row for row in rows if row["what"].startswith(begin)), None) for begin in FRONT}
    return [
        {key: row[key] for key in row if key != "seed"} | {"what": FRONT[begin]}
        for begin, row in found.items() if row is not None
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
