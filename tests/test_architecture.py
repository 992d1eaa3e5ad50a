"""The rules of the house, checked: sizes, names, imports, and what must not be in any file."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted([*(ROOT / "saccade").rglob("*.py"), *(ROOT / "saccade_worlds").rglob("*.py")])
PYTHON = sorted(
    [*SOURCES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py"), *(ROOT / "docs").glob("*.py")]
)
TEXT = (".py", ".md", ".toml", ".yml", ".txt", ".json", "Makefile", "run", ".css", ".js", ".html")


def tracked() -> list[Path]:
    """The files of the project, as git sees them; all files of our folders where there is no git."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    names = listed.stdout.splitlines() if listed.returncode == 0 else [str(path.relative_to(ROOT)) for path in PYTHON]
    return [ROOT / name for name in names if name.endswith(TEXT) and (ROOT / name).is_file()]


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.parse(path.read_text("utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def test_the_rules_see_the_files():
    assert len(SOURCES) > 20
    assert ROOT / "saccade" / "errors.py" in SOURCES
    assert ROOT / "README.md" in tracked()


def test_no_function_has_more_than_60_lines():
    long = [
        f"{named(path)}:{node.lineno} {node.name}"
        for path in SOURCES
        for node in functions(path)
        if (node.end_lineno or node.lineno) - node.lineno + 1 > 60
    ]
    assert not long


def test_no_function_takes_a_dictionary_of_anything():
    """`**kwargs` swallows typing mistakes; only test doubles may have it, and what passes typed arguments on.

    `Unpack` of a TypedDict names every keyword.

    Breaks stand in for functions of any signature, whose arguments they pass on.
    """
    doubles = [path for path in SOURCES if "breaks" in (path.parent.name, path.stem)]
    found = [(path, node) for path in SOURCES if path not in doubles for node in functions(path) if node.args.kwarg]
    typed = re.compile(r"\w+\.kwargs|Tensor|Unpack\[DecodingSettings\]")
    assert not [
        f"{named(path)}:{node.lineno}"
        for path, node in found
        if not (node.args.kwarg.annotation and typed.fullmatch(ast.unparse(node.args.kwarg.annotation)))
    ]


def test_nothing_is_called_utils():
    magnets = {"utils", "util", "helpers", "helper", "common", "misc"}
    parts = [(path, {path.stem, *path.parent.relative_to(ROOT).parts}) for path in SOURCES]
    assert not [named(path) for path, names in parts if names & magnets]


UNSAFE = re.compile(
    r"\bimport pickle\b|\bfrom pickle\b|\bpickle\.|(?<![.\w])eval\(|(?<![.\w])exec\(|shell=True|os\.system\("
    r"|torch\.load\((?![^)]*weights_only=True)|allow_pickle=True"
)


def test_nothing_is_unpickled_or_evaluated():
    found = [
        f"{named(path)}:{number} {line.strip()}"
        for path in SOURCES
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if UNSAFE.search(line)
    ]
    assert not found


# Paths of one machine, and words that mean something only to the people who happened to write a file.
# Written in pieces, so that this file does not find itself.
PRIVATE = re.compile(
    "|".join([r"(?<![\w.<])/(?:wo" + r"rk|ro" + r"ot)/", r"\bthis ses" + r"sion\b", r"\bissue" + r" #?\d+\b"]),
    re.IGNORECASE,
)


def test_no_file_names_a_machine_or_a_workplace():
    found = [
        f"{named(path)}:{number} {line.strip()[:90]}"
        for path in tracked()
        for number, line in enumerate(path.read_text("utf-8", errors="replace").splitlines(), 1)
        if PRIVATE.search(line)
    ]
    assert not found


def test_nobody_asks_our_own_blocks_what_they_are():
    """`getattr` with a default and `hasattr` hide a missing part."""
    calls = [
        f"{named(path)}:{node.lineno}"
        for path in SOURCES
        if path.parent.name in ("layers", "model")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and (node.func.id == "hasattr" or (node.func.id == "getattr" and len(node.args) == 3))
    ]
    assert not calls


def test_rooms_import_only_what_stands_below_them():
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


@pytest.mark.parametrize("command", ["import saccade", "from saccade.cli import main; main(['--help'])"])
def test_start_needs_neither_torch_nor_datasets(command):
    heavy = {"torch", "datasets", "numpy", "matplotlib", "tokenizers", "sacrebleu", "pyarrow", "transformers"}
    tell = f"print('loaded:', *sorted({heavy} & set(sys.modules)))"
    code = f"import sys\ntry:\n    {command}\nexcept SystemExit:\n    pass\n{tell}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].strip() == "loaded:"


def test_version_and_changelog_agree():
    import saccade

    first = re.search(r"^## \[?(\d[\w.]+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert first
    assert first[1] == saccade.__version__


def test_readme_stays_short():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150


def test_every_dependency_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(item for extra in project["optional-dependencies"].values() for item in extra),
    ]
    names = {re.split(r"[\[<>=]", item)[0].lower().replace("_", "-") for item in wanted} - {"saccade"}
    pins = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in pins if "==" in line}
    assert names <= pinned
    assert {"torch==2.13.0", "triton==3.7.1"} <= set(pins)  # the CUDA wheel of torch requires exactly that triton
    assert not [line for line in pins if "+" in line or line.startswith("-e")]


def imports(paths: list[Path]) -> set[str]:
    """The names of the packages that files import, without Python's own and without their neighbours."""
    found = set()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                found.add(node.module.split(".")[0])
    return {name.lower() for name in found - sys.stdlib_module_names - {path.stem for path in paths}}


def test_every_import_is_a_declared_dependency():
    """What is imported but only comes along with something else breaks when that something changes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]

    def names(wanted: list[str]) -> set[str]:
        return {re.split(r"[\[<>=]", item)[0].lower().replace("-", "_") for item in wanted}

    ours = {"saccade", "saccade_worlds"} | {"pil", "pydantic_core", "annotated_types"}  # pillow, parts of pydantic
    ours |= {"absl", "upath"}  # of absl-py and universal-pathlib
    ours |= {"mlflow"}  # of mlflow-skinny
    ours |= {"triton"}  # comes with torch where there is CUDA, and is imported only there
    groups = ("tensorboard", "export", "languages", "ray", "rouge", "serve", "sound", "sweep", "timm", "urls", "wandb")
    groups += ("worlds",)
    optional = [item for name in groups for item in extras[name]]
    used = names([*project["dependencies"], *optional]) | ours
    assert imports(SOURCES) <= used
    modules = {"sklearn", "bidi", "yaml"}  # of scikit-learn, python-bidi and pyyaml
    assert imports(sorted((ROOT / "tests").rglob("*.py"))) <= used | names(extras["dev"]) | modules
