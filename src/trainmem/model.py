"""`TrainingMemory`: the simulation as traits, for notebooks and for plain Python alike.

Set an input and every output follows before the assignment returns. No browser, no IPython.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

from traitlets import Bool, Float, HasTraits, Instance, Int, TraitType, Unicode, observe

from trainmem.config import FIELDS, GPUS, PRESETS, ConfigError, TrainingConfig, check_names
from trainmem.limits import MemoryModel
from trainmem.reduced import REDUCED
from trainmem.simulation import OUTPUT_NAMES, Simulation, simulate

__all__ = ["TrainingMemory"]

GPU_LABELS: Final = {gpu.label: gpu for gpu in GPUS}


def check_gpu(value: object) -> str:
    """Return the label of a known card, or "", or raise `ConfigError`."""
    if not isinstance(value, str) or (value and value not in GPU_LABELS):
        raise ConfigError("gpu", value, 'must be "" or one of ' + ", ".join(GPU_LABELS))
    return value


class Guarded(TraitType[Any, Any]):
    """A trait that one thread sets at a time, so that no change is lost to another's."""

    def set(self, obj: Any, value: Any) -> None:
        """Set the value, observers included; a good one clears `error`."""
        with obj._lock:
            super().set(obj, value)
            obj.set_trait("error", "")


class Input(Guarded):
    """One of the ten inputs: validated by the field table, never coerced from a string."""

    def __init__(self, name: str) -> None:
        self.field = FIELDS[name]
        super().__init__(self.field.default, help=f"{self.field.help} {self.field.allowed}.")
        self.tag(sync=True, kind="input")

    def validate(self, obj: Any, value: Any) -> int | float:
        """Return the value as the field's plain number, or raise `ConfigError`."""
        with obj.refusing():
            return self.field.validate(value)


class Gpu(Guarded, Unicode[str, str]):
    """Label of a card in the GPU table, or "" for a size that was typed."""

    def validate(self, obj: Any, value: Any) -> str:
        """Return the label, or raise `ConfigError` with the known ones."""
        with obj.refusing():
            return check_gpu(value)


def _output(kind: Callable[..., Any], text: str, **options: Any) -> Any:
    return kind(read_only=True, help=text, **options).tag(sync=True, kind="output")


class TrainingMemory(HasTraits):
    """One training step whose ten inputs and all outputs are traits.

    Parameters
    ----------
    config : TrainingConfig, optional
        Starting point; the published reference request where omitted.
    **inputs
        Inputs that replace those of `config`, and `gpu`.

    Attributes
    ----------
    simulation : Simulation
        The whole answer for the present inputs.
    error : str
        Why the last change was refused; empty after one that was taken. A refused change
        raises `ConfigError` and leaves the last good state.

    Raises
    ------
    TypeError
        For a keyword that isn't an input.
    ConfigError
        For a bad value.

    Examples
    --------
    >>> memory = TrainingMemory(num_gpus=64)
    >>> memory.zero_stage = 1
    >>> memory.fits
    True
    >>> memory.update(zero_stage=3, seq_length=8192)  # computes once
    """

    model_params_b = Input("model_params_b")
    num_gpus = Input("num_gpus")
    gpu_memory_gb = Input("gpu_memory_gb")
    micro_batch = Input("micro_batch")
    seq_length = Input("seq_length")
    num_layers = Input("num_layers")
    hidden_dim = Input("hidden_dim")
    precision_bits = Input("precision_bits")
    zero_stage = Input("zero_stage")  # also the output of that name
    grad_ckpt = Input("grad_ckpt")
    gpu = Gpu(
        PRESETS[0].gpu, help='Card that `gpu_memory_gb` belongs to; "" for a size that was typed.'
    ).tag(sync=True)

    model_states_unsharded_gb = _output(Float, "Model states of the whole model, GB.")
    model_states_per_gpu_gb = _output(Float, "Model states on one GPU, GB.")
    activations_per_gpu_gb = _output(Float, "Activations at the peak on one GPU, GB.")
    per_gpu_total_gb = _output(Float, "All that one GPU needs, GB.")
    gpu_capacity_gb = _output(Float, "Memory of one GPU, GB.")
    utilization_percent = _output(Float, "Need over capacity, percent.")
    fits = _output(Bool, "Whether the step fits.")
    bytes_per_param = _output(Float, "Bytes of model states per parameter.")
    weights_per_gpu_gb = _output(Float, "Weights on one GPU, GB.")
    grads_per_gpu_gb = _output(Float, "Gradients on one GPU, GB.")
    optimizer_per_gpu_gb = _output(Float, "Optimizer states on one GPU, GB.")
    min_gpus_to_fit = _output(Int, "Fewest GPUs that fit, or None.", allow_none=True)
    aggregate_cluster_gb = _output(Float, "Need of all GPUs together, GB.")
    global_batch = _output(Int, "Sequences per step over all GPUs.")
    checkpointing = _output(Bool, "Whether activations are checkpointed.")
    verdict = _output(Unicode, "What dominates, what frees memory, the stage in words.")

    headroom_gb = _output(Float, "Capacity less need, GB; negative where it does not fit.")
    longest_sequence = _output(Int, "Longest sequence that fits, or None.", allow_none=True)
    largest_micro_batch = _output(Int, "Largest micro batch that fits, or None.", allow_none=True)
    min_gpus_reason = _output(Unicode, "Why no GPU count fits, or None.", allow_none=True)

    simulation = Instance(Simulation, read_only=True, help="The whole answer.")
    error = Unicode(read_only=True, help="Why the last change was refused, or empty.").tag(
        sync=True
    )

    def __init__(self, config: TrainingConfig | None = None, **inputs: Any) -> None:
        self._lock = threading.RLock()
        # First, so that a widget opens with its first answer.
        self._apply(*self._starting_point(config, inputs))
        super().__init__()

    def _starting_point(
        self, config: TrainingConfig | None, inputs: dict[str, Any]
    ) -> tuple[TrainingConfig, str]:
        """Return the config and the card that the constructor's keywords ask for."""
        for name in [name for name in inputs if name != "gpu"]:
            try:
                check_names([name])
            except ConfigError as error:
                raise TypeError(
                    f"{type(self).__name__}() got an unexpected keyword argument {name!r}: "
                    f"{error.allowed}"
                ) from None
        if config is not None and not isinstance(config, TrainingConfig):
            raise TypeError(f"config must be a TrainingConfig, not {type(config).__name__}")
        return _changed(config or TrainingConfig(), self.gpu, inputs)

    def __repr__(self) -> str:
        """One line: the result and the inputs that differ from the defaults."""
        given = [
            f"{name}={getattr(self, name)!r}"
            for name, field in FIELDS.items()
            if getattr(self, name) != field.default
        ]
        mark = "fits" if self.fits else "does not fit"
        result = f"{self.per_gpu_total_gb:.1f} / {self.gpu_capacity_gb:g} GB {mark}"
        return f"<{type(self).__name__} {result}{': ' if given else ''}{', '.join(given)}>"

    @property
    def config(self) -> TrainingConfig:
        """The present inputs, as a config."""
        return TrainingConfig(**{name: getattr(self, name) for name in FIELDS})

    @property
    def memory_model(self) -> MemoryModel:
        """The memory model that answers."""
        return REDUCED

    def update(self, /, **changes: Any) -> None:
        """Change several inputs at once: all or none, computed once.

        Parameters
        ----------
        **changes
            New values of inputs, and `gpu`.

        Raises
        ------
        ConfigError
            For an unknown name or a bad value; nothing has changed then.
        """
        with self._lock, self.refusing():
            self._change(changes)

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Show in `error` why a change is refused, and let the exception on."""
        try:
            yield
        except ConfigError as error:
            self.set_trait("error", str(error))
            raise

    @observe(*FIELDS, "gpu")
    def _input_changed(self, _change: Mapping[str, Any]) -> None:
        with self._lock:
            if self._pending():
                self._change({})

    def _pending(self) -> dict[str, Any]:
        """Return the inputs that the outputs don't belong to yet; none after `_apply`."""
        done = {**self.simulation.config.to_dict(), "gpu": self._gpu}
        return {name: getattr(self, name) for name in done if getattr(self, name) != done[name]}

    def _change(self, changes: Mapping[str, Any]) -> None:
        changes = {**self._pending(), **changes}
        self._apply(*_changed(self.simulation.config, self._gpu, changes))

    def _apply(self, config: TrainingConfig, gpu: str) -> None:
        """Compute, then publish inputs and outputs together: observers see one state."""
        simulation = simulate(config, model=self.memory_model)
        self._gpu = gpu
        with self._publishing(), self.hold_trait_notifications():
            for name, value in config.to_dict().items():
                self.set_trait(name, value)
            self.set_trait("gpu", gpu)
            for name in OUTPUT_NAMES:
                if name != "zero_stage":
                    self.set_trait(name, getattr(simulation, name))
            for name in ("headroom_gb", "longest_sequence", "largest_micro_batch"):
                self.set_trait(name, getattr(simulation, name))
            self.set_trait("min_gpus_reason", simulation.min_gpus_reason)
            self.set_trait("simulation", simulation)
            self.set_trait("error", "")

    def _publishing(self) -> AbstractContextManager[None]:
        """Return the context in which one change is published; the widget adds to it."""
        return nullcontext()


def _changed(
    config: TrainingConfig, gpu: str, changes: Mapping[str, Any]
) -> tuple[TrainingConfig, str]:
    """Return the config and the card after some changes, which may name a card.

    A chosen card brings its memory, unless a size is given too. The card stays while its size
    does; another size was typed, and is of no card.
    """
    inputs = {name: value for name, value in changes.items() if name != "gpu"}
    check_names(inputs)
    if "gpu" in changes:
        gpu = check_gpu(changes["gpu"])
        if gpu:
            inputs = {"gpu_memory_gb": GPU_LABELS[gpu].nominal_gb, **inputs}
    config = config.replace(**inputs)
    card = GPU_LABELS.get(gpu)
    return config, gpu if card and card.nominal_gb == config.gpu_memory_gb else ""
