"""Training speed of Transformer-base on mixed lengths, ours and `nn.Transformer` with torch.compile in one process.

    python benchmarks/train_speed.py --suite FOLDER [--out benchmarks/results] [--tiny]

FOLDER holds the suite: `gpu_train.py` with its modules, which makes the batches, the peer and the timing.
"""

import argparse
import importlib
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from results import save

PEER, OURS = "nn.Transformer, compile", "saccade, compile"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--tiny", action="store_true", help="toy sizes, to test the script")
    own = parser.parse_args()
    sys.path.insert(0, str(own.suite))
    common, plain, suite = (importlib.import_module(name) for name in ("common", "plain", "gpu_train"))
    wanted = ["--plugin", str(Path(__file__).with_name("contenders.py")), "--limit", "150", *["--tiny"] * own.tiny]
    args = common.parser("", seconds=400).parse_args(wanted)
    begin = time.perf_counter()
    common.start(args)
    rows = run_mixed(args, common, plain, suite)
    save("train_speed", result(rows), minutes=(time.perf_counter() - begin) / 60, folder=own.out)
    common.table(rows, "training, Transformer-base, mixed lengths")


def run_mixed(args: Any, common: Any, plain: Any, suite: Any) -> list[dict[str, Any]]:
    """Run the suite's case of mixed lengths for the peer and for us only."""
    size = {"vocab": 256, "dim": 32, "layers": 1, "heads": 2, "ff": 64} if args.tiny else BASE
    batches = plain.seq2seq_batches(size["vocab"], 512 if args.tiny else 25600, args.device)
    shape = SimpleNamespace(**size, dropout=0.1)
    case = SimpleNamespace(label="base mixed", size=shape, batches=batches, dynamic=True, device=args.device, amp=True)
    common.REGISTRY["seq2seq-train"] = [c for c in common.REGISTRY["seq2seq-train"] if c.name in (PEER, OURS)]

    def columns(case: Any, seconds: float, one: Any) -> dict[str, float]:
        return {"src+tgt tok/s": sum(b.n_tgt + b.n_src for b in case.batches) / seconds}

    return common.run_suite("seq2seq-train", case, args, columns, warmup=2, repeats=6)


BASE = {"vocab": 32000, "dim": 512, "layers": 6, "heads": 8, "ff": 2048}


def result(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    speeds = {row["contender"]: row.get("src+tgt tok/s") for row in rows}
    ours, peer = speeds.get(OURS), speeds.get(PEER)
    what = "train Transformer-base, mixed lengths (real source+target tok/s), H200: training speed"
    if ours is None or peer is None:
        return [{"what": what, "value": None, "unit": f"not measured: {rows}"}]
    return [
        {
            "what": what,
            "value": round(ours),
            "unit": "tokens/s",
            "peer": PEER,
            "peer_value": round(peer),
            "ratio": round(ours / peer, 3),
        }
    ]


if __name__ == "__main__":
    main()
