import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import small

from saccade.config.load import save
from saccade.train.signals import Interrupted, InterruptHandler


@pytest.mark.parametrize(("number", "code", "name"), [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM")])
def test_signal_is_recorded_and_says_how_to_continue(number, code, name):
    with InterruptHandler() as interrupts:
        os.kill(os.getpid(), number)

    stop = Interrupted(Path("runs/x"), step=7, signal_number=interrupts.signal_number)

    assert str(stop) == f"stopped by {name}, saved at step 7; go on with: saccade train --resume runs/x"
    assert stop.exit_code == code and isinstance(stop, KeyboardInterrupt)


def test_second_ctrl_c_stops_at_once():
    with pytest.raises(KeyboardInterrupt), InterruptHandler():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGINT)
    with InterruptHandler():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before


def test_other_threads_leave_signals_alone():
    seen = []

    def run():
        with InterruptHandler() as interrupts:
            seen.append(interrupts.signal_number)

    thread = threading.Thread(target=run)
    thread.start(), thread.join()

    assert seen == [0]


def test_process_that_got_no_signal_leaves_as_by_sigterm():
    assert Interrupted(Path("x"), step=1, signal_number=0).exit_code == 143


@pytest.mark.slow
def test_a_terminated_command_says_how_to_resume_and_resumes(tmp_path):
    save(small.small(steps=400, save_every=400, valid_every=400), tmp_path / "copy.toml")
    command = [sys.executable, "-m", "saccade", "train"]
    run = str(tmp_path / "run")

    process = subprocess.Popen([*command, str(tmp_path / "copy.toml"), "--run", run], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("step 4/400")
    process.terminate()
    _, printed = process.communicate()
    assert process.returncode == 143
    assert printed.endswith(f"go on with: saccade train --resume {run}\n") and "Traceback" not in printed

    done = subprocess.run([*command, "--resume", run, "train.steps=200"], capture_output=True, text=True, check=True)
    assert "resumes from step" in done.stderr and "step 200/200" in done.stderr and done.stdout == ""
