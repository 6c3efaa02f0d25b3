"""The client against a real server and against one that misbehaves, over sockets."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

import trainmem
from trainmem import (
    AsyncClient,
    BadAnswer,
    CannotConnect,
    Client,
    ConfigError,
    Refused,
    TimedOut,
    TrainingConfig,
    simulate,
)
from trainmem.http.client import BACK_OFF
from trainmem.http.wire import encode

GOOD = encode(simulate(), node="node-9")
Reply = Callable[[socket.socket], None]


def reply(body: bytes, status: str = "200 OK", **headers: str) -> Reply:
    fields = {"Content-Type": "application/json", "Content-Length": str(len(body))} | headers
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    return lambda connection: connection.sendall(
        f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body
    )


def hang_up(connection: socket.socket) -> None:
    connection.close()


def silence(connection: socket.socket) -> None:
    connection.recv(1)  # until the client goes


def drip(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 3000\r\n\r\n")
    while True:
        connection.sendall(b" ")
        time.sleep(0.05)


def endless(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        connection.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")


# A real server


def test_simulate_gives_the_same_type_and_numbers(server: Any) -> None:
    config = TrainingConfig(num_gpus=64, zero_stage=1, grad_ckpt=0)
    local = simulate(config)
    with Client(server.url) as client:
        remote = client.simulate(config)
        assert client.simulate(num_gpus=64, zero_stage=1, grad_ckpt=0).outputs() == local.outputs()
    assert type(remote) is type(local)
    assert remote.outputs() == local.outputs()
    assert remote.to_dict()["profile"] == local.to_dict()["profile"]
    assert remote.node == server.status()["node"]
    assert remote.model is None
    assert remote.min_gpus_reason == local.min_gpus_reason


def test_compare_with_a_server_of_the_same_model_agrees(server: Any) -> None:
    with Client(server.url) as client:
        result = client.compare(grad_ckpt=0)
    assert result.agrees
    assert str(result) == f"{result.remote.node} agrees with this machine in every field"


def test_compare_names_the_fields_of_another_model(tools: Any) -> None:
    prelude = "from trainmem import reduced; reduced.LAYER_BYTES = 40.0"
    with tools.running(prelude) as other, Client(other.url) as client:
        fields = [difference.field for difference in client.compare().differences]
    assert fields == [
        "outputs.activations_per_gpu_gb",
        "outputs.per_gpu_total_gb",
        "outputs.utilization_percent",
        "outputs.aggregate_cluster_gb",
        "profile.mem_vs_gpus",
        "profile.mem_vs_seq",
    ]


def test_async_twin(server: Any) -> None:
    async def ask() -> list[trainmem.Simulation]:
        async with AsyncClient(server.url) as client:
            assert (await client.compare()).agrees
            return await asyncio.gather(*(client.simulate(num_gpus=n) for n in range(1, 9)))

    assert [answer.config.num_gpus for answer in asyncio.run(ask())] == list(range(1, 9))


def test_client_works_inside_a_running_loop(server: Any) -> None:
    async def cell() -> trainmem.Simulation:
        with Client(server.url) as client:
            return client.simulate()

    assert asyncio.run(cell()).fits


def test_one_client_in_many_threads(server: Any) -> None:
    answers: dict[int, int] = {}
    with Client(server.url) as client:

        def ask(count: int) -> None:
            answers[count] = client.simulate(num_gpus=count).config.num_gpus

        threads = [threading.Thread(target=ask, args=(count,)) for count in range(1, 13)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == {count: count for count in range(1, 13)}


def test_server_refuses_in_its_own_words(server: Any) -> None:
    for client, words in (
        (Client(server.url, path="/edge/status"), r"by the server \(405\): 'POST' is not allowed"),
        (Client(server.url + "/elsewhere/"), r"by the server \(404\): nothing is at '/elsewhere/"),
    ):
        with client, pytest.raises(Refused, match=words):
            client.simulate()


def test_server_killed_while_waiting(tools: Any) -> None:
    with tools.running("import time; server.simulate = lambda _: time.sleep(60)") as one:
        client = Client(one.url, retries=1)
        future = client.submit()
        time.sleep(0.5)
        assert not future.done()
        os.killpg(one.process.pid, signal.SIGKILL)
        with pytest.raises(CannotConnect, match="Connection refused"):
            future.result(timeout=10)
        client.close()


# A misbehaving one


@pytest.fixture
def ask(misbehaving: Any) -> Callable[..., trainmem.Simulation]:
    def ask(*replies: Reply, **options: Any) -> trainmem.Simulation:
        ask.server = misbehaving(*replies)  # type: ignore[attr-defined]
        with Client(ask.server.url, **{"timeout": 10} | options) as client:  # type: ignore[attr-defined]
            return client.simulate()

    return ask


def test_request_holds_exactly_the_ten_published_fields(ask: Any) -> None:
    assert ask(reply(GOOD)).node == "node-9"
    head, _, body = ask.server.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /edge/training HTTP/1.1\r\n")
    assert b"content-type: application/json" in head.lower()
    assert f"trainmem/{trainmem.__version__}".encode() in head
    assert list(json.loads(body)) == list(trainmem.FIELDS)
    assert json.loads(body) == TrainingConfig().to_dict()


@pytest.mark.parametrize("status", ["502 Bad Gateway", "503 Busy", "504 Gateway Timeout"])
def test_busy_server_is_asked_again(ask: Any, status: str) -> None:
    start = time.monotonic()
    assert ask(reply(b"", status), reply(b"", status), reply(GOOD)).fits
    assert time.monotonic() - start >= 0.5 * (BACK_OFF + 2 * BACK_OFF)
    assert len(ask.server.requests) == 3


def test_pauses_double_and_vary_by_a_half(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that many clients of a server that falls over don't come back all at once."""
    pauses: list[float] = []
    varied: list[tuple[float, float]] = []

    async def sleep(seconds: float, *_: object) -> None:
        pauses.append(seconds)

    def uniform(low: float, high: float) -> float:
        varied.append((low, high))
        return (low, high, 1.0, 1.0)[len(varied) - 1]

    monkeypatch.setattr("trainmem.http.client.asyncio.sleep", sleep)
    monkeypatch.setattr("trainmem.http.client.random.uniform", uniform)
    with pytest.raises(Refused):
        ask(reply(b"", "503 Busy"), retries=4)
    assert varied == [(0.5, 1.5)] * 4
    assert pauses == pytest.approx([0.5 * 0.2, 1.5 * 0.4, 0.8, 1.6])
    assert len(ask.server.requests) == 5


def test_broken_connection_is_tried_again(ask: Any) -> None:
    cut = reply(GOOD[:500], Content_Length=str(len(GOOD)))
    assert ask(hang_up, cut, reply(GOOD)).fits
    assert len(ask.server.requests) == 3


def test_retries_end(ask: Any) -> None:
    with pytest.raises(Refused, match=r"refused by the server \(503\): come back later") as caught:
        ask(reply(b'{"detail": "come back later"}', "503 Busy"), retries=1)
    assert (caught.value.status, caught.value.message) == (503, "come back later")
    assert len(ask.server.requests) == 2
    with pytest.raises(CannotConnect, match="cannot connect to 127"):
        ask(hang_up, retries=0)
    assert len(ask.server.requests) == 1


@pytest.mark.parametrize("status", ["400 Bad", "422 Bad", "429 Slow", "500 Oops", "501 No"])
def test_other_refusals_are_final(ask: Any, status: str) -> None:
    with pytest.raises(Refused, match=rf"\({status[:3]}\)"):
        ask(reply(b"<html>", status))
    assert len(ask.server.requests) == 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"detail": "no such thing"}', "no such thing"),
        (b'{"error": "too \\u001b[31m  big\\n"}', "too [31m big"),
        (b'{"message": "%s"}' % (b"x" * 1000), "x" * 299 + "…"),
        (
            b'{"detail": [{"loc": ["body", "num_gpus"], "msg": "too few"}]}',
            "body.num_gpus: too few",
        ),
        (b'{"detail": [{"loc": 3, "msg": {}}]}', "Unprocessable Content|Unprocessable Entity"),
        (b'{"detail": 7}', "Unprocessable Content|Unprocessable Entity"),
        (b"[]", "Unprocessable Content|Unprocessable Entity"),
        (b"\xff", "Unprocessable Content|Unprocessable Entity"),
        (b"<html>no</html>", "Unprocessable Content|Unprocessable Entity"),
    ],
)
def test_words_of_a_refusal(ask: Any, body: bytes, message: str) -> None:
    with pytest.raises(Refused) as caught:
        ask(reply(body, "422 X"))
    assert caught.value.message in message.split("|")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (reply(GOOD[:500]), "the body: not JSON"),
        (reply(b""), "the body: not JSON"),
        (reply(b"<html>maintenance</html>"), "the body: not JSON"),
        (reply(b"null"), "the body: None is not an object"),
        (reply(b"{}"), "model: missing"),
        (reply(GOOD.replace(b'"fits": true', b'"fits": "yes"')), "outputs.fits: 'yes' is not"),
        (reply(GOOD.replace(b"24.858", b"NaN")), "the body: not JSON: it has no NaN"),
        (reply(GOOD.replace(b"[1, 136.858], ", b"", 1)), "mem_vs_gpus: 47 points instead of 48"),
        (reply(GOOD.replace(b'"num_gpus": 8', b'"num_gpus": 9')), "inputs.num_gpus: answers 9"),
        (reply(b"[" * 100_000), "the body: nested too deeply"),
        (reply(GOOD, Content_Encoding="gzip"), r"the body: encoded \('gzip'\)"),
        (reply(b"", "204 No Content"), "status: 204 No Content instead of 200"),
        (reply(b"", "304 Not Modified"), "status: 304 Not Modified instead of 200"),
        (reply(b" " * (2**20 + 1)), "the body: longer than 1 MiB"),
        (endless, "the body: longer than 1 MiB"),
    ],
)
def test_bad_answers_are_named_and_final(ask: Any, answer: Reply, problem: str) -> None:
    with pytest.raises(BadAnswer, match=f"bad answer from the server: .*{problem}"):
        ask(answer)
    assert len(ask.server.requests) == 1


def test_what_is_not_http_cannot_be_connected_to(ask: Any) -> None:
    with pytest.raises(CannotConnect, match="cannot connect to"):
        ask(lambda connection: connection.sendall(b"220 mail.example ESMTP\r\n"), retries=0)


@pytest.mark.parametrize("slow", [silence, drip])
def test_slow_answer_times_out(ask: Any, slow: Reply) -> None:
    start = time.monotonic()
    with pytest.raises(TimedOut, match=r"no (complete )?answer|time allowed"):
        ask(slow, timeout=0.4)
    assert 0.3 < time.monotonic() - start < 3
    assert ask.server.hung_up.wait(5)


def test_deadline_covers_the_retries(ask: Any) -> None:
    start = time.monotonic()
    with pytest.raises(TimedOut):
        ask(reply(b"", "503 Busy"), retries=10, timeout=1)
    assert time.monotonic() - start < 4


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"])
def test_redirect_to_the_same_host_is_followed(ask: Any, status: str) -> None:
    assert ask(reply(b"", status, Location="/new/training"), reply(GOOD)).fits
    assert ask.server.requests[1].startswith(b"POST /new/training ")
    assert b'"num_gpus": 8' in ask.server.requests[1]


@pytest.mark.parametrize(
    "where",
    [
        "http://evil.example/edge/training",
        "//evil.example/",
        "http://127.0.0.1:1/",
        "http://127.0.0.1@evil.example/",
        "ftp://127.0.0.1/",
        "http://[",
        "https://evil.example/",
        "http://xn--a/",
        "http://xn--ls8h\u2019/",
        "//xn--\xff",
        "http://127.0.0.1:99999999/",
        "http://127.0.0.1:x/",
        "http://\u2100/",
        "http://[::1]evil/",
        "http://a..b/",
        "http://" + "a" * 70 + ".example/",
        "http://user:word@127.0.0.1/",
    ],
)
def test_redirect_elsewhere_is_refused(ask: Any, where: str) -> None:
    with pytest.raises(BadAnswer, match="redirect: ") as caught:
        ask(reply(b"", "307 Temporary", Location=where))
    assert where[:50].isascii() is False or where[:50] in str(caught.value)
    assert len(ask.server.requests) == 1


PATHS = [
    "/\x7f",
    "/" + "a" * 65_000,
    "/" + "a" * 70_000,
    "?" + "%" * 100,
    "#x",
    "",
    "/a b",
    "/\xe9",
    "//",
]


@pytest.mark.parametrize("where", PATHS, ids=lambda where: where[:9])
def test_no_location_breaks_the_client(ask: Any, where: str) -> None:
    with contextlib.suppress(trainmem.RemoteError):
        assert ask(reply(b"", "307 Temporary", Location=where), reply(GOOD), retries=0).fits


def test_redirects_end(ask: Any) -> None:
    with pytest.raises(BadAnswer, match="redirect: more than 3 in a row"):
        ask(reply(b"", "307 Temporary", Location="/again"))
    assert len(ask.server.requests) == 4


def test_nobody_there(tools: Any) -> None:
    port = tools.free_port()
    start = time.monotonic()
    problem = f"cannot connect to 127.0.0.1:{port}: Connection refused"
    with Client(f"http://127.0.0.1:{port}") as client, pytest.raises(CannotConnect, match=problem):
        client.simulate()
    assert time.monotonic() - start > 0.5 * (BACK_OFF + 2 * BACK_OFF)  # it did try again


def test_unknown_certificate_is_refused(tools: Any, tmp_path: Path, misbehaving: Any) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    options = (
        "-x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=x -addext subjectAltName=IP:127.0.0.1"
    )
    command = [tools.needs("openssl"), "req", *options.split(), "-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = misbehaving(reply(GOOD), tls=context)
    url = server.url.replace("http:", "https:")
    with Client(url, retries=0) as client, pytest.raises(CannotConnect, match="CERTIFICATE_VERIFY"):
        client.simulate()
    assert server.requests == []
    trusting = ssl.create_default_context(cafile=certificate)
    with Client(url, ssl_context=trusting) as client:
        assert client.simulate().fits


# Futures, closing, arguments


def test_cancelling_drops_the_connection(misbehaving: Any) -> None:
    server = misbehaving(silence)
    with Client(server.url) as client:
        future = client.submit()
        while not server.requests:
            time.sleep(0.01)
        assert not future.done()
        assert future.cancel()
        assert server.hung_up.wait(5)
        server.replies = (reply(GOOD),)
        assert client.simulate().fits  # still of use


def test_closing_cancels_what_is_under_way(misbehaving: Any) -> None:
    server = misbehaving(silence)
    client = Client(server.url)
    future = client.submit()
    while not server.requests:
        time.sleep(0.01)
    client.close()
    with pytest.raises(CancelledError):
        future.result(timeout=5)
    assert server.hung_up.wait(5)
    with pytest.raises(RuntimeError, match="the client is closed"):
        client.simulate()
    client.close()


def client_threads() -> int:
    return sum(thread.name == "trainmem-client" for thread in threading.enumerate())


def test_forgotten_client_leaves_no_thread(server: Any) -> None:
    before = client_threads()
    client = Client(server.url)
    assert client_threads() == before  # none before it is used
    client.simulate()
    assert client_threads() == before + 1
    del client
    gc.collect()
    assert client_threads() == before


def clean_environment() -> dict[str, str]:
    ours = ("_proxy", "ssl_cert_file", "ssl_cert_dir")
    return {k: v for k, v in os.environ.items() if not k.lower().endswith(ours)}


IMPORTS = "from trainmem import AsyncClient, Client, RemoteError\n"


def in_a_process(code: str, **variables: str) -> str:
    """Return what a script prints, without proxies and authorities but those of `variables`."""
    environment = clean_environment()
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS + textwrap.dedent(code)],
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("held", [False, True])
def test_a_forked_client_works_and_its_parents_too(server: Any, held: bool) -> None:
    out = in_a_process(
        f"""
        import os, signal, warnings
        warnings.simplefilter("ignore")
        client = Client("{server.url}", timeout=10)
        client.simulate()
        if {held}:
            client._lock.acquire()  # by another thread, as far as the child can know
        child = os.fork()
        if not child:
            signal.alarm(20)
            print(client.simulate(num_gpus=2).config.num_gpus, flush=True)
            client.close()
            os._exit(0)
        if {held}:
            client._lock.release()
        assert os.waitpid(child, 0)[1] == 0
        print(client.simulate(num_gpus=3).config.num_gpus)
        client.close()
        """
    )
    assert out.split() == ["2", "3"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_twin_opens_connections_of_its_own(server: Any) -> None:
    out = in_a_process(
        f"""
        import asyncio, os, signal, warnings
        warnings.simplefilter("ignore")
        client = AsyncClient("{server.url}", timeout=10)
        async def ask(n):
            print((await client.simulate(num_gpus=n)).config.num_gpus, flush=True)
        loop = asyncio.new_event_loop()
        loop.run_until_complete(ask(1))
        child = os.fork()
        if not child:
            signal.alarm(20)
            asyncio.run(ask(2))
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        loop.run_until_complete(ask(3))
        """
    )
    assert out.split() == ["1", "2", "3"]


def test_proxies_are_for_other_machines(server: Any, tools: Any) -> None:
    code = """
        try:
            with Client({url!r}, retries=0) as client: print(client.simulate().fits)
        except RemoteError as error: print(type(error).__name__)
        """
    nobody = f"http://127.0.0.1:{tools.free_port()}"
    for url in (server.url, server.url.replace("127.0.0.1", "localhost")):
        assert in_a_process(code.format(url=url), HTTP_PROXY=nobody, ALL_PROXY=nobody) == "True\n"
    elsewhere = code.format(url="http://trainmem.example")
    proxied = in_a_process(elsewhere, HTTP_PROXY=server.url)
    assert proxied == "Refused\n"  # what stands for the proxy was asked


BAD_VARIABLES = [
    ("HTTPS_PROXY", "http://[", "HTTPS_PROXY: 'http://[' is not the address of a proxy"),
    ("https_proxy", "ftp://a.example", "HTTPS_PROXY: 'ftp://a.example' is not the address"),
    ("ALL_PROXY", "http://me:secret@[", "ALL_PROXY: 'http://…@[' is not the address"),
    ("HTTP_PROXY", "http://a:99999999", "HTTP_PROXY: 'http://a:99999999' is not the address"),
    ("HTTP_PROXY", "socks5://a:1", "HTTP_PROXY: 'socks5://a:1' needs a package: pip install"),
    ("NO_PROXY", "a:x", "NO_PROXY: 'a:x' is no list of hosts: Invalid port"),
    ("SSL_CERT_DIR", "/nowhere", "SSL_CERT_DIR: '/nowhere' can't be used: No such"),
    ("SSL_CERT_FILE", "/nowhere.pem", "SSL_CERT_FILE: '/nowhere.pem' can't be used: No such"),
    ("SSL_CERT_FILE", __file__, f"SSL_CERT_FILE: {__file__!r:.30}"),
    ("SSLKEYLOGFILE", "/nowhere/keys", "SSLKEYLOGFILE: '/nowhere/keys' can't be used: No such"),
]


@pytest.fixture(scope="module")
def said_of_variables() -> list[str]:
    """What the client says of each bad variable, in one process without any other."""
    variables = [(name, value) for name, value, _ in BAD_VARIABLES]
    out = in_a_process(
        f"""
        import json, os
        said = []
        for name, value in {variables!r}:
            os.environ[name] = value
            try: said.append(repr(Client()))
            except ValueError as error: said.append(str(error))
            del os.environ[name]
        print(json.dumps(said))
        """
    )
    return list(json.loads(out))


@pytest.mark.parametrize("place", range(len(BAD_VARIABLES)), ids=[v[2][:20] for v in BAD_VARIABLES])
def test_a_bad_variable_is_named(said_of_variables: list[str], place: int) -> None:
    assert BAD_VARIABLES[place][2].rstrip("'") in said_of_variables[place]
    assert "secret" not in said_of_variables[place]


def test_interrupted_wait_cancels(misbehaving: Any) -> None:
    server = misbehaving(silence)
    with Client(server.url) as client:

        def interrupt() -> None:
            while not server.requests:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            client.simulate()
        assert server.hung_up.wait(5)


def test_bad_input_is_never_sent(misbehaving: Any) -> None:
    server = misbehaving(reply(GOOD))
    with Client(server.url) as client:
        for call in (client.simulate, client.submit, client.compare):
            with pytest.raises(ConfigError, match="num_gpus: 0 is not allowed"):
                call(num_gpus=0)
            with pytest.raises(TypeError, match="config must be a TrainingConfig"):
                call({"num_gpus": 1})
    assert server.requests == []


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("chipfoundryservices.com", "must begin with http:// or https://"),
        ("ftp://a.example", "must begin with http:// or https://"),
        ("http://", "name a host"),
        ("https://user:word@a.example", "must be a plain address"),
        ("https://a.example/?q=1", "must be a plain address"),
        ("https://[", "is not an address"),
        ("http://a b/", "is not an address"),
        ("http://xn--a/", "is not an address"),
        ("http://a.example:99999999", "must have a port from 1 to 65535"),
        (None, "is not an address"),
    ],
)
def test_bad_address(url: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=f"base_url: .*{problem}"):
        Client(url)


def test_bad_options() -> None:
    with pytest.raises(ValueError, match=r"path: .* is not a path"):
        Client(path="/" + "a" * 70_000)
    for options in ({"timeout": 0}, {"connect_timeout": float("nan")}):
        with pytest.raises(ValueError, match="must be above 0 s"):
            Client(**options)
    for retries in (-1, 11):
        with pytest.raises(ValueError, match=r"retries: .* must be from 0 to 10"):
            Client(retries=retries)
    with pytest.raises(TypeError):
        Client(verify=False)  # type: ignore[call-arg]


def test_published_address_is_the_default() -> None:
    client = Client()
    assert repr(client) == "<Client https://www.chipfoundryservices.com/edge/training>"
    assert client.host == "www.chipfoundryservices.com"
    assert repr(AsyncClient("http://[::1]:8000/"))[:-1].endswith("http://[::1]:8000/edge/training")


@pytest.mark.parametrize(
    ("hidden", "name", "module"),
    [
        ("httpx", "remote", "client"),
        ("uvicorn", "server", "server"),
        ("fastapi", "server", "server"),
    ],
)
def test_missing_extra_names_the_command(hidden: str, name: str, module: str) -> None:
    code = (
        f"import sys; sys.modules[{hidden!r}] = None\n"
        f"import trainmem; trainmem.simulate(); trainmem.CannotConnect\n"
        f"try:\n  import trainmem.http.{module}\n"
        f"except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"pip install 'trainmem[{name}]'" in done.stdout
    assert hidden in done.stdout
