"""Writes docs/results.md and the tables of README.md and docs/speed.md from benchmarks/results/*.json.

    python benchmarks/report.py [--check]

With `--check` nothing is written, and the exit code is 1 when a file is not what it should be.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- results: written by benchmarks/report.py -->", "<!-- results: end -->"
TABLE = re.compile(r"(<!-- table: (\w+) -->)\n.*?(<!-- table: end -->)", re.DOTALL)
KEYS = ("name", "command", "commit", "date", "hardware", "versions", "minutes", "rows")
ROW_KEYS = ("what", "value", "unit")
# beginnings of the rows on the front page, in order
FRONT = (
    "train Transformer-base, mixed lengths",
    "train GPT-2 124M, 1024 tokens, H200: MFU",
    "train the 2.35 M multi30k model",
    "decode GPT-2 124M, batch 1,",
    "decode GPT-2 124M, batch 64,",
    "translate, Transformer-base, beam 4, batch 64",
    "translate on CPU, float32, batch 1, greedy",
    "translate on CPU, float32, batch 32, beam 4",
    "translate on CPU, int8, batch 1, greedy",
    "translate on CPU, int8, batch 32, beam 4",
    "train 3+3 x 256 on CPU, mixed lengths",
    "multi30k en->de, test_2016_flickr, cased sacreBLEU (13a), beam 5, checkpoint chosen on val only, mean",
    "tatoeba de->en, test, cased",
    "`bahdanau`: multi30k en->de, test_2016_flickr, cased",
    "`deep-att`: multi30k en->de, test_2016_flickr, cased",
    "`mask-predict` with distillation, with refinement",
    "multi30k en->de to 38 BLEU on val",
    "classic-books, GPT-2 124M form, 8 minutes of training, saccade: bits",
    "SST-2 dev, pretrained: accuracy",
    "cifar10: accuracy",
    "flickr8k: bleu-4",
    "an4: wer",
    "fsdd: accuracy",
    "iiit5k: accuracy",
    "SAIL, sentences, mean",
    "`make demo`, exact match on dates of held-out years: mean",
)
HEADLINE_NAMES = {
    "classic-books, GPT-2 124M form, 8 minutes of training, saccade: bits": (
        "`gpt2` on books, 8 minutes on an H200: bits per byte of other books"
    ),
    "SST-2 dev, pretrained: accuracy": "an encoder pretrained for 4.8 minutes on an H200, then SST-2, dev: % right",
    "cifar10: accuracy": "`vit` on CIFAR-10 as JPEG, fresh weights, 5.6 minutes on an H200: % right",
    "flickr8k: bleu-4": "`show-attend-tell` on Flickr8k, 128 pixels, fresh weights: BLEU-4 with five references",
    "an4: wer": "`listen-attend-spell` on AN4: word error rate in %",
    "fsdd: accuracy": "`listen-attend-spell` on spoken digits (FSDD): % right",
    "iiit5k: accuracy": "`show-attend-read` on IIIT5K, words in photographs: % right",
    "SAIL, sentences, mean": "`listen-attend-walk` on SAIL, three together, a map never seen: % at the right place",
}  # titles on the front page, if they differ from the row's name

INTRODUCTION = """# Results

This page is written by `benchmarks/report.py` from the files in `benchmarks/results`. Each number was measured by the
command that stands above its table, at that commit, on that hardware. Numbers of peers were measured on the same data
and the same kind of machine, unless the row says otherwise; a ratio is ours divided by theirs.
"""


def main() -> int:
    results = read(ROOT / "benchmarks" / "results")
    readme, speed = ROOT / "README.md", ROOT / "docs" / "speed.md"
    pages = {
        ROOT / "docs" / "results.md": page(results),
        readme: with_table(readme.read_text("utf-8"), results),
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


def page(results: Iterable[Mapping[str, Any]]) -> str:
    """Return the page of all results."""
    sections = [section(result) for result in results]
    return "\n".join([INTRODUCTION, *(sections or ["Nothing has been recorded yet.\n"])])


def section(result: Mapping[str, Any]) -> str:
    """Return the section of one results file: how it was obtained, then its rows."""
    versions = ", ".join(f"{package} {version}" for package, version in result["versions"].items())
    lines = [
        f"## {result['name']}",
        "",
        f"    {result['command']}",
        "",
        f"{result['hardware']}; {result['date']}, commit {result['commit']};",
        f"{number(result['minutes'])} minutes in all; {versions}.",
        *([result["notes"]] if result.get("notes") else []),
        "",
        *table(result["rows"]),
    ]
    signatures = dict.fromkeys(row["signature"] for row in result["rows"] if row.get("signature"))
    if signatures:
        lines += ["", "Signatures:", "", *(f"* `{signature}`" for signature in signatures)]
    return "\n".join([*lines, ""])


def table(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a table of rows, with columns for seeds and peers only if there are any."""
    rows = list(rows)
    columns = ["what", "value"]
    columns += ["seed"] if any("seed" in row for row in rows) else []
    columns += ["peer", "ratio"] if any("peer" in row for row in rows) else []
    lines = [f"| {' | '.join(columns)} |", f"|{'|'.join('--:' if name == 'value' else '---' for name in columns)}|"]
    return lines + [f"| {' | '.join(cell(row, name) for name in columns)} |" for row in rows]


def cell(row: Mapping[str, Any], column: str) -> str:
    if column == "value" and row["value"] is None:
        return "not measured"
    if column == "value":
        return f"{number(row['value'])} {row['unit']}"
    if column == "peer" and "peer" in row:
        return f"{row['peer']}: {number(row['peer_value'])}" if row.get("peer_value") is not None else row["peer"]
    if column == "ratio" and row.get("ratio") is not None:
        return f"{row['ratio']:.2f}"
    return str(row.get(column, "")).replace("|", "\\|")


def number(value: float | str) -> str:
    """Format a number with few significant digits, such as 12,345 and 41.27 and 0.031."""
    if isinstance(value, str):
        return value
    if float(value).is_integer() or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.3g}"


def with_table(readme: str, results: Iterable[Mapping[str, Any]]) -> str:
    """Return README with the table between its two marks replaced."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"README.md lacks the marks {BEGIN} and {END}")
    rows = headlines(results)
    body = table(rows) if rows else ["Nothing has been recorded yet."]
    return "\n".join([before + BEGIN, *body, END + after])


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
        {key: row[key] for key in row if key != "seed"} | {"what": HEADLINE_NAMES.get(begin, row["what"])}
        for begin, row in found.items() if row is not None
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
