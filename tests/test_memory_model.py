"""The protocol of a memory model: one from outside answers whole, and nobody guesses at members."""

from __future__ import annotations

import ast
import json
import pickle
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

import trainmem
from trainmem import FIELDS, ConfigError, Fix, TrainingConfig, simulate
from trainmem.limits import Limit
from trainmem.memory_model import MemoryModel, completed
from trainmem.outputs import Outputs
from trainmem.reduced import REDUCED, Components, ReducedModel
from trainmem.transformer import ARCHITECTURES, TransformerModel
from trainmem.verdict import ComponentsCase
from trainmem.widget.words import panel

PACKAGE = Path(trainmem.__file__).parent
GB = 1e9


class Toy(MemoryModel):
    """Two bytes a parameter, shared by all GPUs, and a kilobyte a token; counts its calls."""

    description = "a toy"

    def __init__(self):
        self.asked = Counter()

    def components(self, config, **axes):
        self.asked["components"] += 1
        values = config.to_dict() | axes
        tokens = values["micro_batch"] * values["seq_length"]
        kept = 1e3 if config.grad_ckpt else 2e3
        weights = config.model_params_b * 2e9 / values["num_gpus"] + 0.0 * tokens
        return Components(weights, 0 * weights, 0 * weights, kept * tokens + 0 * weights)

    def capacity_bytes(self, config):
        return config.gpu_memory_gb * GB

    def bytes_per_param(self, config):
        return 2.0

    def case(self, config, need):
        self.asked["case"] += 1
        return super().case(config, need)


class Careful(Toy):
    """A toy with three grades, that takes GPUs by the four."""

    gpu_multiple = 4

    def surely_fits(self, config):
        return 0.8 * self.capacity_bytes(config)

    def grade(self, config, need):
        if need <= self.surely_fits(config):
            return "fits"
        return "uncertain" if need <= self.capacity_bytes(config) else "does not fit"

    def detail(self, config):
        return {"detail": {"grade": "careful"}}

    def offers(self, config, limits):
        for offer in super().offers(config, limits):
            if offer.field == "num_gpus":
                yield offer


class Bare:
    """The four answers alone, of a class that inherits nothing."""

    description = "bare"

    def components(self, config, **axes):
        return Toy().components(config, **axes)

    def capacity_bytes(self, config):
        return Toy().capacity_bytes(config)

    def bytes_per_param(self, config):
        return 2.0


REQUEST = {"gpu_memory_gb": 2.5, "model_params_b": 2, "num_gpus": 1, "micro_batch": 2}


def test_a_model_from_outside_is_simulated_whole():
    s = simulate(model=Toy(), **REQUEST, seq_length=4096)
    tokens = 2 * 4096
    assert s.components == (4e9, 0, 0, 1e3 * tokens)
    assert (s.grade, s.fits) == ("does not fit", False)
    assert s.model_states_unsharded_gb == 4.0
    assert s.global_batch == 2
    assert s.min_gpus_to_fit == 2  # 2 + 0.008 GB
    assert (s.longest_sequence, s.largest_micro_batch) == (None, None)
    assert s.longest_sequence_reason == "even one token needs 4.0 GB"
    assert s.limit("num_gpus") == Limit(2, "fits", 2)
    assert simulate(s.config, model=Toy(), num_gpus=2).longest_sequence == 250_000
    assert s.verdict.startswith("model-state-dominated -- weights and optimizer states dominate")
    assert "(at least 2)" in s.verdict
    assert s.banner.startswith("1.5 GB short. Model-state-dominated: ")
    assert s.fixes() == [
        Fix("num_gpus", 2, "2 GPUs", 2.008),
        Fix("gpu_memory_gb", 16.0, "T4 · 16 GB", 4.008),
    ]
    for fix in s.fixes():
        after = s.after(fix)
        assert after.grade == "fits"
        assert after.per_gpu_total_gb == fix.per_gpu_total_gb
        assert type(after.model) is Toy
    answer = json.loads(json.dumps(s.to_dict()))
    assert list(answer) == list(simulate().to_dict())
    assert answer["model"] == "a toy"
    assert [x for x, _ in answer["profile"]["mem_vs_gpus"]][-1] == 2048
    assert panel(s)["headline"] == "✗ Out of memory"
    assert (s.architecture, s.plan, s.options, s.calibration) == (None, None, {}, None)
    assert s.peak_case is None
    with pytest.raises(ValueError, match="calibrate needs an architecture"):
        s.calibrate(peak_allocated_gib=1)
    copy = pickle.loads(pickle.dumps(s))
    assert copy == s
    assert copy.fixes() == s.fixes()


def test_what_a_model_knows_better_counts():
    s = simulate(model=Careful(), **(REQUEST | {"num_gpus": 2}), seq_length=4096)
    assert (s.fits, s.grade) == (True, "uncertain")
    assert s.limit("num_gpus") == Limit(2, "uncertain", 3)  # 1.341 of 2 GB
    assert set(s.gpu_sweep.x % 4) == {0}
    assert s.to_dict()["detail"] == {"grade": "careful"}
    assert s.fixes() == [Fix("num_gpus", 3, "3 GPUs", 1.342)]
    short = simulate(s.config, model=Careful(), num_gpus=1)
    assert [fix.field for fix in short.fixes()] == ["num_gpus"]


def test_a_class_that_inherits_nothing_may_answer_too():
    s, whole = (simulate(model=model, **REQUEST) for model in (Bare(), Toy()))
    assert s.to_dict()["outputs"] == whole.to_dict()["outputs"]
    assert s.fixes() == whole.fixes()
    assert s.description == "bare"
    assert completed(s.model) is s.model


def test_the_four_answers_are_wanted():
    class Three(Toy):
        capacity_bytes = MemoryModel.capacity_bytes

    with pytest.raises(TypeError, match=r"abstract class Three .*capacity_bytes"):
        Three()
    with pytest.raises(TypeError, match="architecture"):
        TransformerModel()


def test_a_near_value_changes_no_limit():
    config = TrainingConfig(seq_length=65_536, gpu_memory_gb=60)
    for capacity in (30e9, 45e9, 60e9):
        found = REDUCED.largest_that_fits(config, "seq_length", capacity)
        assert REDUCED.largest_that_fits(config, "seq_length", capacity, found + 99) == found
    config = TrainingConfig(model_params_b=70, micro_batch=1)
    for capacity in (20e9, 60e9):
        found = REDUCED.smallest_num_gpus(config, capacity)
        for near in (1, found // 2, found):
            assert REDUCED.smallest_num_gpus(config, capacity, near) == found


# What is computed when.


@pytest.mark.parametrize("given", [{}, {"num_gpus": 1}, {"grad_ckpt": 0}], ids=str)
def test_simulate_evaluates_the_request_and_each_sweep_when_it_is_read(given):
    model = Toy()
    s = simulate(model=model, gpu_memory_gb=9, **given)
    assert model.asked == {"components": 1}
    assert s.gpu_sweep.x.size == s.seq_sweep.x.size == s.gpu_sweep.total_gb.size
    assert model.asked == {"components": 3}
    verdict = s.verdict
    assert model.asked["components"] > 3 or s.fits
    before = model.asked.copy()
    assert (s.verdict, s.outputs()["verdict"]) == (verdict, verdict)
    assert s.min_gpus_to_fit == s.outputs()["min_gpus_to_fit"]
    assert model.asked["case"] == before["case"] == 1


def test_an_architecture_explains_itself_when_asked(monkeypatch):
    asked = Counter()

    def counted(name, own):
        def call(*args, **options):
            asked[name] += 1
            return own(*args, **options)

        monkeypatch.setattr(TransformerModel, name, call)

    for name in ("peak", "levels", "smallest_num_gpus", "largest_that_fits", "changed"):
        counted(name, getattr(TransformerModel, name))
    s = simulate(architecture="Llama-3-8B", gpu="RTX 4090 · 24 GB")
    assert not asked
    case = s.peak_case
    assert (s.grade, case.grade) == ("does not fit", "does not fit")
    assert case.when == "the backward pass of the loss"
    assert asked == {"peak": 1}
    assert s.min_gpus_to_fit is None
    assert asked == {"peak": 1, "smallest_num_gpus": 1}
    assert s.verdict == s.peak_case.sentence()
    assert asked["smallest_num_gpus"] == 1
    assert asked["changed"] == asked["peak"] - 1 > 2  # each remedy tried once


def test_the_outputs_are_fields_as_before():
    names = [f.name for f in fields(Outputs)]
    assert len(names) == 17
    assert names[-1] == "verdict"
    plain = Outputs(**simulate(num_gpus=1).outputs())
    assert repr(plain).startswith("Outputs(model_states_unsharded_gb=128.0, ")
    assert repr(plain).endswith(f"verdict={plain.verdict!r})")
    told = replace(simulate(), verdict="as told", min_gpus_to_fit=None, model=None)
    assert (told.verdict, told.min_gpus_to_fit) == ("as told", None)
    assert told != simulate()
    assert pickle.loads(pickle.dumps(told)) == told


def test_an_answer_from_elsewhere_is_explained_by_what_it_told():
    told = replace(simulate(num_gpus=1, grad_ckpt=0, zero_stage=2), model=None)
    case = ComponentsCase(told.config, told.components, 80e9, None, told.min_gpus_to_fit)
    assert case.banner() == told.banner
    assert case.checkpointing_frees == 0
    assert case.grade == told.grade == "does not fit"


def test_a_fix_with_an_unknown_card_is_refused():
    fix = Fix("gpu_memory_gb", 1.0, "H100", 1.0)
    for s in (simulate(), simulate(architecture="GPT-2")):
        with pytest.raises(ConfigError, match=r"^gpu: 'H100' is not allowed; must be one of T4"):
            s.after(fix)


def test_both_models_are_memory_models():
    config = TrainingConfig(seq_length=1024)
    for model in (REDUCED, TransformerModel(ARCHITECTURES["GPT-2"])):
        assert isinstance(model, MemoryModel)
        total = model.components(config).total
        assert model.grade(config, total) == simulate(config, model=model).grade == "fits"
        assert np.isclose(model.total_by_gpus(config)(config.num_gpus), total)
        changed, then = model.changed(config, {"num_gpus": 4, "gpu": "T4 · 16 GB"})
        assert (type(changed), then.num_gpus) == (type(model), 4)
        assert then.gpu_memory_gb == 16
    assert isinstance(REDUCED, ReducedModel)
    assert {f.name for f in fields(TransformerModel)} >= {"architecture", "gpu", "calibration"}


# Nobody looks for a member by its name.

MEMBERS = {name for kind in (MemoryModel, TransformerModel) for name in dir(kind)} - set(FIELDS)
SOURCES = sorted(PACKAGE.rglob("*.py"))


def guesses(path):
    """Yield the calls of a file that ask a model, or anything, for a model's member by name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
            asked, name = node.args[0], node.args[1]
            member = isinstance(name, ast.Constant) and name.value in MEMBERS
            if member or ast.unparse(asked).split(".")[-1] in ("model", "_model"):
                yield f"{path.name}:{node.lineno}: {ast.unparse(node)}"


def test_no_module_guesses_at_a_models_members(tmp_path):
    assert [guess for path in SOURCES for guess in guesses(path)] == []
    bad = tmp_path / "bad.py"
    bad.write_text("getattr(x, 'gpu_multiple', 1)\nhasattr(self.model, 'grades')\ngetattr(a, 'b')")
    assert len(list(guesses(bad))) == 2
