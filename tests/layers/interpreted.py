"""Checks kernels against plain torch, on a GPU or in Triton's interpreter; prints what failed as JSON.

    python interpreted.py DEVICE NAME...

On the CPU kernels run in the interpreter, which must be chosen before triton is imported.
"""

import importlib
import json
import os
import sys
import traceback


def run(name: str, device: str) -> str:
    """Run one of the modules beside this one; return its traceback, empty where all is well."""
    try:
        importlib.import_module(f"interpreted_{name}").main(device)
    except Exception:
        return traceback.format_exc()
    return ""


if __name__ == "__main__":
    device, *names = sys.argv[1:]
    os.environ["TRITON_INTERPRET"] = "1" if device == "cpu" else "0"
    print(json.dumps({name: run(name, device) for name in names}))
