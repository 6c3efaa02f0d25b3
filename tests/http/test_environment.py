"""The client in processes of its own: forks, proxies, variables, missing packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest


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


@pytest.mark.parametrize(
    "place", range(len(BAD_VARIABLES)), ids=[name for name, *_ in BAD_VARIABLES]
)
def test_a_bad_variable_is_named(said_of_variables: list[str], place: int) -> None:
    assert BAD_VARIABLES[place][2].rstrip("'") in said_of_variables[place]
    assert "secret" not in said_of_variables[place]


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
