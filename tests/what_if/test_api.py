"""Questions over HTTP: who may ask, what is answered, and how trouble is told."""

import asyncio
import json
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

from bayplan.core.engine.what_if import WhatIf
from bayplan.scheduler import questions
from bayplan.scheduler.config import ApiAccess, ConfigError
from bayplan.scheduler.config import Tls as TlsSettings
from bayplan.scheduler.questions import access_of
from bayplan.testing import World
from bayplan.web.api import Access, BadToken, Token, is_here, serving
from bayplan.web.door import Limits
from bayplan.web.server import BadAddress
from bayplan.web.tls import Tls, TlsFiles
from tests.what_if.served import Served

GPU = "nvidia.com/gpu"


def manifest(gpus: int, **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "resources": {"limits": {GPU: gpus}}}
    return {"metadata": {"name": "x"}, "spec": {"containers": [container], **spec}}


@pytest.fixture
def world() -> World:
    made = World(a=8, b=8)
    made.submit("big", 8)
    made.submit("waits", 16)
    return made


def test_the_steps_are_answered_in_order(world: World) -> None:
    version = world.engine.cluster.version
    with Served(world) as served:
        reply = served.what_if(
            {"fits": {"pod": manifest(8)}},
            {"evict": ["default/big"]},
            {"capacity": {"pod": manifest(8)}},
            {"fits": {"pod": manifest(9), "node": "a"}},
            {"fits": {"pod": manifest(9), "node": "c"}},
            {"bogus": 1},
        )

    free = {"a": "b", "b": "a"}[world.running()["big"]]
    lack = f"Insufficient {GPU}"
    assert reply.status == 200
    assert reply.json == {
        "version": version,
        "answers": [
            {"ok": True, "node": free, "devices": [], "victims": []},
            {"ok": True, "changed": 1},
            {"ok": True, "count": 2},
            {
                "ok": False,
                "node": None,
                "devices": [],
                "victims": [],
                "message": f"0/1 nodes are available: 1 {lack}.",
                "reasons": {lack: {"count": 1, "nodes": ["a"]}},
            },
            {"ok": False, "error": "there is no node c"},
            {"ok": False, "error": "Object contains unknown field `bogus`"},
        ],
    }


def test_fits_alone(world: World) -> None:
    with Served(world) as served:
        yes = served.ask("POST", "/v1/fits", {"pod": manifest(8)})
        without = {"pod": manifest(16), "without": ["default/big"]}
        no = served.ask("POST", "/v1/fits", without)
        bad = served.ask("POST", "/v1/fits", {"pod": {"spec": {"containers": 3}}})
        known = served.ask("GET", "/v1/fits?pod=default/waits&node=a&without=default/big")
        short = served.ask("GET", "/v1/fits?pod=waits")
        unknown = served.ask("GET", "/v1/fits?pod=prod/b")

    assert yes.json["answers"][0]["ok"] is True
    assert no.json["answers"][0]["ok"] is False
    assert (bad.status, bad.json) == (
        400,
        {"error": "pod default/pod: containers: it should be a list"},
    )
    message = f"0/1 nodes are available: 1 Insufficient {GPU}."
    assert known.json["answers"][0]["message"] == message
    assert short.json["answers"][0]["message"].startswith("0/2 nodes are available: 2 ")
    assert unknown.json["answers"] == [{"ok": False, "error": "no pod prod/b waits"}]


def test_trouble_is_told_as_json(world: World) -> None:
    deep = b'{"steps":[{"fits":{"pod":' + b'{"a":' * 200_000 + b"1" + b"}" * 200_000 + b"}}]}"
    nodes = {"nodes": {"add": {"like": "a", "count": 6_000}}}
    with Served(world, limits=Limits(max_body=2 << 20)) as served:
        for status, words, request in (
            (404, "there are only /v1/what-if, /v1/fits, ", ("GET", "/v1/nothing")),
            (405, "/v1/what-if takes POST", ("GET", "/v1/what-if")),
            (405, "/v1/fits takes GET, POST", ("DELETE", "/v1/fits")),
            (413, "a request may have 2097152 bytes", ("POST", "/v1/fits", b" " * (3 << 20))),
            (415, "the body should be JSON", ("POST", "/v1/fits", b"{}", {})),
            (
                415,
                "compressed requests are not taken",
                (
                    "POST",
                    "/v1/fits",
                    b"{}",
                    {"Content-Type": "application/json", "Content-Encoding": "gzip"},
                ),
            ),
            (400, "maximum recursion depth exceeded", ("POST", "/v1/what-if", deep)),
            (400, "Input data was truncated", ("POST", "/v1/what-if", b"")),
            (400, "Expected `object`, got `array`", ("POST", "/v1/what-if", b"[]")),
            (400, "missing required field `steps`", ("POST", "/v1/what-if", b"{}")),
            (400, "unknown field `step`", ("POST", "/v1/what-if", b'{"step":[]}')),
            (400, "may have 1000 steps", ("POST", "/v1/what-if", {"steps": [{}] * 1_001})),
            (400, "may add 10000 nodes", ("POST", "/v1/what-if", {"steps": [nodes] * 2})),
            (400, "the parameter pod is missing", ("GET", "/v1/fits")),
            (400, "pod should be there once", ("GET", "/v1/fits?pod=a&pod=b")),
            (400, "there is no parameter name", ("GET", "/v1/fits?name=a")),
            (400, "the parameters cannot be read", ("GET", "/v1/fits?" + "&" * 2_000)),
        ):
            reply = served.ask(*request)
            assert reply.status == status, (request, reply)
            assert words in reply.json["error"]
            assert reply.headers["Content-Type"] == "application/json"
        assert served.ask("GET", "/v1/check").body == b"hello\n"
        assert "GET, POST" in served.ask("PUT", "/v1/fits").headers["Allow"]


def test_a_scheduler_that_is_not_ready_says_so(world: World) -> None:
    with Served(world) as served:
        served.is_ready = False
        reply = served.what_if()

    assert reply.status == 503
    assert reply.json["error"] == "the scheduler has not read the whole cluster yet"


def test_a_question_that_takes_too_long_is_given_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "LONGEST_S", 0.0)
    with Served(world) as served:
        reply = served.what_if({"capacity": {"pod": manifest(1)}})

    assert reply.status == 503
    assert reply.json["error"] == "the question takes longer than 0 s; ask for less at once"


def test_our_own_mistake_is_logged_and_told_without_its_story(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(WhatIf, "ask", broken)
    with Served(world) as served:
        reply = served.what_if({"fits": {"pod": manifest(1)}})

    assert (reply.status, reply.json) == (
        500,
        {"error": "/v1/what-if failed, see the log: ZeroDivisionError"},
    )
    assert "Traceback" in caplog.text


def test_without_a_token_only_this_machine_is_answered(world: World) -> None:
    with Served(world) as served:
        for host, status in (
            (f"127.0.0.1:{served.port}", 200),
            ("localhost", 200),
            ("[::1]:80", 200),
            ("evil.example", 403),
            ("10.0.0.1", 403),
            ("[", 403),
        ):
            assert served.ask("GET", "/v1/check", None, {"Host": host}).status == status, host


@pytest.mark.parametrize(
    ("host", "here"),
    [
        *((host, True) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost")),
        *((host, False) for host in (None, "0.0.0.0", "::", "10.0.0.1", "node-1")),
    ],
)
def test_which_addresses_are_this_machines_alone(host: str | None, here: bool) -> None:
    assert is_here(host) is here


def test_a_token_opens_the_door_and_can_be_renewed(world: World, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    times = [0.0]
    token = Token(str(file), lambda: times[0])
    with Served(world, Access(token)) as served:

        def status(given: str | None) -> int:
            headers = {"Host": "scheduler.example"}
            headers |= {} if given is None else {"Authorization": given}
            return served.ask("GET", "/v1/check", None, headers).status

        assert [status(each) for each in ("Bearer secret", "bearer  secret")] == [200, 200]
        wrong = (None, "Bearer", "Bearer other", "Basic secret", "Bearer sécret")
        assert {status(each) for each in wrong} == {401}
        told = served.ask("GET", "/v1/check", None, {})
        assert told.headers["WWW-Authenticate"] == "Bearer"
        file.write_text("new")
        times[0] = 2.0
        assert [status(f"Bearer {each}") for each in ("secret", "new")] == [401, 200]
        file.write_text("")
        times[0] = 4.0
        assert status("Bearer new") == 200  # a renewal that is half done changes nothing


@pytest.mark.parametrize("content", [b"", b" \n", b"two words", "ü".encode()])
def test_what_is_no_token(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)

    with pytest.raises(BadToken, match="it should hold one word"):
        Token(str(file))
    with pytest.raises(BadToken, match="No such file"):
        Token(str(tmp_path / "none"))


Made = Callable[..., Access]


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def access(authority: trustme.CA, tmp_path: Path) -> Made:
    """With TLS, clients' certificates of the authority, and maybe a token."""

    def make(token: str = "") -> Access:
        leaf = authority.issue_cert("127.0.0.1")
        leaf.private_key_pem.write_to_path(tmp_path / "key")
        leaf.cert_chain_pems[0].write_to_path(tmp_path / "cert")
        authority.cert_pem.write_to_path(tmp_path / "ca")
        cert, key, known = (str(tmp_path / name) for name in ("cert", "key", "ca"))
        files = TlsFiles(cert, key, known, or_none=bool(token))
        if token:
            (tmp_path / "token").write_text(token)
        return Access(Token(str(tmp_path / "token")) if token else None, Tls(files), True)

    return make


def client(authority: trustme.CA, known: trustme.CA | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if known is not None:
        known.issue_cert("client").configure_cert(context)
    return context


def test_a_certificate_opens_the_door(world: World, authority: trustme.CA, access: Made) -> None:
    with Served(world, access()) as served:
        good = served.ask("GET", "/v1/check", tls=client(authority, authority))
        with pytest.raises(OSError):  # noqa: PT011
            served.ask("GET", "/v1/check", tls=client(authority, None))

    assert good.status == 200


def test_either_a_certificate_or_a_token_is_enough(
    world: World, authority: trustme.CA, access: Made
) -> None:
    with Served(world, access("secret")) as served:
        known, stranger = client(authority, authority), client(authority, None)
        token = {"Authorization": "Bearer secret"}
        assert served.ask("GET", "/v1/check", tls=known).status == 200
        assert served.ask("GET", "/v1/check", None, token, stranger).status == 200
        assert served.ask("GET", "/v1/check", tls=stranger).status == 401
        with pytest.raises(OSError):  # noqa: PT011
            served.ask("GET", "/v1/check", None, token, client(authority, trustme.CA()))


async def listen(address: str, access: Access | None = None) -> None:
    async with serving(address, {}, access):
        pass


def test_who_can_be_reached_by_others_needs_a_guard(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret")
    for address in (":0", "0.0.0.0:0", "[::]:0"):
        with pytest.raises(BadAddress, match="could be asked by anybody"):
            asyncio.run(listen(address))
    asyncio.run(listen(":0", access_of(ApiAccess(str(file)))))
    asyncio.run(listen("localhost:0"))
    with pytest.raises(BadAddress, match="is not an address"):
        asyncio.run(listen("nothing"))


def test_files_that_cannot_serve_are_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "none")
    for settings in (ApiAccess(missing), ApiAccess("", TlsSettings(missing, missing))):
        with pytest.raises(ConfigError, match=r"apiAccess: .*none: No such file"):
            access_of(settings)


def test_the_document_says_what_there_is(world: World) -> None:
    with Served(world) as served:
        document = served.ask("GET", "/v1/openapi.json").json

    assert document["openapi"] == "3.1.0"
    assert document["info"]["version"] == "1.2.3"
    assert set(document["paths"]) >= {"/v1/what-if", "/v1/fits", "/v1/openapi.json"}
    schemas = document["components"]["schemas"]
    assert set(schemas["OneStep"]["properties"]) == {
        *("fits", "evict", "place", "nodes", "preempt", "capacity")
    }
    assert {"Where", "GangWhere", "Counted", "Changed", "Failed"} < set(schemas)
    assert "#/components/schemas/Held" in json.dumps(schemas["Where"])
