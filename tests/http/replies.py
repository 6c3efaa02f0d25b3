"""What a server may reply, the published answer and worse."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from trainmem import simulate
from trainmem.http.wire import encode

GOOD = encode(simulate(), node="node-9")
Reply = Callable[[socket.socket], None]


def reply(body: bytes, status: str = "200 OK", **headers: str) -> Reply:
    fields = {
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",  # which this server does, and a quick client would use it again
    } | headers
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
