"""Memory of one training step of a transformer, from its architecture and how it is run.

In reading order: `engine/` (named dimensions, blocks and events, a small autograd, operations),
`rule` (what a rule of validity is), `option`, `optimizers`, `families/`, `stacks/` (one file each),
`structure` (what decides the order of events), `writer`, `layer`, `heads`, `micro` and `step` (the
walk through a step), `layout`, `rules`, `options` and `plan` (how a step is run), `architecture`,
`presets`, `sizes`, `cache` and `program` (compiled to matrices), `peak` and `timeline` (answers),
`levels` (from allocated to the card), `calibration`, `inputs` (the ten inputs), `remedies` and
`peak_case` (what is offered and said), `model`.
"""

from trainmem.transformer.architecture import Architecture
from trainmem.transformer.calibration import Calibration, Comparison, calibrate
from trainmem.transformer.engine.tape import KINDS
from trainmem.transformer.families import FAMILIES, Family
from trainmem.transformer.inputs import derived_inputs, plan_of
from trainmem.transformer.layout import Stage, stages
from trainmem.transformer.levels import Level, grade, levels
from trainmem.transformer.model import TransformerModel
from trainmem.transformer.optimizers import OPTIMIZERS, Optimizer
from trainmem.transformer.option import Option
from trainmem.transformer.options import OPTIONS
from trainmem.transformer.peak import COMPONENTS, PHASES, Result, peak, peaks, reserved_bytes
from trainmem.transformer.plan import Plan, stack
from trainmem.transformer.presets import ARCHITECTURES, architecture
from trainmem.transformer.registry import add, remove
from trainmem.transformer.stacks import (
    FRAMEWORKS,
    KERNELS,
    STACKS,
    Framework,
    Kernels,
    Stack,
)
from trainmem.transformer.timeline import Timeline, timeline

__all__ = [
    "ARCHITECTURES",
    "COMPONENTS",
    "FAMILIES",
    "FRAMEWORKS",
    "KERNELS",
    "KINDS",
    "OPTIMIZERS",
    "OPTIONS",
    "PHASES",
    "STACKS",
    "Architecture",
    "Calibration",
    "Comparison",
    "Family",
    "Framework",
    "Kernels",
    "Level",
    "Optimizer",
    "Option",
    "Plan",
    "Result",
    "Stack",
    "Stage",
    "Timeline",
    "TransformerModel",
    "add",
    "architecture",
    "calibrate",
    "derived_inputs",
    "grade",
    "levels",
    "peak",
    "peaks",
    "plan_of",
    "remove",
    "reserved_bytes",
    "stack",
    "stages",
    "timeline",
]
