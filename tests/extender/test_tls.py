"""TLS: whom the server shows itself to, whom it believes, and files that change under it."""

import asyncio
import ssl
import warnings
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from bayplan.extender.server import serving
from bayplan.web.door import Limits
from bayplan.web.tls import BadTls, Tls, TlsFiles
from tests.extender.rig import BIND, HOST, Stub, connected, request, trusting, write_files

pytestmark = pytest.mark.usefixtures("quiet")

ANY = f"{HOST}:0"


class Now:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


async def bind(port: int, context: ssl.SSLContext | None) -> int:
    async with connected(port, context) as client:
        return (await client.ask("/bind", BIND))[0]


async def test_a_client_that_trusts_the_authority_is_served(tmp_path: Path, ca: trustme.CA) -> None:
    tls = Tls(write_files(tmp_path, ca))
    async with serving(ANY, Stub(), tls=tls) as port:
        assert await bind(port, trusting(ca)) == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            await bind(port, trusting(trustme.CA()))
        assert await bind(port, trusting(ca)) == 200


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_mutual_tls(tmp_path: Path, ca: trustme.CA, version: ssl.TLSVersion) -> None:
    clients = trustme.CA()
    tls = Tls(write_files(tmp_path, ca, clients))

    def shown(authority: trustme.CA | None) -> ssl.SSLContext:
        context = trusting(ca, authority)
        context.maximum_version = version
        return context

    stub = Stub()
    async with serving(ANY, stub, tls=tls) as port:
        for stranger in (None, ca, trustme.CA()):
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await bind(port, shown(stranger))
        assert stub.seen == []
        assert await bind(port, shown(clients)) == 200


async def test_old_versions_are_not_spoken(tmp_path: Path, ca: trustme.CA) -> None:
    context = trusting(ca)
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    async with serving(ANY, Stub(), tls=Tls(write_files(tmp_path, ca))) as port:
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            await bind(port, context)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        assert await bind(port, context) == 200


@pytest.mark.parametrize("sent", [request("/bind", BIND), b"\x00" * 5000, b"\x16\x03\x01\x00\x05x"])
async def test_what_is_no_tls_gets_no_answer(tmp_path: Path, ca: trustme.CA, sent: bytes) -> None:
    tls = Tls(write_files(tmp_path, ca))
    async with serving(ANY, Stub(), Limits(timeout_s=0.6), tls) as port:
        async with connected(port) as client:
            await client.send(sent)
            assert not (await client.ended()).startswith(b"HTTP")
        assert await bind(port, trusting(ca)) == 200


async def test_clients_that_never_shake_hands_keep_nobody_out(
    tmp_path: Path, ca: trustme.CA
) -> None:
    tls = Tls(write_files(tmp_path, ca))
    async with (
        serving(ANY, Stub(), Limits(connections=3), tls) as port,
        connected(port) as first,
        connected(port) as second,
        connected(port) as third,
    ):
        assert await bind(port, trusting(ca)) == 200
        assert await first.ended() == b""
        await second.send(b"\x16")
        third.writer.transport.abort()
        assert await bind(port, trusting(ca)) == 200


async def test_a_client_that_never_shakes_hands_is_cut_off(tmp_path: Path, ca: trustme.CA) -> None:
    tls = Tls(write_files(tmp_path, ca))
    limits = Limits(timeout_s=0.6)
    async with serving(ANY, Stub(), limits, tls) as port, connected(port) as client:
        assert await client.ended() == b""


async def test_a_slow_client_over_tls_is_cut_off(tmp_path: Path, ca: trustme.CA) -> None:
    tls = Tls(write_files(tmp_path, ca))
    async with (
        serving(ANY, Stub(), Limits(timeout_s=0.6), tls) as port,
        connected(port, trusting(ca)) as client,
    ):
        assert (await client.ask("/bind", BIND))[0] == 200
        await client.send(request("/bind", BIND)[:30])
        assert await client.ended() == b""


async def test_a_large_request_over_tls(tmp_path: Path, ca: trustme.CA) -> None:
    names = [f"node-{n}" for n in range(200_000)]
    async with (
        serving(ANY, Stub(), tls=Tls(write_files(tmp_path, ca))) as port,
        connected(port, trusting(ca)) as client,
    ):
        status, _, body = await client.ask("/filter", {"Pod": {}, "NodeNames": names})
        assert (status, body.count(b'"node-')) == (200, 200_000)


async def test_the_end_comes_though_a_handshake_is_under_way(
    tmp_path: Path, ca: trustme.CA
) -> None:
    async with serving(ANY, Stub(), tls=Tls(write_files(tmp_path, ca))) as port:
        _, writer = await asyncio.open_connection(HOST, port)
        assert await bind(port, trusting(ca)) == 200
    writer.close()


async def test_renewed_files_serve_new_connections(tmp_path: Path, ca: trustme.CA) -> None:
    now, later, clients, others = Now(), trustme.CA(), trustme.CA(), trustme.CA()
    tls = Tls(write_files(tmp_path, ca, clients), now)
    async with (
        serving(ANY, Stub(), tls=tls) as port,
        connected(port, trusting(ca, clients)) as old,
    ):
        assert (await old.ask("/bind", BIND))[0] == 200
        write_files(tmp_path, later, others)
        now.seconds += 60
        assert await bind(port, trusting(later, others)) == 200
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await bind(port, trusting(later, clients))  # no longer believed
        assert (await old.ask("/bind", BIND))[0] == 200


async def test_files_that_change_for_the_worse_leave_what_was_there(
    tmp_path: Path, ca: trustme.CA, caplog: pytest.LogCaptureFixture
) -> None:
    now, files = Now(), write_files(tmp_path, ca)
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    tls = Tls(files, now)
    async with serving(ANY, Stub(), tls=tls) as port:
        key.write_text("half")
        for _ in range(3):
            now.seconds += 60
            assert await bind(port, trusting(ca)) == 200
        (complaint,) = [entry.getMessage() for entry in caplog.records if entry.levelno > 20]
        assert str(key) in complaint
        certificate.unlink()
        now.seconds += 60
        assert await bind(port, trusting(ca)) == 200
        later = trustme.CA()
        write_files(tmp_path, later)
        now.seconds += 60
        assert await bind(port, trusting(later)) == 200
    caplog.clear()


def encrypted(pem: bytes) -> bytes:
    key = load_pem_private_key(pem, None)
    secret = BestAvailableEncryption(b"secret")
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, secret)


@pytest.mark.parametrize("which", ["certificate", "key", "client_ca"])
@pytest.mark.parametrize("how", ["missing", "a folder", "empty", "nonsense"])
def test_a_bad_file_is_named(tmp_path: Path, ca: trustme.CA, which: str, how: str) -> None:
    files = write_files(tmp_path, ca, ca)
    bad = Path(getattr(files, which))
    bad.unlink()
    if how == "a folder":
        bad.mkdir()
    elif how != "missing":
        bad.write_text({"empty": "", "nonsense": "-----BEGIN X-----\nno\n"}[how])
    with pytest.raises(BadTls) as raised:
        Tls(files)
    assert str(raised.value).startswith(f"{bad}: ")
    assert "\n" not in str(raised.value)


def test_the_key_of_another_certificate(tmp_path: Path, ca: trustme.CA) -> None:
    files = write_files(tmp_path, ca)
    ca.issue_cert("localhost").private_key_pem.write_to_path(files.key)
    with pytest.raises(BadTls, match=f"^{files.key}: not the key of {files.certificate}$"):
        Tls(files)


def test_a_key_with_a_password_asks_nobody(tmp_path: Path, ca: trustme.CA) -> None:
    files = write_files(tmp_path, ca)
    Path(files.key).write_bytes(encrypted(Path(files.key).read_bytes()))
    with pytest.raises(BadTls, match=f"^{files.key}: no private key in PEM form without a passw"):
        Tls(files)


def test_a_certificate_without_a_key(tmp_path: Path, ca: trustme.CA) -> None:
    with pytest.raises(BadTls, match="needs both a certificate file and a key file"):
        Tls(TlsFiles(write_files(tmp_path, ca).certificate, ""))
