"""Tasks, recipes and tokenization can be imported without torch: a prediction path without it is planned."""

import pkgutil
import subprocess
import sys

from saccade.config.task import list_tasks
from saccade.data import tokenization

TOKENIZATION = [module.name for module in pkgutil.iter_modules(tokenization.__path__)]
MODULES = [
    "saccade.config.load",
    "saccade.config.protocols",
    *(f"saccade.data.tokenization.{name}" for name in TOKENIZATION),
    "saccade.tasks",
    *(f"saccade.tasks.{name.replace('-', '_')}" for name in list_tasks()),
    "saccade_worlds",
]


def test_no_module_of_these_imports_torch() -> None:
    check = "import sys, importlib\n" + "".join(
        f"importlib.import_module({name!r}); assert 'torch' not in sys.modules, {name!r}\n" for name in MODULES
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
