"""Memory of one training step of a transformer, from its architecture and how it is run."""

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
    "architecture",
    "grade",
    "levels",
    "peak",
    "peaks",
    "timeline",
]
