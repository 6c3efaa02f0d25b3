"""The client against a server that misbehaves, over sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import trainmem
from trainmem import BadAnswer, CannotConnect, Client, Refused, TimedOut, TrainingConfig
from trainmem.http.client import BACK_OFF

from .replies import GOOD, Reply, drip, endless, hang_up, reply, silence


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

    # The client's own, for other threads sleep too.
    own = SimpleNamespace(**{**vars(asyncio), "sleep": sleep})
    monkeypatch.setattr("trainmem.http.client.asyncio", own)
    monkeypatch.setattr("trainmem.http.client.random", SimpleNamespace(uniform=uniform))
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
