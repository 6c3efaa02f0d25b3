"""The command line: its output, its exit status, its errors."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from steps import H100, TINY, llama
from trainmem import FIELDS, TrainingConfig, preset, simulate
from trainmem.__main__ import main


@pytest.fixture
def cli(capsys):
    """Run a command in this process; return its status, stdout and stderr."""

    def run(*arguments):
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as stop:
            status = stop.code
        return status, *capsys.readouterr()

    return run


def flags(config):
    return [
        part
        for name, value in config.to_dict().items()
        for part in (f"--{name.replace('_', '-')}", repr(value))
    ]


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, 0),
        ({"num_gpus": 64, "zero_stage": 2}, 0),
        ({"num_gpus": 1}, 1),
        ({"seq_length": 65_536}, 1),
        ({"model_params_b": 0.0025, "gpu_memory_gb": 70.6, "precision_bits": 32}, 0),
    ],
    ids=str,
)
def test_json_is_the_api_answer(cli, changes, status):
    config = TrainingConfig(**changes)
    got, out, err = cli("simulate", "--json", *flags(config))
    assert (got, err) == (status, "")
    answer, expected = json.loads(out), simulate(config).to_dict()
    del answer["compute_ms"], expected["compute_ms"]
    assert json.dumps(answer) == json.dumps(expected)


def test_no_flags_is_the_published_request(cli, reference):
    status, out, _ = cli("simulate", "--json")
    assert status == 0
    assert json.loads(out)["outputs"] == reference["outputs"]


@pytest.mark.parametrize("name", ["Llama-3-8B", "Llama-3-70B · 64×H100", "Llama-3-405B"])
def test_presets(cli, name):
    status, out, _ = cli("simulate", "--preset", name, "--json")
    assert status == 0
    assert json.loads(out)["inputs"] == preset(name).to_dict()


def test_flags_replace_values_of_the_preset(cli):
    status, out, _ = cli("simulate", "--preset", "Llama-3-405B", "--num-gpus", "1e2", "--json")
    assert status == 1
    assert json.loads(out)["inputs"] == preset("Llama-3-405B").replace(num_gpus=100).to_dict()


TABLE = """\
✗ Out of memory: 77.7 GB short. Activation-dominated: activations alone (141.7 GB) exceed \
capacity, so no number of GPUs fits.

Parameters (B)                      8 10⁹ parameters
GPUs                                8
GPU memory                         80 10⁹ bytes
Micro-batch                         4 sequences
Sequence                       65 536 tokens
Layers                             32
Hidden size                      4096
Precision                          16 bits
ZeRO stage                          3
Checkpointing                       1

Memory per GPU                157.734 GB of 80, 197.2 %
  weights                       2.000 GB
  gradients                     2.000 GB
  optimizer states             12.000 GB
  activations                 141.734 GB
Model states                  128.000 GB unsharded, 16 bytes per parameter
Cluster                     1 261.900 GB
Global batch                       32 sequences

Minimum GPUs                     none: activations alone (141.7 GB) exceed capacity
Longest sequence               29 592 tokens
Largest micro batch                 1 sequences

It would fit with
  micro batch 1                51.433 GB
  sequence 29 592              79.998 GB
  B200 · 180 GB               157.734 GB

Verdict: activation-dominated -- activations dominate, 77.7 GB over capacity; a smaller micro \
batch or a shorter sequence is what frees memory here; no GPU count fits: activations alone \
(141.7 GB) exceed capacity; ZeRO-3 / FSDP (fully sharded)
Computed by """


def test_the_table_whole(cli):
    status, out, err = cli("simulate", "--seq-length", 65_536)
    assert (status, err) == (1, "")
    assert out.startswith(TABLE)
    assert out.count("\n") == TABLE.count("\n") + 1


def test_the_table_where_it_fits(cli):
    status, out, _ = cli("simulate")
    assert status == 0
    assert out.startswith("✓ Fits: 55.1 GB of headroom. Model-state-dominated: ")
    assert "\nMinimum GPUs                        2\n" in out
    assert "\nLargest micro batch                28 sequences\n" in out
    assert "It would fit with" not in out


def test_the_table_where_nothing_helps(cli):
    status, out, _ = cli("simulate", "--preset", "Llama-3-405B", "--zero-stage", 0, "--num-gpus", 1)
    assert status == 1
    assert "\nMinimum GPUs                     none: stage 0 shards nothing\n" in out
    assert "\nLongest sequence                 none\n" in out
    assert "It would fit with" not in out


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("text", ["many", "", "8,5", "nan", "inf", "-1", "1e999", "0x10", "True"])
def test_bad_values_name_the_field_the_value_and_what_is_allowed(cli, name, text):
    flag = f"--{name.replace('_', '-')}={text}"
    status, out, err = cli("simulate", flag)
    assert (status, out) == (2, "")
    assert err.startswith(f"trainmem: error: {name}: ")
    assert err.endswith(f" is not allowed; {FIELDS[name].allowed}\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "arguments are required: COMMAND"),
        (["simulator"], "'simulator'"),
        (["simulate", "--gpus", "8"], "unrecognized arguments: --gpus 8"),
        (["simulate", "--num-gpu", "8"], "unrecognized arguments: --num-gpu 8"),
        (["simulate", "--num-gpus"], "--num-gpus: expected one argument"),
        (["simulate", "--preset", "GPT-5"], "preset: 'GPT-5' is not allowed; must be one of Llama"),
        (["simulate", "--preset", ""], "preset: '' is not allowed; must be one of Llama"),
        (["plot"], "-o/--output"),
        (["plot", "-o", "x.png", "--theme", "pink"], "'pink'"),
        (["serve", "--port", "x"], "--port: invalid int value: 'x'"),
    ],
    ids=" ".join,
)
def test_bad_usage(cli, arguments, words):
    status, out, err = cli(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("trainmem: error: ")
    assert words in err


@pytest.mark.parametrize(
    ("name", "magic"), [("memory.png", b"\x89PNG"), ("memory.svg", b"<?xml"), ("m.pdf", b"%PDF")]
)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_plot_writes_a_picture(cli, tmp_path, name, magic, theme):
    path = tmp_path / name
    status, out, err = cli("plot", "-o", path, "--theme", theme, "--num-gpus", 64)
    assert (status, err) == (0, "")
    assert out.startswith(f"{path}: ✓ Fits: 69.1 GB of headroom. ")
    assert path.read_bytes().startswith(magic)
    assert path.stat().st_size > 5000


def test_plot_says_when_it_does_not_fit(cli, tmp_path):
    status, out, _ = cli("plot", "-o", tmp_path / "m.png", "--num-gpus", 1)
    assert status == 1
    assert "✗ Out of memory: 56.9 GB short" in out
    assert (tmp_path / "m.png").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [("memory.docx", "Format 'docx' is not supported"), ("none/memory.png", "No such file")],
)
def test_plot_into_nowhere(cli, tmp_path, name, words):
    status, out, err = cli("plot", "-o", tmp_path / name)
    assert (status, out) == (2, "")
    assert err.startswith("trainmem: error: ")
    assert words in err


def test_help_shows_every_field(cli):
    status, out, _ = cli("simulate", "--help")
    assert status == 0
    text = " ".join(out.split())
    for name, field in FIELDS.items():
        assert f"--{name.replace('_', '-')}" in text
        assert f"{field.help} It {field.allowed}; default: {field.default:g}." in text
    assert "Exit status: 0 the step fits, 1 it does not, 2 bad input" in text


# As a process.


def python_m(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "trainmem", *arguments],
        capture_output=True,
        timeout=120,
        check=False,
        **options,
    )


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(["simulate"], 0), (["simulate", "--num-gpus", "1"], 1), (["simulate", "--num-gpus", "x"], 2)],
)
def test_exit_status_of_the_process(arguments, status):
    assert python_m(*arguments).returncode == status


def test_a_terminal_that_knows_only_ascii(monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = python_m("simulate")
    assert done.returncode == 0
    assert done.stdout.startswith(b"? Fits: 55.1 GB of headroom.")


@pytest.fixture(scope="module")
def server():
    """Return the address of `python -m trainmem serve`, and its process."""
    pytest.importorskip("fastapi")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "trainmem", "serve", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            deadline = time.monotonic() + 60
            while True:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/edge/status", timeout=5)
                    break
                except urllib.error.URLError:
                    assert process.poll() is None, process.stdout.read().decode()
                    assert time.monotonic() < deadline, "the server didn't start"
                    time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            assert process.wait(30) in (0, -15)


@pytest.mark.parametrize("changes", [{}, {"num_gpus": 1}, {"seq_length": 65_536}], ids=str)
def test_remote_answers_as_here(cli, server, changes):
    config = TrainingConfig(**changes)
    status, out, err = cli("simulate", "--remote", server, "--json", *flags(config))
    assert err == ""
    assert status == (0 if simulate(config).fits else 1)
    answer, expected = json.loads(out), simulate(config).to_dict()
    for part in (answer, expected):
        del part["compute_ms"], part["node"]
    assert json.dumps(answer) == json.dumps(expected)


def test_remote_table(cli, server):
    status, out, _ = cli("simulate", "--remote", server, "--seq-length", 65_536)
    assert status == 1
    assert out.startswith("✗ Out of memory: 77.7 GB short.")
    assert "\nMemory per GPU                157.734 GB of 80, 197.2 %\n" in out


def test_remote_that_is_not_there(cli):
    pytest.importorskip("httpx")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{probe.getsockname()[1]}"
        status, out, err = cli("simulate", "--remote", address)
    assert (status, out) == (3, "")
    assert err.startswith("trainmem: error: cannot connect to 127.0.0.1:")


def test_remote_with_bad_input_is_refused_here(cli):
    status, _, err = cli("simulate", "--remote", "http://127.0.0.1:1", "--num-gpus", 0)
    assert status == 2
    assert err.startswith("trainmem: error: num_gpus: 0 is not allowed")


@pytest.mark.parametrize(
    ("command", "module", "extra"),
    [(["simulate", "--remote", "http://x"], "httpx", "remote"), (["serve"], "fastapi", "server")],
)
def test_a_missing_extra_names_the_pip_command(cli, monkeypatch, command, module, extra):
    for name in (module, "trainmem.http.client", "trainmem.http.server"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    status, out, err = cli(*command)
    assert (status, out) == (3, "")
    assert f"pip install 'trainmem[{extra}]'" in err


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell")
@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("simulate", 0),
        ("simulate --num-gpus 1 --json", 1),
        ("--help", 0),
        ("--version", 0),
    ],
)
@pytest.mark.parametrize("options", ["", "-u"])
def test_who_stops_reading_is_no_error(command, status, options):
    script = f"sleep 0.2; {sys.executable} {options} -m trainmem {command}; echo $? >&2"
    done = subprocess.run(  # the reader is gone before anything is written
        ["bash", "-c", f"({script}) | true"], capture_output=True, text=True, check=False
    )
    assert done.stderr == f"{status}\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_named():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "trainmem", "simulate"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    problem = "cannot write to stdout: No space left on device"
    assert (done.returncode, done.stderr) == (3, f"trainmem: error: {problem}\n")


def test_a_bad_variable_of_the_environment_is_bad_input(cli, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://[")
    status, out, err = cli("simulate", "--remote", "https://a.example")
    assert (status, out) == (2, "")
    assert err == "trainmem: error: HTTPS_PROXY: 'http://[' is not the address of a proxy\n"


def test_the_command_line_answers_for_an_architecture(capsys, tmp_path):
    assert main(["simulate", "--architecture", "Llama-3-8B", "--gpu", "H100", "--plan",
                 "loss_head=chunked", "accumulation=2", "--json"]) == 0  # fmt: skip
    answer = json.loads(capsys.readouterr().out)
    assert (answer["plan"]["loss_head"], answer["plan"]["accumulation"]) == ("chunked", 2)
    assert answer["detail"]["gpu"] == H100
    assert main(["simulate", "--architecture", "Llama-3-8B", "--grad-ckpt", "0"]) == 1
    assert "logits and loss" in capsys.readouterr().out
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY))
    assert (
        main(["plot", "--timeline", "--architecture", str(path), "-o", str(tmp_path / "t.png")])
        == 0
    )
    assert (tmp_path / "t.png").stat().st_size > 10_000


def test_the_report_is_in_decimal_gigabytes(capsys):
    s = llama(micro_batch=8)
    main(["simulate", "--architecture", "Llama-3-8B", "--gpu", "H100", "--micro-batch", "8"])
    lines = capsys.readouterr().out.splitlines()
    rows = {line[:22].strip(): line[22:].split() for line in lines}
    assert rows["Memory per GPU"][:4] == [f"{s.components.total / 1e9:.3f}", "GB", "of", "84.933,"]
    kinds = dict(list(s.peak_case.peak.bytes_by_kind.items())[3:])
    assert "logits and loss" in kinds
    for kind, size in kinds.items():
        assert rows[kind] == [f"{size / 10**9:.3f}", "GB"]
    for level in s.peak_case.levels:
        low, high = level.low_bytes / 10**9, level.high_bytes / 10**9
        assert rows[level.name.capitalize()][:4] == [f"{low:.1f}", "to", f"{high:.1f}", "GB,"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["plot", "--timeline", "-o", "x.png"],
        ["simulate", "--plan", "loss_head=chunked"],
        ["simulate", "--architecture", "nonsense"],
        ["simulate", "--architecture", "/nowhere/config.json"],
        ["simulate", "--architecture", "GPT-2", "--plan", "loss_head"],
        ["simulate", "--architecture", "GPT-2", "--remote", "http://localhost:1"],
        ["simulate", "--gpu", "A100"],
    ],
)
def test_the_command_line_refuses_in_one_line(arguments, capsys):
    assert main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1
