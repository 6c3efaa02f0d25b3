"""A family, a stack and optimizers from outside the package: added, simulated whole, taken back."""

from dataclasses import replace

import pytest

import trainmem
from trainmem.transformer import (
    ARCHITECTURES,
    FAMILIES,
    OPTIMIZERS,
    OPTIONS,
    STACKS,
    Architecture,
    Family,
    Framework,
    Kernels,
    Optimizer,
    Plan,
    Stack,
    add,
    peak,
    remove,
    stack,
    timeline,
)
from trainmem.transformer.engine import ops
from trainmem.transformer.engine.dims import SCALAR, H
from trainmem.transformer.engine.graph import Row
from trainmem.transformer.engine.tables import rms_norm
from trainmem.transformer.engine.tape import TEMPORARY, Role, whole
from trainmem.transformer.families import Code, llama
from trainmem.transformer.families.config_json import NO_BIAS, Format, llama_sizes
from trainmem.transformer.families.family import llama_parameters, llama_root, norm
from trainmem.transformer.optimizers import State
from trainmem.transformer.rule import ModelRule, NotCovered, Rule

LLAMA = ARCHITECTURES["Llama-3.2-1B"]
#: The same geometry, whose file is the toy family's.
FILE = {
    "model_type": "toy",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
    "max_position_embeddings": 131072,
}
BUFFER = 3 * 2**30


def sandwiched(s):
    """Llama's layer, whose output is normalised once more before the sum (as Gemma 2's is)."""
    *rows, _, last = llama.layer(s)
    return (*rows, *rms_norm("m", "mn", "norm3"), Row("OUT", ops.add, "x1 mn"), last)


TOY_FAMILY = Family(
    name="toy",
    code=Code(layer=sandwiched, embedding=llama.embedding, final_norm=llama.final_norm, exact=True),
    layer_parameters=lambda a: llama_parameters() | {"norm3": norm(H)},
    root_parameters=llama_root,
    format=Format("ToyForCausalLM", llama_sizes, 2048, only=NO_BIAS),
    rules=(
        ModelRule(
            name="no adapters",
            fields=("lora_rank",),
            broken=lambda a, p: p.lora_rank > 0,
            message=lambda a, p: f"lora_rank {p.lora_rank} is not covered for toy",
        ),
    ),
)

LION = Optimizer(name="lion", label="Lion", states=(State(),), source="arXiv 2302.06675")
MUON = Optimizer(
    name="muon",
    label="Muon, AdamW for the rest",
    states=(State(),),
    takes=lambda name, p: MUON if p.role is Role.PRODUCT else OPTIMIZERS["adamw"],
    source="kellerjordan.github.io/posts/muon",
)


class ToyFramework(Framework):
    name = "toy-framework"
    label = "Toy"
    precision = ""
    keeps_gradients = False
    rules = (
        Rule(
            name="one length",
            fields=("varying_lengths", "framework"),
            broken=lambda p: p.varying_lengths,
            message=lambda p: "varying_lengths is not covered with the toy framework",
        ),
    )

    def buffers(self, write):
        write.emit(whole(SCALAR, BUFFER), 1, TEMPORARY)


class ToyKernels(Kernels):
    """Those of torch.compile, with an activation after each norm, which saves its input."""

    name = "toy-kernels"
    label = "Toy kernels"

    def norm(self, s, x, out, weight):
        first, *rest = super().norm(s, x, out + "0", weight)
        return (first, *rest, Row(out, ops.activation, out + "0"))


TOY_STACK = Stack(
    "toy",
    "Toy stack",
    {
        "framework": "toy-framework",
        "kernels": "toy-kernels",
        "loss_head": "compiled",
        "precision": "bf16",
    },
    "made up",
)


@pytest.fixture
def added():
    rows = (TOY_FAMILY, LION, MUON, ToyFramework(), ToyKernels(), TOY_STACK)
    for row in rows:
        add(row)
    yield
    for row in rows:
        remove(row)


ONE = {"num_gpus": 1, "sharding": "none", "precision": "bf16", "seq_length": 1024}


@pytest.mark.usefixtures("added")
def test_a_family_is_read_and_simulated_whole():
    model = Architecture.from_config(FILE)
    assert model.num_params == LLAMA.num_params + 16 * 2048
    plan = Plan(**ONE)
    ours, theirs = peak(model, plan), peak(LLAMA, plan)
    weights = ours.bytes_by_kind["weights"] - theirs.bytes_by_kind["weights"]
    assert weights == 2 * 16 * 2048
    assert ours.peak_bytes > theirs.peak_bytes
    assert timeline(model, plan).total_bytes.max() == ours.peak_bytes
    answer = trainmem.simulate(architecture=model, num_gpus=8)
    assert answer.to_dict()["detail"]["architecture"]["family"] == "toy"
    assert answer.limit("seq_length").value
    assert [fix.grade for fix in answer.fixes()] or answer.grade == "fits"
    with pytest.raises(trainmem.ConfigError, match="lora_rank 8 is not covered for toy") as caught:
        trainmem.simulate(architecture=model, plan={"lora_rank": 8}, num_gpus=8)
    assert caught.value.field == "lora_rank"


@pytest.mark.usefixtures("added")
def test_an_optimizer_is_a_row():
    plain, lion = (
        peak(LLAMA, Plan(**ONE, optimizer=name)).bytes_by_kind["optimizer"]
        for name in ("adamw_foreach", "lion")
    )
    assert 2 * lion == plain
    memory = trainmem.TrainingMemory(architecture="Llama-3.2-1B", optimizer="lion")
    assert memory.simulation.plan.optimizer == "lion"
    assert ("lion", "Lion") in OPTIONS["optimizer"].choices


@pytest.mark.usefixtures("added")
def test_several_optimizers_share_a_model():
    """One moment of every product, two and a scalar of what is not one."""
    found = peak(LLAMA, Plan(**ONE, optimizer="muon")).bytes_by_kind["optimizer"]
    products = sum(
        LLAMA._count({name: p})
        for name, p in LLAMA.layer_parameters.items()
        if p.role is Role.PRODUCT
    )
    matrices = 16 * products
    rest = LLAMA.num_params - matrices
    scalars = 512 * (16 * 2 + 2)
    assert found == pytest.approx(2 * matrices + 2 * 2 * rest + scalars, rel=1e-6)


@pytest.mark.usefixtures("added")
def test_a_stack_brings_its_own_buffers_tensors_and_rules():
    options = {**ONE, "checkpointing": "none"}
    plan = stack("toy", **options)
    compiled = stack("torch.compile", **options)
    ours, theirs = peak(LLAMA, plan), peak(LLAMA, compiled)
    assert ours.states_bytes == theirs.states_bytes + BUFFER
    per_norm = 2 * 1024 * 2048  # bf16, a token's hidden size
    more = ours.phase_bytes["fwd"] - theirs.phase_bytes["fwd"]
    assert more == BUFFER + (2 * LLAMA.num_layers + 1) * per_norm
    memory = trainmem.TrainingMemory(architecture="Llama-3.2-1B", num_gpus=1, zero_stage=0)
    memory.update(stack="toy")
    assert memory.simulation.plan.framework == "toy-framework"
    with pytest.raises(NotCovered, match="varying_lengths is not covered with the toy") as caught:
        stack("toy", **options, varying_lengths=True)
    assert caught.value.field == "varying_lengths"


@pytest.mark.usefixtures("added")
def test_a_name_is_taken_once():
    with pytest.raises(ValueError, match="name 'lion' is taken"):
        add(LION)
    with pytest.raises(TypeError, match="add takes one of Family, Framework"):
        add("lion")


def test_what_is_taken_back_is_unknown_again():
    assert "toy" not in FAMILIES
    assert "toy" not in STACKS
    with pytest.raises(NotCovered, match="optimizer must be one of 'adamw'"):
        Plan(optimizer="lion")
    remove(LION)  # nothing to do


def test_a_name_taken_again_means_what_it_means_now():
    def states(count):
        row = replace(LION, states=(State(),) * count)
        add(row)
        try:
            with_it = trainmem.simulate(architecture=LLAMA, plan={"optimizer": "lion"})
            return with_it.components.optimizer
        finally:
            remove(row)

    assert states(2) == 2 * states(1) > 0
