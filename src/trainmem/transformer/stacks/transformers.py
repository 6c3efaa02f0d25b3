"""transformers 5.24 with FSDP2, DDP or on one GPU (torch 2.13): traced to the byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmem.transformer.engine.graph import Table
from trainmem.transformer.engine.tables import Embedding
from trainmem.transformer.families import FAMILIES
from trainmem.transformer.rule import ModelRule
from trainmem.transformer.stacks.kernels import Kernels
from trainmem.transformer.stacks.preset import Stack

if TYPE_CHECKING:
    from trainmem.transformer.structure import Structure


def _described() -> str:
    return ", ".join(name for name, family in FAMILIES.items() if family.code.layer)


class Transformers(Kernels):
    """The families' own tables, in eager mode."""

    name = "transformers"
    label = "transformers"
    own_code = True
    transformers_model = True
    peft = True
    exact_pieces = True
    drops_model = True
    drops_attention = True
    attentions = ("flash", "eager")
    precisions = ("mixed", "amp", "bf16_master", "bf16", "fp32")
    expert_parallel = False
    caches = True
    rules = (
        ModelRule(
            name="a family that transformers' tables describe",
            fields=("kernels",),
            broken=lambda a, p: FAMILIES[a.family].code.layer is None,
            message=lambda a, p: (
                f"family {a.family!r} is not covered with kernels 'transformers' "
                f"(covered: {_described()})"
            ),
        ),
    )

    def block(self, s: Structure) -> Table:
        """Return the family's layer."""
        assert s.code.layer is not None  # noqa: S101  # the rule above
        return s.code.layer(s)

    side_by_side = block

    def embedding(self, s: Structure) -> Embedding:
        """Return the family's embedding."""
        return s.code.embedding(s) if s.code.embedding else super().embedding(s)

    def final_norm(self, s: Structure) -> Table:
        """Return the family's norm, or pooler."""
        return s.code.final_norm(s) if s.code.final_norm else super().final_norm(s)


KERNELS = (Transformers(),)
STACKS = (
    Stack(
        "transformers",
        "transformers with FSDP2",
        {"framework": "torch", "kernels": "transformers", "loss_head": "transformers"},
        "transformers 5.24, torch 2.13: traced",
    ),
)
