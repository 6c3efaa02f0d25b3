"""The server over a socket: the published command, refusals, settings, a graceful stop."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trainmem
from trainmem import TrainingConfig, simulate

PUBLISHED_URL = "https://www.chipfoundryservices.com"
PUBLISHED_COMMAND = """curl -X POST https://www.chipfoundryservices.com/edge/training \\
  -H "Content-Type: application/json" \\
  -d '{"model_params_b":8,"num_gpus":8,"gpu_memory_gb":80,"micro_batch":4,
       "seq_length":4096,"num_layers":32,"hidden_dim":4096,
       "precision_bits":16,"zero_stage":3,"grad_ckpt":1}'"""
PATHS = [f"/edge/{name}" for name in ("training", "train", "finetune", "fsdp", "zero")]
JSON = {"Content-Type": "application/json"}


def post(
    server: Any, body: Any, headers: dict[str, str] = JSON, path: str = PATHS[0]
) -> tuple[int, Any, http.client.HTTPMessage]:
    """Return status, JSON and headers of one POST; an iterable body is sent in chunks."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read()), answer.headers
    finally:
        connection.close()


def test_published_command_gives_the_published_answer(
    server: Any, published: dict[str, Any], tools: Any
) -> None:
    tools.needs("curl")
    command = PUBLISHED_COMMAND.replace(PUBLISHED_URL, server.url)
    done = subprocess.run(["sh", "-c", command], capture_output=True, timeout=20, check=True)
    answer = json.loads(done.stdout)
    assert list(answer) == list(published)
    assert answer | {"node": 0, "compute_ms": 0} == published | {"node": 0, "compute_ms": 0}
    assert answer["node"]
    assert 0 < answer["compute_ms"] < 1000


@pytest.mark.parametrize("path", PATHS)
def test_every_path_answers_as_simulate(server: Any, path: str) -> None:
    config = TrainingConfig(num_gpus=3, grad_ckpt=0, seq_length=1000)
    status, answer, _ = post(server, json.dumps(config.to_dict()), path=path)
    assert status == 200
    for name in ("model", "inputs", "outputs", "profile", "steps"):
        assert answer[name] == simulate(config).to_dict()[name]


def test_missing_fields_take_the_defaults(server: Any, published: dict[str, Any]) -> None:
    status, answer, headers = post(server, "{}")
    assert (status, answer["outputs"]) == (200, published["outputs"])
    assert headers["Content-Type"] == "application/json"
    assert "Server" not in headers


def test_status_counts(server: Any) -> None:
    before = server.status()
    for _ in range(3):
        post(server, "{}")
    after = server.status()
    assert after["requests_served"] == before["requests_served"] + 4  # the first status too
    assert after["in_flight"] == 1
    assert after["uptime_s"] >= before["uptime_s"] > 0
    assert after["version"] == trainmem.__version__
    assert after["pid"] == server.process.pid


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        ('{"num_gpus": 0}', 422, "num_gpus: 0 is not allowed; must be a whole number from 1 to"),
        ('{"num_gpus": "8"}', 422, "num_gpus: '8' is not allowed"),
        ('{"num_gpus": true}', 422, "num_gpus: True is not allowed"),
        ('{"num_gpus": null}', 422, "num_gpus: None is not allowed"),
        ('{"num_gpu": 8}', 422, "did you mean num_gpus"),
        ('{"zero_stage": 4}', 422, "zero_stage: 4 is not allowed; must be 0, 1, 2 or 3"),
        ('{"gpu_memory_gb": 1e999}', 422, "gpu_memory_gb: inf is not allowed"),
        ('{"gpu_memory_gb": 1e-999}', 422, "gpu_memory_gb: 0.0 is not allowed"),
        ('{"\\ud800": 1}', 422, "unknown field: '\\ud800' is not allowed"),
        ("[1]", 422, "the body must be a JSON object, not [1]"),
        ("null", 422, "the body must be a JSON object, not None"),
        ("", 400, "the body is not JSON"),
        ('{"num_gpus": 8', 400, "the body is not JSON"),
        ('{"num_gpus": NaN}', 400, "the body is not JSON: it has no NaN"),
        ('{"num_gpus": 8, "num_gpus": 9}', 400, "is ambiguous JSON: 'num_gpus' is given twice"),
        ('{"num_gpus": ' + "9" * 50_000 + "}", 400, "the body is not JSON: too many digits"),
        ('{"num_gpus": ' + "9" * 4000 + "}", 422, "num_gpus: an integer of 13288 bits"),
        ("[" * 60_000, 400, "nested too deeply"),
        (b'{"num_gpus": 8}'.decode().encode("utf-16"), 400, "not UTF-8"),
        ("{" + " " * 64_000 + "}", 413, "longer than 64000 bytes"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_bad_body(server: Any, body: Any, status: int, detail: str) -> None:
    got, answer, _ = post(server, body)
    assert got == status
    assert detail in answer["detail"]
    assert len(answer["detail"]) < 400


def test_validation_error_names_field_value_and_range(server: Any) -> None:
    _, answer, _ = post(server, '{"hidden_dim": -3}')
    assert answer["field"] == "hidden_dim"
    assert answer["value"] == "-3"
    assert answer["allowed"] == "must be a whole number from 1 to 1 048 576"


@pytest.mark.parametrize("size", [64_001, 900_000])
@pytest.mark.parametrize("chunked", [False, True])
def test_body_limit_holds_however_it_is_sent(server: Any, size: int, chunked: bool) -> None:
    body = b" " * size
    pieces = (body[at : at + 9000] for at in range(0, size, 9000)) if chunked else body
    assert post(server, pieces)[0] == 413
    assert post(server, b"{}" + b" " * 63_998)[0] == 200


def test_endless_body_is_cut_off(server: Any) -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield b" " * 60_000

    with suppress(ConnectionError):  # it may hang up on the sender before that has read why
        assert post(server, endless())[0] == 413
    assert post(server, "{}")[0] == 200


@pytest.mark.parametrize(
    "media_type",
    [None, "text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1"],
)
def test_media_type(server: Any, media_type: str | None) -> None:
    headers = {"Content-Type": media_type} if media_type else {}
    status, answer, _ = post(server, "{}", headers)
    assert status == 415
    assert "must be" in answer["detail"]
    assert ("there is no Content-Type" in answer["detail"]) == (media_type is None)


@pytest.mark.parametrize("encoding", ["gzip", "br", "identity, gzip", "\u00e9"])
def test_an_encoded_body_is_refused_by_name(server: Any, encoding: str) -> None:
    status, answer, headers = post(server, "{}", JSON | {"Content-Encoding": encoding})
    assert (status, headers["Accept-Encoding"]) == (415, "identity")
    assert f"must not be encoded, and its Content-Encoding is {encoding!r}" in answer["detail"]
    assert post(server, "{}", JSON | {"Content-Encoding": " Identity"})[0] == 200


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1:8000", True),
        ("[::1]:8000", True),
        ("192.168.0.7", True),  # an address is nobody's to give away
        ("localhost", True),
        ("course.localhost:8000", True),
        ("trainmem", True),  # a proxy's name for it: nobody elsewhere can own one without a dot
        ("evil.example", False),
        ("evil.example:8000", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.", True),
        ("evil.example.", False),
        ("1.2.3.4.5", False),
        ("[::1", False),
        ("a b", False),
        ("x:y", False),
        ("user@evil", False),
        ("", False),
    ],
)
def test_names_that_lead_here_from_elsewhere_are_refused(
    server: Any, host: str, allowed: bool
) -> None:
    status, answer, _ = post(server, "{}", JSON | {"Host": host})
    assert status == (200 if allowed else 421)
    assert allowed or f"the host {host!r} is not one of this server's names" in answer["detail"]


@pytest.mark.parametrize("media_type", ["Application/JSON", 'application/json;charset="UTF-8"'])
def test_media_type_in_other_spellings(server: Any, media_type: str) -> None:
    assert post(server, "{}", {"Content-Type": media_type})[0] == 200


def test_wrong_method_path_and_pages(server: Any) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    for method, path, status in (
        ("GET", "/edge/training", 405),
        ("POST", "/edge/status", 405),
        ("POST", "/edge/training/", 404),
        ("GET", "/docs", 404),  # it would load scripts from elsewhere
        ("GET", "/redoc", 404),
    ):
        connection.request(method, path)
        answer = connection.getresponse()
        assert (path, answer.status) == (path, status)
        detail = json.loads(answer.read())["detail"]
        if status == 405:
            assert detail == f"{method!r} is not allowed here; use {answer.headers['Allow']}"
        else:
            assert detail == f"nothing is at {path!r}; the API is POST /edge/training"
    connection.close()


def test_openapi_comes_from_the_table(server: Any, tools: Any) -> None:
    document = tools.fetch(f"{server.url}/openapi.json")
    assert sorted(document["paths"]) == sorted([*PATHS, "/edge/status"])
    body = document["paths"]["/edge/fsdp"]["post"]["requestBody"]["content"]
    properties = body["application/json"]["schema"]["properties"]
    assert list(properties) == list(trainmem.FIELDS)
    assert properties["seq_length"]["maximum"] == trainmem.FIELDS["seq_length"].bounds[1]


def test_openapi_holds(server: Any, tools: Any, tmp_path: Path) -> None:
    command = [tools.needs("schemathesis"), "run", f"{server.url}/openapi.json"]
    options = ["--max-examples=20", "--generation-database=none", "--seed=7", "--no-color"]
    done = subprocess.run(  # in a folder of its own: it leaves its finds behind
        [*command, *options], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "Tested: 6" in done.stdout


# Bodies that nobody means well with

wild_numbers = st.one_of(
    st.integers(),
    st.floats(),
    st.sampled_from(["NaN", "-Infinity", "1e400", "-0", "1e-400", "01", "9" * 100_000, "1E+3"]),
)
wild_values = st.recursive(
    wild_numbers | st.none() | st.booleans() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)
names = st.sampled_from(list(trainmem.FIELDS)) | st.text(max_size=10)


def raw(value: Any) -> str:
    """Write a value as JSON, but strings that look like numbers without quotes."""
    return value if isinstance(value, str) and value[:1] in "N-019" else json.dumps(value)


@st.composite
def bad_bodies(draw: Callable[..., Any]) -> bytes:
    pairs = draw(st.lists(st.tuples(names, wild_values), max_size=4))
    text = "{" + ", ".join(f"{json.dumps(name)}: {raw(value)}" for name, value in pairs) + "}"
    text = draw(st.sampled_from(["", "[" * 3000, '{"a":' * 3000])) + text
    encodings = ["utf-8", "utf-8", "utf-16", "utf-32-le", "utf-8-sig"]
    body: bytes = text.encode(draw(st.sampled_from(encodings)))
    return body[: draw(st.integers(0, len(body)))] if draw(st.booleans()) else body


@settings(max_examples=150, deadline=None)
@given(bad_bodies() | st.binary(max_size=300))
def test_bad_bodies_leave_the_worker_alive(server: Any, body: bytes) -> None:
    pid = server.process.pid
    status, answer, _ = post(server, body)
    if status == 200:  # a lucky one
        assert answer["inputs"] == TrainingConfig.from_mapping(json.loads(body)).to_dict()
    else:
        assert 400 <= status < 500
        assert re.fullmatch(r"[^\n]{10,500}", answer["detail"])
        assert "Traceback" not in answer["detail"]
    assert server.process.poll() is None
    assert server.process.pid == pid


# Settings


def test_failure_shows_no_stack_trace(tools: Any) -> None:
    with tools.running(
        "def broken(_): raise RuntimeError('secret')\nserver.simulate = broken"
    ) as one:
        status, answer, _ = post(one, "{}")
        assert (status, answer) == (500, {"detail": "internal error; the server's log says more"})
        assert post(one, "[]")[0] == 422  # still there
    assert "RuntimeError: secret" in b"".join(one.log).decode()


def test_cors_is_off_unless_allowed(server: Any) -> None:
    headers = post(server, "{}", JSON | {"Origin": "https://course.example"})[2]
    assert "Access-Control-Allow-Origin" not in headers


def test_serve_refuses_what_cannot_be() -> None:
    from trainmem.http.server import serve

    with pytest.raises(ValueError, match="port: 70000 is not allowed"):
        serve(port=70_000)
    with pytest.raises(ValueError, match="workers: 0 is not allowed"):
        serve(workers=0)


@pytest.fixture(scope="module")
def pair(tools: Any) -> Iterator[Any]:
    """Two workers, and every setting other than the default."""
    options = {"node": "node-7", "allow_host": ["gpu.example", "b.example"]}
    options["allow_origin"] = ["https://a.example", "https://b.example"]
    with tools.running(host="0.0.0.0", workers=2, **options) as server:
        yield server


def test_hosts_are_allowed_by_name(pair: Any) -> None:
    for host, status in (("GPU.example:80", 200), ("b.example", 200), ("c.example", 421)):
        assert post(pair, "{}", JSON | {"Host": host})[0] == status


def test_settings_reach_the_workers(pair: Any, tools: Any) -> None:
    pids: set[int] = set()
    tools.wait_until(lambda: len(pids.add(pair.status()["pid"]) or pids) == 2)
    assert pair.process.pid not in pids
    for origin, allowed in (
        ("https://b.example", "https://b.example"),
        ("https://c.example", None),
    ):
        _, answer, headers = post(pair, "{}", JSON | {"Origin": origin})
        assert headers["Access-Control-Allow-Origin"] == allowed
        assert answer["node"] == pair.status()["node"] == "node-7"


def test_wide_binding_warns(pair: Any) -> None:
    log = b"".join(pair.log).decode()
    assert "warning: listening on 0.0.0.0: whoever can reach this machine" in log


def test_workers_answer_without_waiting_for_an_acknowledgement(tools: Any) -> None:
    """Nagle's algorithm is off, on sockets as uvicorn binds them for its workers too."""
    import uvicorn

    from trainmem.http.server import UVICORN_OPTIONS, create_app

    config = uvicorn.Config(create_app, port=0, log_level="warning", **UVICORN_OPTIONS)
    server = uvicorn.Server(config)
    with config.bind_socket() as listening:
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        tools.wait_until(lambda: server.started)
        connection = http.client.HTTPConnection(*listening.getsockname(), timeout=20)
        try:
            connection.request("POST", PATHS[0], "{}", JSON)
            assert connection.getresponse().read()
            (kept,) = server.server_state.connections
            accepted = kept.transport.get_extra_info("socket")
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
        finally:
            connection.close()
            server.should_exit = True
            thread.join(20)
    assert not thread.is_alive()


def test_loopback_does_not_warn(server: Any) -> None:
    assert b"warning" not in b"".join(server.log)


@pytest.mark.parametrize("workers", [1, 2])
def test_stop_lets_requests_in_flight_finish(tools: Any, workers: int) -> None:
    with tools.running(workers=workers) as server:
        body = b'{"num_gpus": 16}'
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as slow:
            head = "POST /edge/train HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            slow.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:5])
            tools.wait_until(lambda: in_flight(server) == 2)
            os.kill(server.process.pid, signal.SIGTERM)
            tools.wait_until(lambda: not server.answers())  # no new ones
            slow.sendall(body[5:])
            answer = b""
            while more := slow.recv(65536):
                answer += more
        assert answer.startswith(b"HTTP/1.1 200")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["inputs"]["num_gpus"] == 16
        server.process.wait(timeout=15)


def in_flight(server: Any) -> int:
    """Return the most that any of a few statuses told: each comes from one worker."""
    return max(server.status()["in_flight"] for _ in range(4))


def test_workers_go_when_their_parent_is_killed(tools: Any) -> None:
    with tools.running(workers=2) as server:
        os.kill(server.process.pid, signal.SIGKILL)
        tools.wait_until(lambda: not server.answers())


def test_body_that_does_not_arrive_is_given_up(tools: Any) -> None:
    with (
        tools.running("bodies.BODY_SECONDS = 0.3") as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=20) as slow,
    ):
        head = "POST /edge/train HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        slow.sendall(f"{head}Content-Length: 10\r\n\r\n{{".encode())
        start = time.monotonic()
        answer = slow.recv(65536)
        assert answer.startswith(b"HTTP/1.1 408")
        assert time.monotonic() - start < 5


def closed_after(connection: socket.socket) -> tuple[bytes, float]:
    """Return what the server still says before it closes a connection, and when it does."""
    start, said = time.monotonic(), b""
    while more := connection.recv(65536):
        said += more
    return said, time.monotonic() - start


@pytest.fixture(scope="module")
def impatient(tools: Any) -> Iterator[Any]:
    with tools.running("protocol.HEAD_SECONDS = 0.6") as server:
        yield server


def test_a_connection_that_never_asks_is_closed(impatient: Any) -> None:
    with socket.create_connection(("127.0.0.1", impatient.port), timeout=20) as idle:
        said, seconds = closed_after(idle)
    assert (said, 0.3 < seconds < 5) == (b"", True)


def test_a_head_that_goes_on_and_on_is_given_up(impatient: Any) -> None:
    with socket.create_connection(("127.0.0.1", impatient.port), timeout=20) as slow:
        slow.sendall(b"POST /edge/train HTTP/1.1\r\nHost: x\r\n")
        start = time.monotonic()
        slow.settimeout(0.1)
        said = b""
        while not said and time.monotonic() - start < 10:
            with suppress(TimeoutError):
                said = slow.recv(65536)
                break
            slow.sendall(b"X-Header: 1\r\n")  # each comes in time
    assert 0.3 < time.monotonic() - start < 5
    assert said.startswith(b"HTTP/1.1 408 ")
    assert b"the request's head did not arrive within 0.6 s" in said


def test_a_connection_kept_by_a_byte_after_an_answer_is_closed(impatient: Any) -> None:
    with socket.create_connection(("127.0.0.1", impatient.port), timeout=20) as kept:
        kept.sendall(b"GET /edge/status HTTP/1.1\r\nHost: x\r\n\r\n")
        assert kept.recv(65536).startswith(b"HTTP/1.1 200")
        kept.sendall(b"G")  # uvicorn's own limit on idle connections ends here
        said, seconds = closed_after(kept)
    assert b"HTTP/1.1 408 " in said
    assert seconds < 5


def test_limits_on_heads_leave_requests_alone(tools: Any) -> None:
    prelude = "protocol.HEAD_SECONDS = 0.3"
    with (
        tools.running(prelude) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=20) as slow,
    ):
        for _ in range(3):  # one connection, each body slower than a head may be
            head = "POST /edge/train HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            slow.sendall(f"{head}Content-Length: 2\r\n\r\n{{".encode())
            time.sleep(0.6)
            slow.sendall(b"}")
            answer = b""
            while b"compute_ms" not in answer:
                answer += slow.recv(65536)
            assert answer.startswith(b"HTTP/1.1 200")
