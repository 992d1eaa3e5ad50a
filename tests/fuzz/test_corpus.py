"""Every command that ever ended in a traceback, a signal, after 20 seconds or with 2 GB ends as it should."""

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def test_no_case_of_the_corpus_fails_again():
    done = subprocess.run([sys.executable, str(FOLDER), "--replay"], capture_output=True, text=True)
    count = len(list((FOLDER / "corpus").glob("*.json")))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}"
    assert f"{count} cases of the corpus, 0 faults" in done.stdout
    assert count > 0
