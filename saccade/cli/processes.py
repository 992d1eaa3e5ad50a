"""`saccade train --processes N`: starts N processes of the same command on this machine, as torchrun does."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Sequence

from saccade.errors import SaccadeError
from saccade.processes import build_python_environment

MAX_RESTARTS = 3  # of all processes, after one of them was killed


def start_processes(arguments: Sequence[str], count: int) -> None:
    """Run this command in `count` processes until it ends; raises SystemExit with their exit code after an error.

    When a process is killed, all are started again and go on from the last checkpoint. They are connected through the
    loopback interface alone.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise SaccadeError("--processes starts processes itself, but torchrun started this one; leave one of them out")
    os.environ.update(build_python_environment({"PYTHONSAFEPATH": "1"}))  # torchrun starts `python -m saccade`
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")  # restarted processes would find old addresses
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if os.path.exists("/sys/class/net/lo") else "lo0")
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the processes report errors themselves
    options = ["--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
    options += [f"--nproc-per-node={count}", f"--max-restarts={MAX_RESTARTS}", f"--rdzv-id=saccade-{os.getpid()}"]
    try:
        run.run(run.parse_args([*options, "-m", "--", "saccade", *drop_option(arguments)]))
    except ChildFailedError as error:
        raise SystemExit(max(1, error.get_first_failure()[1].exitcode)) from None
    except SignalException as error:
        raise SystemExit(128 + signal.Signals(error.sigval)) from None


def drop_option(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of this command without --processes."""
    kept, skip = list[str](), False
    for argument in arguments:
        if skip or argument == "--processes":
            skip = not skip
        elif not argument.startswith("--processes="):
            kept.append(argument)
    return kept
