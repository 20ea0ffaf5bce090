"""`bayplan vipu-fake`: a process that serves and ends, and one line for bad input."""

import asyncio
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from click.testing import CliRunner

from bayplan.cli.main import main
from bayplan.vipu.client import Client, Options
from bayplan.vipu.controller import Refused
from bayplan.vipu.fake import FakeVipu
from bayplan.vipu.faults import Faulty
from bayplan.vipu.server import Server
from tests.kube_net.manual_clock import ManualClock

BAYPLAN = (sys.executable, "-m", "bayplan", "vipu-fake", "--port", "0")


@asynccontextmanager
async def fake(*options: str) -> AsyncIterator[tuple[Process, Client, str]]:
    process = await asyncio.create_subprocess_exec(*BAYPLAN, *options, stdout=PIPE, stderr=PIPE)
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    found = re.search(r" on (127\.0\.0\.1:\d+): ", line)
    assert found is not None, line
    client = Client(found[1], Options(timeout_s=5.0))
    try:
        yield process, client, line
    finally:
        await client.close()
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_process_that_serves_and_ends(number: signal.Signals) -> None:
    given = ("--allocation", "a=1", "--allocation", "b=7", "--ipus", "32", "--choice", "last")
    async with fake(*given) as (process, client, line):
        assert line.endswith(
            ": 32 IPUs, 8 agents, 1 link domain, allocation a of 1 agent, "
            "allocation b of 7 agents\n"
        )
        made = await client.create("p", 2, allocation="a")
        assert [ipu.name for ipu in made.ipus] == ["ag1.2", "ag1.3"]
        with pytest.raises(Refused, match="no room"):
            await client.create("q", 4, allocation="a")

        process.send_signal(number)
        said, errors = await process.communicate()
        assert (process.returncode, said, errors) == (0, b"", b"")


async def test_it_refuses_as_often_as_it_is_told() -> None:
    async with fake("--refuse-rate", "1", "--latency", "0.01") as (_, client, _):
        with pytest.raises(Refused, match="a fault was asked for"):
            await client.create("p", 2)
        assert await client.partitions() == ()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--ipus", "6"], "the IPUs should be a positive multiple of 4, not 6"),
        (["--ipus", "0"], "the IPUs should be a positive multiple of 4, not 0"),
        (["--domain-ipus", "-4"], "IPUs of a link domain should be a positive multiple of 4"),
        (["--allocation", "a"], "--allocation a: not NAME=COUNT"),
        (["--allocation", "=3"], "--allocation =3: not NAME=COUNT"),
        (["--allocation", "a=b"], "--allocation a=b: not NAME=COUNT"),
        (["--allocation", "a=17"], "allocation a of 17 agents, where 16 are left"),
        (["--allocation", "a=1", "--allocation", "a=2"], "--allocation a is there twice"),
        (["--fail-rate", "2"], "Invalid value for '--fail-rate'"),
        (["--choice", "best"], "Invalid value for '--choice'"),
        (["--host", "no such host"], "nobody can listen there"),
    ],
)
def test_bad_input_is_one_line_and_status_2(options: list[str], says: str) -> None:
    result = CliRunner().invoke(main, ["vipu-fake", "--port", "0", *options])

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert says in result.stderr


async def test_a_port_that_is_in_use() -> None:
    server = Server(Faulty(FakeVipu(), ManualClock()))
    port = await server.start()
    process = await asyncio.create_subprocess_exec(
        *BAYPLAN, "--port", str(port), stdout=PIPE, stderr=PIPE
    )
    said, errors = await process.communicate()
    await server.stop()

    assert (process.returncode, said) == (2, b"")
    assert errors.decode() == (
        f"Error: 127.0.0.1:{port}: nobody can listen there; is the port in use?\n"
    )


def test_help_has_an_example() -> None:
    shown = CliRunner().invoke(main, ["vipu-fake", "--help"]).stdout
    assert "  bayplan vipu-fake --ipus 128" in shown
