"""`TrainingMemory`: the simulation as traits, for notebooks and for plain Python alike.

Set an input and every output follows before the assignment returns. No browser, no IPython.
With an `architecture` the architecture-aware model answers; without, the reduced-order one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from os import PathLike
from typing import Any, Final, Unpack

from traitlets import Bool, Float, HasTraits, Instance, Int, Unicode, observe

from trainmem.cards import PRESETS
from trainmem.config import FIELDS, ConfigError, TrainingConfig, check_names, in_words, takes
from trainmem.memory_model import MemoryModel
from trainmem.outputs import OUTPUT_NAMES
from trainmem.request import (
    DERIVED,
    PLAN_OPTIONS,
    AllInputs,
    card_of,
    check_derived,
    find_architecture,
    read_config,
)
from trainmem.simulate_step import simulate
from trainmem.simulation import Simulation
from trainmem.transformer import ARCHITECTURES, Architecture
from trainmem.widget.inputs import Chosen, Gpu, Input, Options
from trainmem.widget.state import EXTRA_INPUTS, NOTHING, State, next_state
from trainmem.words import describe

__all__ = ["TrainingMemory"]


def _output(kind: Callable[..., Any], text: str, **options: Any) -> Any:
    return kind(read_only=True, help=text, **options).tag(sync=True, kind="output")


class Changes(AllInputs, total=False):
    """What `update` takes: the inputs, and names that stand for several."""

    stack: str
    preset: str


class TrainingMemory(HasTraits):
    """One training step whose ten inputs and all outputs are traits.

    Parameters
    ----------
    config : TrainingConfig, optional
        Starting point; the published reference request where omitted.
    **inputs
        Inputs that replace those of `config`, `gpu`, `architecture` (a name, or an
        `Architecture`), `plan` (a dict of options, or a whole `Plan`), and options of the plan
        by name.

    Attributes
    ----------
    simulation : Simulation
        The whole answer for the present inputs.
    error : str
        Why the last change was refused; empty after one that was taken. A refused change
        raises `ConfigError` and leaves the last good state, and so does one that raises
        anything else while it is computed.

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
    >>> memory.update(architecture="Llama-3-8B", loss_head="chunked")

    Notes
    -----
    Copies and pickles hold the inputs, and compute the outputs anew; observers and links stay
    with the original.
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

    architecture = Chosen(
        "", help='Architecture that the architecture-aware model answers for; "" for none.'
    ).tag(sync=True)
    plan = Options(help="Options of the plan that differ from the defaults.").tag(sync=True)

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

    grade = _output(Unicode, "`fits`, `uncertain` (only with an architecture) or `does not fit`.")
    simulation = Instance(Simulation, read_only=True, help="The whole answer.")
    error = Unicode(read_only=True, help="Why the last change was refused, or empty.").tag(
        sync=True
    )

    @takes(AllInputs)
    def __init__(self, config: TrainingConfig | None = None, **inputs: Unpack[AllInputs]) -> None:
        self._lock = threading.RLock()
        self._refused_field = ""  # what `error` is about
        self._opened: Architecture | None = None
        # First, so that a widget opens with its first answer.
        self._apply(self._starting_point(config, inputs))
        super().__init__()

    def __reduce__(self) -> tuple[Any, ...]:
        with self._lock:
            return _restored, (type(self), self._state, self._opened)

    @classmethod
    def _keywords(cls) -> tuple[str, ...]:
        """Return what the constructor takes, the ten inputs apart."""
        return ("config", *EXTRA_INPUTS, *PLAN_OPTIONS)

    def _starting_point(self, config: TrainingConfig | None, inputs: Mapping[str, Any]) -> State:
        """Return the state that the constructor's keywords ask for."""
        for name in inputs:
            if name not in EXTRA_INPUTS and name not in PLAN_OPTIONS:
                try:
                    check_names([name], self._keywords())
                except ConfigError as error:
                    raise TypeError(
                        f"{type(self).__name__}() got an unexpected keyword argument "
                        f"{describe(name)}: {error.allowed}"
                    ) from None
        if config is not None and not isinstance(config, TrainingConfig):
            raise TypeError(f"config must be a TrainingConfig, not {type(config).__name__}")
        self._state = State(config or TrainingConfig(), card_of(config, inputs))
        state = next_state(self._state, inputs, self.find)
        if state.options and state.architecture is None:
            raise ConfigError("plan", dict(state.options), "it needs an architecture")
        return state

    def __repr__(self) -> str:
        """One line: the result and the inputs that differ from the defaults."""
        given = [
            f"{name}={getattr(self, name)!r}"
            for name, field in FIELDS.items()
            if getattr(self, name) != field.default and not (self.architecture and name in DERIVED)
        ]
        if self.architecture:
            given.insert(0, f"architecture={self.architecture!r}")
            given += [f"{name}={value!r}" for name, value in self.plan.items()]
        result = f"{self.per_gpu_total_gb:.1f} / {self.gpu_capacity_gb:g} GB {self.grade}"
        return f"<{type(self).__name__} {result}{': ' if given else ''}{', '.join(given)}>"

    @property
    def config(self) -> TrainingConfig:
        """The present inputs, as a config."""
        return TrainingConfig(**{name: getattr(self, name) for name in FIELDS})

    @property
    def memory_model(self) -> MemoryModel:
        """The memory model that answers."""
        return self._state.model

    @takes(Changes)
    def update(self, /, **changes: Unpack[Changes]) -> None:
        """Change several inputs at once: all or none, computed once.

        Parameters
        ----------
        **changes
            New values of inputs, `gpu`, `architecture` and `plan` (a whole `Plan` brings the
            inputs that it says); an option of the plan by its name changes that one alone.
            `stack` names a training stack, `preset` a preset.

        Notes
        -----
        What a choice changes beside itself, it gives back. Leaving an architecture (``""``)
        returns the ten inputs to what they were before it, and leaving a stack for another
        returns what it set, except for what was changed since; those that follow from the
        architecture always return. A preset sets all ten, those behind an architecture too.

        Raises
        ------
        ConfigError
            For an unknown name, a bad value, an input that follows from the architecture, or a
            combination that isn't covered; nothing has changed then.
        """
        with self._lock:
            self._change(changes)

    def open_config(
        self, config: Mapping[str, Any] | str | PathLike[str], name: str = ""
    ) -> Architecture:
        """Choose the architecture of a Hugging Face `config.json`.

        Parameters
        ----------
        config : mapping, str or path
            Its contents, its text, or the path of the file.
        name : str
            What to call it; by default what the file says.

        Returns
        -------
        Architecture

        Raises
        ------
        ConfigError
            Naming the field that is missing, wrong or not covered; nothing has changed then.
        """
        with self._lock, self.refusing():
            found = find_architecture(read_config(config, name))
        with self._lock:
            self._change({"architecture": found})
        return found

    def find(self, value: Any) -> Architecture | None:
        """Return the architecture of that name, the opened one included; None for ""."""
        if isinstance(value, str) and value == "":
            return None
        for known in (self._state.architecture, self._opened):
            if known is not None and value == known.name:
                return known
        return find_architecture(value)

    def check_input(self, name: str, value: Any) -> int | float:
        """Return the value of one of the ten inputs as its plain number.

        Raises
        ------
        ConfigError
            For a bad value, or another than what follows from the architecture.
        """
        number = FIELDS[name].validate(value)
        if self._state.architecture is not None:
            check_derived(self._state.architecture, name, number)
        return number

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Show in `error` why a change is refused, and let the exception on."""
        try:
            yield
        except Exception as error:  # a model may fail in any way
            self.say_refused(error)
            raise

    def say_refused(self, error: Exception) -> None:
        """Show why a change is refused, and keep which field that is about."""
        self._refused_field = error.field if isinstance(error, ConfigError) else ""
        self.set_trait("error", in_words(error))

    @observe(*FIELDS, "gpu", "architecture", "plan")
    def _input_assigned(self, _change: Mapping[str, Any]) -> None:
        with self._lock:
            pending = self._pending()
            if pending:
                try:
                    self._change({})
                except Exception:  # each value is good, but not together
                    why = self.error
                    for name in pending:
                        self.set_trait(name, self._traits_of(self._state)[name])
                    self.set_trait("error", why)
                    raise

    def _pending(self) -> dict[str, Any]:
        """Return the inputs that the outputs don't belong to yet; none after `_apply`."""
        done = self._traits_of(self._state)
        return {name: getattr(self, name) for name in done if getattr(self, name) != done[name]}

    @staticmethod
    def _traits_of(state: State) -> dict[str, Any]:
        """Return the input traits of a state."""
        return {
            **state.config.to_dict(),
            "gpu": state.gpu,
            "architecture": state.architecture.name if state.architecture else "",
            "plan": dict(state.options),
        }

    def _change(self, changes: Mapping[str, Any], also: Mapping[str, Any] = NOTHING) -> None:
        with self.refusing():
            state = next_state(self._state, {**self._pending(), **changes}, self.find, also)
        self._apply(state)

    def _apply(self, state: State) -> None:
        """Compute, then publish inputs and outputs together: observers see one state.

        All that can fail comes first, while the last state is whole.
        """
        with self.refusing():
            simulation = simulate(state.config, model=state.model)
            outputs = {name: getattr(simulation, name) for name in SHOWN_OUTPUTS}
            self._prepare(simulation)
        self._state = state
        if state.architecture is not None and state.architecture.name not in ARCHITECTURES:
            self._opened = state.architecture
        with self._publishing(), self.hold_trait_notifications():
            for name, value in self._traits_of(state).items():
                self.set_trait(name, value)
            for name, value in outputs.items():
                self.set_trait(name, value)
            self.set_trait("simulation", simulation)
            self.set_trait("error", "")

    def _prepare(self, simulation: Simulation) -> None:
        """Make ready what is shown of an answer; what raises here refuses the change."""

    def _publishing(self) -> AbstractContextManager[None]:
        """Return the context in which one change is published; the widget adds to it."""
        return nullcontext()


def _restored(
    kind: type[TrainingMemory], state: State, opened: Architecture | None
) -> TrainingMemory:
    """Return a model with the inputs of another, for copies and pickles."""
    memory = kind.__new__(kind)
    TrainingMemory.__init__(memory, state.config)
    memory._opened = opened
    memory._apply(state)
    return memory


SHOWN_OUTPUTS: Final = (
    *(name for name in OUTPUT_NAMES if name != "zero_stage"),  # which is an input too
    "headroom_gb",
    "longest_sequence",
    "largest_micro_batch",
    "grade",
    "min_gpus_reason",
)
"""What of an answer is a trait."""
