"""The command line: ``trainmem simulate``, ``plot`` and ``serve``; also ``python -m trainmem``.

Exit status: 0 the step fits, 1 it does not, 2 bad input, 3 no answer (a server that can't be
reached, an extra that isn't installed).
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from trainmem import __version__
from trainmem.cards import GPUS, PRESETS, preset
from trainmem.config import FIELDS, ConfigError
from trainmem.words import grouped

if TYPE_CHECKING:
    from trainmem.limits import Limit
    from trainmem.simulation import Simulation
    from trainmem.transformer import Architecture

FITS: Final = 0
DOES_NOT_FIT: Final = 1
BAD_INPUT: Final = 2
NO_ANSWER: Final = 3

EPILOG: Final = (
    "Exit status: 0 the step fits, 1 it does not, 2 bad input, 3 no answer (the server can't be "
    "reached, or an extra isn't installed)."
)


def main(argv: Sequence[str] | None = None, *, prog: str = "trainmem") -> int:
    """Run one command and return its exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments; those of the process where omitted.
    prog : str
        What it was called as, for help and errors.

    Returns
    -------
    int
        0 fits, 1 does not fit, 2 bad input, 3 no answer.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # "✓" on a terminal that knows only ASCII
    try:
        arguments = parser(prog).parse_args(argv)
        run: Callable[[argparse.Namespace], int] = arguments.run
        return run(arguments)
    except ConfigError as error:
        return _stop(error, BAD_INPUT)
    except ImportError as error:  # names the pip command
        return _stop(error, NO_ANSWER)
    finally:
        _say()


def _say(text: str = "") -> None:
    """Write to stdout; that nobody reads any further (``| head``) is no error."""
    try:
        print(text, end="\n" if text else "", flush=True)
    except OSError as error:
        # What is still buffered goes nowhere, instead of failing again at the interpreter's end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            problem = OSError(f"cannot write to stdout: {error.strerror}")
            raise SystemExit(_stop(problem, NO_ANSWER)) from None


def _stop(error: Exception, status: int) -> int:
    print(f"trainmem: error: {error}", file=sys.stderr)
    return status


def parser(prog: str = "trainmem") -> argparse.ArgumentParser:
    """Return the parser, its request flags made from the table of fields."""
    about = "Does a training step fit in GPU memory: answer, draw, or serve the HTTP API."
    top = _Parser(prog=prog, description=about, epilog=EPILOG)
    top.add_argument("--version", action="version", version=f"trainmem {__version__}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")

    simulate = _command(
        commands, "simulate", "say whether a training step fits, and why", _simulate
    )
    _add_request(simulate)
    simulate.add_argument("--json", action="store_true", help="print the API answer instead")
    simulate.add_argument(
        "--remote", metavar="URL", help="ask this server instead of computing here"
    )

    plot = _command(commands, "plot", "draw the three panels into a file", _plot)
    _add_request(plot)
    plot.add_argument(
        "--timeline",
        action="store_true",
        help="draw the memory of one step over time instead; needs --architecture",
    )
    plot.add_argument(
        "-o", "--output", required=True, metavar="FILE", help="such as memory.png, .svg or .pdf"
    )
    plot.add_argument("--theme", choices=("light", "dark"), default="light", help="default: light")

    serve = _command(commands, "serve", "serve the HTTP API from this machine", _serve)
    serve.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1, this machine only")
    serve.add_argument("--port", type=int, default=8000, help="default: 8000")
    serve.add_argument("--workers", type=int, default=1, help="processes; default: 1")
    serve.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="a web origin whose pages may call it, such as https://example.org; repeatable",
    )
    serve.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name under which a proxy on this machine asks it; repeatable",
    )
    return top


class _Parser(argparse.ArgumentParser):
    """One way to report: no abbreviations, errors in the same form as all others."""

    def __init__(self, **options: object) -> None:
        super().__init__(allow_abbrev=False, **options)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"trainmem: error: {message}; see {self.prog} --help\n")


def _command(
    commands: argparse._SubParsersAction[_Parser],
    name: str,
    text: str,
    run: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    command = commands.add_parser(
        name, help=text, description=f"{text}.".capitalize(), epilog=EPILOG
    )
    command.set_defaults(run=run)
    return command


def _add_request(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--preset",
        metavar="NAME",
        help=f"start from {', '.join(p.name for p in PRESETS)} (or how the name begins)",
    )
    command.add_argument(
        "--architecture",
        metavar="NAME",
        help="answer with the architecture-aware model for this preset, such as Llama-3-8B, or "
        "for a Hugging Face config.json",
    )
    command.add_argument(
        "--plan",
        nargs="+",
        action="extend",
        default=[],
        metavar="OPTION=VALUE",
        help="how the step is run, with --architecture: such as loss_head=chunked accumulation=4",
    )
    command.add_argument(
        "--gpu", metavar="LABEL", help='a card, such as "H100 · 80 GB" (or how its label begins)'
    )
    for field in FIELDS.values():
        command.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=_number,
            metavar="N" if field.kind == "int" else "X",
            help=f"{field.help} It {field.allowed}; default: {field.default:g}.",
        )


def _number(text: str) -> object:
    """Read a number; what isn't one stays text, for the field to refuse by its name."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _request(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what the flags ask of `simulate`, on top of the preset."""
    given = {name: getattr(arguments, name) for name in FIELDS}
    changes = {name: value for name, value in given.items() if value is not None}
    if arguments.gpu is not None:
        changes["gpu"] = _card(arguments.gpu)
    if arguments.architecture is not None:
        changes |= {"architecture": _architecture(arguments.architecture)}
        changes |= {"plan": _options(arguments.plan)}
    elif arguments.plan:
        raise ConfigError("--plan", " ".join(arguments.plan), "it needs --architecture")
    if arguments.preset is not None:
        changes["config"] = preset(arguments.preset)
    return changes


def _card(label: str) -> str:
    """Return the label of the only card whose label is so, or begins so."""
    found = [gpu.label for gpu in GPUS if gpu.label.startswith(label)]
    return found[0] if len(found) == 1 else label


def _architecture(name: str) -> Architecture | str:
    """Return a preset's name as it is, or what a config.json describes."""
    if not name.endswith(".json"):
        return name
    from trainmem.request import read_config

    return read_config(Path(name))


def _options(pairs: Sequence[str]) -> dict[str, object]:
    """Read ``option=value`` pairs."""
    words = {"true": True, "yes": True, "false": False, "no": False}
    options: dict[str, object] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError("--plan", pair, "must be OPTION=VALUE")
        options[name] = words.get(value.lower(), _number(value))
    return options


def _simulate(arguments: argparse.Namespace) -> int:
    from trainmem.simulate_step import simulate

    request = _request(arguments)
    if arguments.remote is None:
        simulation = simulate(**request)
    elif arguments.architecture is not None:
        raise ConfigError("--remote", arguments.remote, "servers have no architectures")
    else:
        config = simulate(**request).config
        from trainmem.http.client import Client  # first: its error names a missing extra
        from trainmem.http.answer import RemoteError  # isort: skip

        try:
            with Client(arguments.remote) as client:
                simulation = client.simulate(config)
        except RemoteError as error:
            return _stop(error, NO_ANSWER)
        except ValueError as error:  # an address that can't be
            return _stop(error, BAD_INPUT)
    if arguments.json:
        _say(json.dumps(simulation.to_dict()))
    else:
        _say("\n".join(_report(simulation)))
    return DOES_NOT_FIT if simulation.grade == "does not fit" else FITS


def _plot(arguments: argparse.Namespace) -> int:
    from trainmem.simulate_step import simulate

    if arguments.timeline and arguments.architecture is None:
        raise ConfigError("--timeline", True, "it needs --architecture")
    simulation = simulate(**_request(arguments))
    draw = simulation.timeline if arguments.timeline else simulation.plot
    try:
        draw(arguments.theme).savefig(arguments.output, dpi=200)
    except (OSError, ValueError) as error:  # a folder that isn't there, a format unknown
        return _stop(error, BAD_INPUT)
    _say(f"{arguments.output}: {_headline(simulation)}")
    return DOES_NOT_FIT if simulation.grade == "does not fit" else FITS


def _serve(arguments: argparse.Namespace) -> int:
    from trainmem.http.server import serve

    try:
        serve(
            host=arguments.host,
            port=arguments.port,
            workers=arguments.workers,
            allow_origin=arguments.allow_origin,
            allow_host=arguments.allow_host,
        )
    except ValueError as error:  # a port or a worker count that can't be
        return _stop(error, BAD_INPUT)
    return 0


def _headline(simulation: Simulation) -> str:
    mark = {"fits": "✓ Fits", "uncertain": "≈ May not fit", "does not fit": "✗ Out of memory"}
    return f"{mark[simulation.grade]}: {simulation.banner}"


def _report(s: Simulation) -> Iterator[str]:
    """Write a simulation for people, line by line."""
    yield _headline(s)
    yield ""
    if s.architecture is not None:
        yield _row("Architecture", f"{s.architecture.name:>14}")
    for field in FIELDS.values():
        yield _row(field.label, _count(getattr(s.config, field.name), field.unit))
    yield ""
    share = f"of {s.gpu_capacity_gb:g}, {s.utilization_percent:g} %"
    yield _row("Memory per GPU", _gb(s.per_gpu_total_gb, share))
    yield _row("  weights", _gb(s.weights_per_gpu_gb))
    yield _row("  gradients", _gb(s.grads_per_gpu_gb))
    yield _row("  optimizer states", _gb(s.optimizer_per_gpu_gb))
    if s.peak_case is None:
        yield _row("  activations", _gb(s.activations_per_gpu_gb))
    else:
        for kind, size in list(s.peak_case.peak.bytes_by_kind.items())[3:]:
            yield _row(f"  {kind}", _gb(size / 1e9))
        for level in s.peak_case.levels:
            low, high = f"{level.low_bytes / 1e9:.1f}", f"{level.high_bytes / 1e9:.1f}"
            yield _row(level.name.capitalize(), f"{low:>8} to {high} GB, {level.label}")
    unsharded = f"unsharded, {s.bytes_per_param:g} bytes per parameter"
    yield _row("Model states", _gb(s.model_states_unsharded_gb, unsharded))
    yield _row("Cluster", _gb(s.aggregate_cluster_gb))
    yield _row("Global batch", _count(s.global_batch, "sequences"))
    yield ""
    fewest = _count(s.min_gpus_to_fit) if s.model is None else _limit(s.limit("num_gpus"))
    yield _row("Minimum GPUs", f"{fewest}: {s.min_gpus_reason}" if s.min_gpus_reason else fewest)
    if s.model is not None:  # a server's answer says no more
        yield _row("Longest sequence", _limit(s.limit("seq_length"), "tokens"))
        yield _row("Largest micro batch", _limit(s.limit("micro_batch"), "sequences"))
        for grade, words in (("fits", "It would fit with"), ("uncertain", "It might fit with")):
            found = [fix for fix in s.fixes() if fix.grade == grade]
            if found:
                yield ""
                yield words
            for fix in found:
                yield _row(f"  {fix.label}", _gb(fix.per_gpu_total_gb))
    yield ""
    yield f"Verdict: {s.verdict}"
    yield f"Computed by {s.node} in {s.compute_ms:g} ms"


def _limit(limit: Limit, unit: str = "") -> str:
    """Write a limit, and beside one that isn't sure to fit the value that is."""
    if limit.grade == "fits" or limit.value is None:
        return _count(limit.value, unit)
    surely = "none" if limit.surely is None else grouped(limit.surely)
    return f"{_count(limit.value, unit)}, uncertain; sure to fit: {surely}"


def _row(label: str, value: str) -> str:
    return f"{label:<22} {value}".rstrip()


def _gb(value: float, note: str = "") -> str:
    return f"{f'{value:,.3f}'.replace(',', ' '):>14} GB {note}"


def _count(value: float | None, unit: str = "") -> str:
    return f"{grouped(value):>14} {unit}".rstrip() if value is not None else f"{'none':>14}"


if __name__ == "__main__":
    sys.exit(main(prog="python -m trainmem"))
