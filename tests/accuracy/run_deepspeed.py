"""Run DeepSpeed's engine on the CPU, and record what it allocates when.

    python tests/accuracy/run_deepspeed.py cases.json results.json

A case has a stage, a number of ranks and a model, and what of `engine.run.DEFAULTS` is other:

    [{"stage": 2, "ranks": 2, "accum": 2, "zero": {"reduce_bucket_size": 1500000},
      "model": {"hidden": 256, "layers": 4, "ffn": 704, "vocab": 4000}}]

`evaluate.py` takes the results as they are.
"""

import argparse
import importlib.metadata
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from engine.run import DEFAULTS, start


def main() -> None:
    """Run the cases of a file, and write the records as each is done."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cases", type=Path)
    parser.add_argument("results", type=Path)
    given = parser.parse_args()
    import torch.multiprocessing

    versions = {n: importlib.metadata.version(n) for n in ("deepspeed", "torch", "transformers")}
    with torch.multiprocessing.Manager() as manager:
        results = manager.list()
        for case in json.loads(given.cases.read_text()):
            start({**DEFAULTS, **case}, results)
            told = {"versions": versions, "device": "cpu accelerator, gloo"}
            text = json.dumps(told | {"records": list(results)}, indent=1)
            given.results.write_text(text + "\n")
            print(f"{len(results)} recorded", flush=True)


if __name__ == "__main__":
    main()
