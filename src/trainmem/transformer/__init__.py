"""Memory of one training step of a transformer, from its architecture and how it is run.

In reading order: `architecture` (geometry), `plan` (how the step is run), `replay` (the engine:
lifetimes, events), `ops` (what PyTorch's operations allocate), `blocks` (tables of tensors),
`states`, `sharding`, `heads` and `schedule` (the walk through a step), `program` (compiled to
matrices), `result` (answers), `overhead` (from allocated to the card), `adapter` (the ten inputs).
"""

from trainmem.transformer.adapter import TransformerModel, derived_inputs, plan_of
from trainmem.transformer.architecture import ARCHITECTURES, Architecture, architecture
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
    timeline,
)

__all__ = [
    "ARCHITECTURES",
    "COMPONENTS",
    "KINDS",
    "OPTIONS",
    "PHASES",
    "Architecture",
    "Level",
    "Option",
    "Plan",
    "Result",
    "Timeline",
    "TransformerModel",
    "architecture",
    "derived_inputs",
    "grade",
    "levels",
    "peak",
    "peaks",
    "plan_of",
    "timeline",
]
