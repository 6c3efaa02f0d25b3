"""DeepSpeed's own options that change memory, as its JSON names them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from trainmem.transformer.option import ON_OFF, Option

_ZERO = "deepspeed 0.19, runtime/zero/config.py"
_MOST = 10**12
_AUTO = ("auto",)

#: By name; defaults as the engine has them.
SETTINGS: dict[str, Option] = {
    option.name: option
    for option in (
        Option("reduce_bucket_size", 500_000_000, "Reduce bucket",
               "Elements of the bucket in which gradients are reduced; a larger gradient is "
               "reduced alone.",
               _ZERO, bounds=(1, _MOST), words=_AUTO),
        Option("overlap_comm", False, "Reduction overlaps backward",
               "ZeRO-1 and 2: two buckets (ZeRO-3 always overlaps, in one).",
               _ZERO, ON_OFF),
        Option("contiguous_gradients", True, "Contiguous gradients",
               "Gradients are copied into a bucket as they come.",
               _ZERO, ON_OFF),
        Option("reduce_scatter", True, "Reduce by parts",
               "Each rank gets its part, for which the bucket is copied.",
               _ZERO, ON_OFF),
        Option("round_robin_gradients", False, "Parameters dealt round robin",
               "ZeRO-1 and 2: which parameters a rank's partition touches.",
               _ZERO, ON_OFF),
        Option("grad_accum_dtype", "bf16", "Type of accumulated gradients",
               "`data_types.grad_accum_dtype`.",
               "deepspeed 0.19, runtime/config.py",
               (("bf16", "as the weights"), ("fp32", "fp32"))),
        Option("param_groups", 1, "Optimizer's groups",
               "ZeRO-1 and 2: whether the optimizer has parameters without weight decay (norms and "
               "biases) in a group of their own, as transformers' Trainer makes it.",
               "transformers 5.24, trainer.py",
               ((1, "one"), (2, "with and without weight decay"))),
        Option("sub_group_size", 1_000_000_000, "Elements updated at once",
               "ZeRO-3: parameters whose fp32 gradients exist together in the step.",
               _ZERO, bounds=(1, _MOST)),
        Option("stage3_prefetch_bucket_size", 50_000_000, "Prefetch bucket",
               "ZeRO-3: elements that a fetch gathers ahead.",
               _ZERO, bounds=(0, _MOST), words=_AUTO),
        Option("stage3_param_persistence_threshold", 100_000, "Persistence threshold",
               "ZeRO-3: parameters of at most so many elements stay whole.",
               _ZERO, bounds=(0, _MOST), words=_AUTO),
        Option("stage3_max_live_parameters", 1_000_000_000, "Most live parameters",
               "ZeRO-3: elements beyond which nothing is gathered ahead.",
               _ZERO, bounds=(0, _MOST)),
        Option("stage3_max_reuse_distance", 1_000_000_000, "Reuse distance",
               "ZeRO-3: a module used again within so many elements stays gathered.",
               _ZERO, bounds=(0, _MOST)),
    )
}  # fmt: skip

#: What transformers makes of "auto", from the hidden size
#: (`integrations/deepspeed.py`, `trainer_config_finalize`).
FROM_HIDDEN: Final[Mapping[str, Callable[[int], int]]] = {
    "reduce_bucket_size": lambda hidden: hidden * hidden,
    "stage3_prefetch_bucket_size": lambda hidden: int(0.9 * hidden * hidden),
    "stage3_param_persistence_threshold": lambda hidden: 10 * hidden,
}
