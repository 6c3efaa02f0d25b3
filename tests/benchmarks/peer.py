"""Runs in an environment of the peers' own: times one sweep point of each, on request.

Reads lines ``NAME POINTS``; answers each with the seconds that one point took. The peers get
their best case: all that doesn't change along the sweep is built beforehand, logging is off.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable


def mlsysim() -> Callable[[int], object]:
    """Training memory of Llama-3-8B on H100, ZeRO-3, full recomputation."""
    from mlsysim import Hardware, Models
    from mlsysim.engine.solvers.training import TrainingMemoryModel

    model, card, solver = Models.Language.Llama3_8B, Hardware.Cloud.H100, TrainingMemoryModel()
    return lambda gpus: solver.solve(
        model, card, batch_size=4 * gpus, seq_len=4096, precision="fp16", dp_size=gpus,
        activation_checkpointing="full", zero_stage=3,
    )  # fmt: skip


def llm_analysis() -> Callable[[int], object]:
    """The same of Llama-7B, the nearest that it knows."""
    from llm_analysis import config
    from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis

    logging.disable(logging.CRITICAL)
    config.populate_model_and_gpu_configs()
    model = config.get_model_config_by_name("decapoda-research_llama-7b-hf")
    model.max_seq_len = 4096
    card = config.get_gpu_config_by_name("h100-sxm-80gb")
    analysis = LLMAnalysis(model, card, flops_efficiency=0.5)

    def point(gpus: int) -> object:
        analysis.update_parallelism_config(config.ParallelismConfig(dp_size=gpus))
        return analysis.training(
            batch_size_per_gpu=4, seq_len=4096, ds_zero=DSZeRO.STAGE_3,
            activation_recomputation=ActivationRecomputation.FULL,
        )  # fmt: skip

    return point


def main() -> None:
    solvers = {"mlsysim": mlsysim(), "llm-analysis": llm_analysis()}
    print("ready", flush=True)
    for line in sys.stdin:
        name, points = line.split()
        solve = solvers[name]
        start = time.perf_counter()
        for i in range(int(points)):
            solve(8 + i)  # llm-analysis refuses what does not fit
        print((time.perf_counter() - start) / int(points), flush=True)


if __name__ == "__main__":
    main()
