"""Memory of one training step of a transformer, from its architecture and how it is run.

In reading order: `architecture` (geometry), `plan` (how the step is run) with its `conflicts`,
`stacks` (plans by name),
`layout` (parallel axes, pipeline stages), `replay` (the engine: lifetimes, events), `fused` and
`ops` (what operations allocate), `blocks` and `kernels` (tables of tensors), `states`, `sharding`,
`heads` and `schedule` (the walk through a step), `program` (compiled to matrices), `result`
(answers), `overhead` (from allocated to the card), `calibration`, `adapter` (the ten inputs).
"""

from trainmem.transformer.adapter import TransformerModel, derived_inputs, plan_of
from trainmem.transformer.architecture import ARCHITECTURES, Architecture, architecture
from trainmem.transformer.calibration import Calibration, Comparison, calibrate
from trainmem.transformer.layout import Stage, stages
from trainmem.transformer.overhead import Level, grade, levels
from trainmem.transformer.plan import OPTIONS, Option, Plan
from trainmem.transformer.replay import KINDS
from trainmem.transformer.result import (
    COMPONENTS,
    PHASES,
    Result,
    Timeline,
    peak,
    peaks,
    reserved_bytes,
    timeline,
)
from trainmem.transformer.stacks import STACKS, Stack, stack

__all__ = [
    "ARCHITECTURES",
    "COMPONENTS",
    "KINDS",
    "OPTIONS",
    "PHASES",
    "STACKS",
    "Architecture",
    "Calibration",
    "Comparison",
    "Level",
    "Option",
    "Plan",
    "Result",
    "Stack",
    "Stage",
    "Timeline",
    "TransformerModel",
    "architecture",
    "calibrate",
    "derived_inputs",
    "grade",
    "levels",
    "peak",
    "peaks",
    "plan_of",
    "reserved_bytes",
    "stack",
    "stages",
    "timeline",
]
