"""Checks kernels in Triton's interpreter, chosen before triton is imported; prints what failed as JSON."""

import importlib
import json
import os
import sys
import traceback

os.environ["TRITON_INTERPRET"] = "1"


def run(name: str) -> str:
    """Run one of the modules beside this one; return its traceback, empty where all is well."""
    try:
        importlib.import_module(f"interpreted_{name}").main()
    except Exception:
        return traceback.format_exc()
    return ""


if __name__ == "__main__":
    print(json.dumps({name: run(name) for name in sys.argv[1:]}))
