"""Trace the memory of training steps on fake CUDA tensors, without a GPU.

Examples
--------
    python tests/accuracy/trace.py cases.json results.json [--only SUBSTRING]
    python tests/accuracy/trace.py --random 100 --seed 2 results.json

Records that `results.json` already holds are kept and not traced again.
"""

import argparse
import json
import os
import time
import traceback
from pathlib import Path

from tracer import fake_cuda
from tracer.cases import draw
from tracer.step import trace


def save(records: list[dict], path: Path) -> None:
    """Write `records`, so that a reader never sees half a file."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(records, indent=1) + "\n")
    os.replace(part, path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="?", type=Path, help="records as in the results")
    parser.add_argument("results", type=Path)
    parser.add_argument("--random", type=int, metavar="N", help="draw N cases at random")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--only", default="", help="trace the cases whose name contains this")
    args = parser.parse_args()
    if (args.cases is None) == (args.random is None):
        parser.error("give either a file of cases or --random N")
    cases = json.loads(args.cases.read_text()) if args.cases else draw(args.seed, args.random)
    done = json.loads(args.results.read_text()) if args.results.exists() else []
    names = {record["name"] for record in done}
    fake_cuda.patch("cuda")
    for case in cases:
        if args.only not in case["name"] or case["name"] in names:
            continue
        began = time.perf_counter()
        try:
            record = trace(case)
        except Exception:  # one case that PyTorch refuses must not cost the rest
            traceback.print_exc()
            print(f"{case['name']} failed: {case['case']}", flush=True)
            continue
        done.append(record)
        save(done, args.results)
        peak, seconds = record["peak_bytes"] / 2**30, time.perf_counter() - began
        print(f"{case['name']:60} {peak:8.2f} GiB in {record['peak_phase']:6} {seconds:5.1f} s")


if __name__ == "__main__":
    main()
