"""Where credentials come from, when they are read again, and what is said when they are wrong."""

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trustme

from bayplan.kube.credentials import Credentials, CredentialsError, find_source
from bayplan.kube.transport import Unauthorized
from tests.kube_net.manual_clock import ManualClock
from tests.kube_net.rig import write_kubeconfig

HERE = "https://127.0.0.1:6443"
INSIDE = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def service_account(folder: Path, ca: trustme.CA, token: str = "first") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "token").write_text(f"{token}\n")
    ca.cert_pem.write_to_path(folder / "ca.crt")
    return folder


def plugin(folder: Path, code: str) -> dict[str, Any]:
    """A user whose credentials come from a program, which can count its runs."""
    script = folder / "plugin.py"
    head = "import json, os, sys; from pathlib import Path\n"
    runs = f"runs = Path({str(folder / 'runs')!r}); n = len(runs.read_text()) if runs.exists()"
    script.write_text(f"{head}{runs} else 0\nruns.write_text('x' * (n + 1))\n{code}")
    version = "client.authentication.k8s.io/v1"
    return {"exec": {"apiVersion": version, "command": sys.executable, "args": [str(script)]}}


def token_plugin(folder: Path, expires: float | None = None) -> dict[str, Any]:
    """Its tokens are token0, token1 …"""
    status = ""
    if expires is not None:
        moment = datetime.fromtimestamp(expires, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        status = f", 'expirationTimestamp': {moment!r}"
    return plugin(
        folder,
        "info = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        "print(json.dumps({'apiVersion': info['apiVersion'], 'kind': 'ExecCredential',"
        f" 'status': {{'token': f'token{{n}}'{status}}}}}))",
    )


@contextmanager
def editing(path: Path) -> Iterator[dict[str, Any]]:
    config = json.loads(path.read_text())
    yield config
    path.write_text(json.dumps(config))


# Where


def test_a_kubeconfig_that_is_named_comes_first_then_the_pods_own(
    tmp_path: Path, ca: trustme.CA
) -> None:
    account = service_account(tmp_path / "account", ca)
    home = tmp_path / "home"
    (home / ".kube").mkdir(parents=True)
    usual = write_kubeconfig(home / ".kube" / "config", HERE)
    named = write_kubeconfig(tmp_path / "named", HERE)
    environ = {"HOME": str(home), "KUBECONFIG": named}

    assert find_source(usual, environ=INSIDE | environ, service_account=account).kubeconfig == usual
    inside = find_source(environ=INSIDE | environ, service_account=account)
    assert inside.service_account == str(account)
    assert find_source(environ=environ, service_account=account).kubeconfig == named
    nowhere = tmp_path / "nowhere"
    assert find_source(environ=INSIDE | environ, service_account=nowhere).kubeconfig == named
    home_only = {"HOME": str(home)}
    assert find_source(environ=home_only, service_account=nowhere).kubeconfig == usual


def test_nothing_anywhere_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError) as raised:
        find_source(environ={"HOME": str(tmp_path)}, service_account=tmp_path)
    assert str(raised.value) == (
        "no way to a cluster: this is not a pod with a service account, and "
        f"{tmp_path}/.kube/config does not exist; name a kubeconfig"
    )


def test_a_kubeconfig_that_does_not_exist_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match=r"^kubeconfig .*/nope does not exist$"):
        find_source(str(tmp_path / "nope"))


async def test_several_kubeconfigs_are_one(tmp_path: Path, clock: ManualClock) -> None:
    first = write_kubeconfig(tmp_path / "a", HERE)
    second = write_kubeconfig(tmp_path / "b", "https://elsewhere")
    paths = os.pathsep.join([str(tmp_path / "missing"), first, second])
    source = find_source(environ={"KUBECONFIG": paths}, service_account=tmp_path)

    assert (await Credentials(source, clock).access()).server == HERE


# What they say


async def test_a_pods_own_credentials(tmp_path: Path, clock: ManualClock, ca: trustme.CA) -> None:
    account = service_account(tmp_path, ca)
    access = await Credentials(find_source(environ=INSIDE, service_account=account), clock).access()

    assert access.server == "https://10.0.0.1:443"
    assert access.authorization == "Bearer first"
    assert access.ssl.check_hostname
    assert len(access.ssl.get_ca_certs()) == 1
    assert "first" not in repr(access)


async def test_contexts(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "config"
    write_kubeconfig(path, HERE)
    with editing(path) as config:
        config["contexts"].append({"name": "other", "context": {"cluster": "far", "user": "them"}})
        config["clusters"].append({"name": "far", "cluster": {"server": "http://far:1/base/"}})
        config["users"].append({"name": "them", "user": {"token": "theirs"}})

    mine = await Credentials(find_source(str(path)), clock).access()
    assert (mine.server, mine.authorization) == (HERE, "Bearer secret")
    other = await Credentials(find_source(str(path), "other"), clock).access()
    assert (other.server, other.authorization) == ("http://far:1/base", "Bearer theirs")
    assert other.ssl is None


async def test_the_rest_of_a_cluster(tmp_path: Path, clock: ManualClock) -> None:
    more = {"tls-server-name": "kube", "proxy-url": "http://proxy:3128"}
    path = write_kubeconfig(
        tmp_path / "config", HERE, {}, **more, **{"insecure-skip-tls-verify": True}
    )
    access = await Credentials(find_source(path), clock).access()

    assert (access.server_name, access.proxy) == ("kube", "http://proxy:3128")
    assert not access.ssl.check_hostname
    assert access.authorization == ""


@pytest.mark.parametrize("inline", [True, False])
async def test_certificates_inline_and_in_files(
    tmp_path: Path, clock: ManualClock, ca: trustme.CA, inline: bool, monkeypatch: Any
) -> None:
    leaf = ca.issue_cert("me@test")
    files = {
        "certificate-authority": ca.cert_pem.bytes(),
        "client-certificate": leaf.cert_chain_pems[0].bytes(),
        "client-key": leaf.private_key_pem.bytes(),
    }
    said = {}
    for name, content in files.items():
        if inline:
            said[f"{name}-data"] = base64.b64encode(content).decode()
        else:
            (tmp_path / f"{name}.pem").write_bytes(content)
            said[name] = f"{name}.pem"  # relative to the kubeconfig
    authority = {name: said.pop(name) for name in list(said) if "authority" in name}
    path = write_kubeconfig(tmp_path / "config", HERE, said, **authority)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))

    access = await Credentials(find_source(path), clock).access()

    assert len(access.ssl.get_ca_certs()) == 1
    assert list(temporary.iterdir()) == []  # no private key stays behind


# When they are read again


async def test_a_rotated_token_is_read_within_a_minute(
    tmp_path: Path, clock: ManualClock, ca: trustme.CA
) -> None:
    account = service_account(tmp_path, ca)
    credentials = Credentials(find_source(environ=INSIDE, service_account=account), clock)
    first = await credentials.access()
    service_account(tmp_path, ca, "second")
    clock.advance(59)
    assert await credentials.access() is first
    clock.advance(1)
    second = await credentials.access()

    assert second.authorization == "Bearer second"
    assert second.ssl is first.ssl  # so that connections are kept


async def test_a_token_file_is_read_again_too(tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / "token").write_text("first\n")
    path = write_kubeconfig(tmp_path / "config", HERE, {"tokenFile": "token"})
    credentials = Credentials(find_source(path), clock)
    assert (await credentials.access()).authorization == "Bearer first"
    (tmp_path / "token").write_text("second\n")
    clock.advance(60)

    assert (await credentials.access()).authorization == "Bearer second"


async def test_a_rotated_certificate_makes_a_new_ssl_context(
    tmp_path: Path, clock: ManualClock, ca: trustme.CA
) -> None:
    account = service_account(tmp_path, ca)
    credentials = Credentials(find_source(environ=INSIDE, service_account=account), clock)
    first = await credentials.access()
    service_account(tmp_path, trustme.CA())
    clock.advance(60)

    assert (await credentials.access()).ssl is not first.ssl


async def test_files_that_are_gone_for_a_moment_change_nothing(
    tmp_path: Path, clock: ManualClock, ca: trustme.CA
) -> None:
    account = service_account(tmp_path / "account", ca)
    credentials = Credentials(find_source(environ=INSIDE, service_account=account), clock)
    first = await credentials.access()
    shutil.rmtree(account)
    clock.advance(60)
    assert await credentials.access() is first

    with pytest.raises(Unauthorized, match="refuses our credentials, and new ones are not"):
        await credentials.refresh(first)


async def test_a_plugin_is_asked_again_a_minute_before_its_token_expires(
    tmp_path: Path, clock: ManualClock
) -> None:
    user = token_plugin(tmp_path, expires=clock.wall() + 900)
    credentials = Credentials(find_source(write_kubeconfig(tmp_path / "c", HERE, user)), clock)
    assert (await credentials.access()).authorization == "Bearer token0"
    clock.advance(839)
    assert (await credentials.access()).authorization == "Bearer token0"
    clock.advance(1)

    assert (await credentials.access()).authorization == "Bearer token1"


async def test_a_plugin_may_give_certificates(
    tmp_path: Path, clock: ManualClock, ca: trustme.CA
) -> None:
    leaf = ca.issue_cert("me@test")
    status = {
        "clientCertificateData": leaf.cert_chain_pems[0].bytes().decode(),
        "clientKeyData": leaf.private_key_pem.bytes().decode(),
    }
    said = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "E", "status": status}
    user = plugin(tmp_path, f"print(json.dumps({said!r}))")
    access = await Credentials(
        find_source(write_kubeconfig(tmp_path / "config", HERE, user)), clock
    ).access()

    assert access.authorization == ""


async def test_after_a_401_one_asks_for_all(tmp_path: Path, clock: ManualClock) -> None:
    path = write_kubeconfig(tmp_path / "config", HERE, token_plugin(tmp_path))
    credentials = Credentials(find_source(path), clock)
    refused = await credentials.access()
    second = await credentials.refresh(refused)
    third = await credentials.refresh(refused)  # it was refused before the second came

    assert second is third
    assert second.authorization == "Bearer token1"
    with pytest.raises(Unauthorized, match="refuses the credentials of kubeconfig"):
        await credentials.refresh(second)  # at once: a plugin is not run in a circle
    clock.advance(5)
    assert (await credentials.refresh(second)).authorization == "Bearer token2"


async def test_another_current_context_or_server_does_not_move_a_running_process(
    tmp_path: Path, clock: ManualClock
) -> None:
    path = tmp_path / "config"
    credentials = Credentials(find_source(write_kubeconfig(path, HERE)), clock)
    await credentials.access()
    with editing(path) as config:
        config["contexts"].append({"name": "prod", "context": {"cluster": "far", "user": "me"}})
        config["clusters"].append({"name": "far", "cluster": {"server": "https://prod"}})
        config["users"][0]["user"]["token"] = "new"
        config["current-context"] = "prod"
    clock.advance(60)
    access = await credentials.access()
    assert (access.server, access.authorization) == (HERE, "Bearer new")

    with editing(path) as config:
        config["clusters"][0]["cluster"]["server"] = "https://moved"
    clock.advance(60)
    assert (await credentials.access()).server == HERE
    with pytest.raises(Unauthorized, match="now names another server, https://moved"):
        await credentials.refresh(await credentials.access())


# What is said when they are wrong


def changed(**changes: Any) -> str:
    config = {
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "there", "user": "me"}}],
        "clusters": [{"name": "there", "cluster": {"server": HERE}}],
        "users": [{"name": "me", "user": {"token": "x"}}],
    }
    return json.dumps({**config, **changes})


def with_cluster(**cluster: Any) -> str:
    return changed(clusters=[{"name": "there", "cluster": {"server": HERE, **cluster}}])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", "kubeconfig FILE is not valid YAML: while parsing a flow node expected"),
        ("", "kubeconfig FILE: an entry is missing, empty or of the wrong kind"),
        ("[]", "kubeconfig FILE: an entry is missing, empty or of the wrong kind"),
        ("just words", "kubeconfig FILE: an entry is missing, empty or of the wrong kind"),
        ("{}", "kubeconfig FILE: it has no current-context"),
        (changed(**{"current-context": "prod"}), "kubeconfig FILE: it has no context named prod"),
        (changed(clusters=[]), "kubeconfig FILE: it has no cluster"),
        (changed(users=[]), "kubeconfig FILE: an entry is missing, empty or of the wrong kind"),
        (
            with_cluster(**{"certificate-authority": "ca.pem"}),
            "kubeconfig FILE: File does not exists: FOLDER/ca.pem",
        ),
        (
            with_cluster(**{"certificate-authority-data": "AAAA"}),
            "kubeconfig FILE: ",
        ),
        (
            changed(users=[{"name": "me", "user": {"tokenFile": "token"}}]),
            "kubeconfig FILE: [Errno 2] No such file or directory: 'FOLDER/token'",
        ),
    ],
)
async def test_a_bad_kubeconfig_is_one_sentence(
    tmp_path: Path, clock: ManualClock, text: str, says: str
) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(CredentialsError) as raised:
        await Credentials(find_source(str(path)), clock).access()
    said = str(raised.value).replace(str(path), "FILE").replace(str(tmp_path), "FOLDER")
    assert said.startswith(says)
    assert "\n" not in said
    assert raised.value.__suppress_context__


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (
            "print('no session:\\n  log in first', file=sys.stderr); sys.exit(3)",
            "exec: process returned 3. no session: log in first",
        ),
        ("print('hello')", "exec: failed to decode process output"),
        ("print('{}')", "exec: malformed response. missing key 'apiVersion'"),
    ],
)
async def test_a_plugin_that_fails_is_quoted(
    tmp_path: Path, clock: ManualClock, code: str, says: str
) -> None:
    path = write_kubeconfig(tmp_path / "config", HERE, plugin(tmp_path, code))
    with pytest.raises(CredentialsError) as raised:
        await Credentials(find_source(path), clock).access()
    assert str(raised.value).startswith(f"kubeconfig {path}: {says}")


async def test_a_plugin_that_is_not_installed_is_named(tmp_path: Path, clock: ManualClock) -> None:
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-login"}}
    path = write_kubeconfig(tmp_path / "config", HERE, user)
    with pytest.raises(CredentialsError, match="No such file or directory: 'no-such-login'"):
        await Credentials(find_source(path), clock).access()


async def test_a_plugin_that_hangs_is_given_up(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bayplan.kube.credentials._PLUGIN_S", 0.2)
    user = plugin(tmp_path, "import time; time.sleep(60)")
    path = write_kubeconfig(tmp_path / "config", HERE, user)
    with pytest.raises(CredentialsError, match="its exec plugin did not end within"):
        await Credentials(find_source(path), clock).access()


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [("token", "", "Token file exists but empty"), ("ca.crt", "", "Cert file exists but empty")],
)
async def test_a_broken_service_account_is_one_sentence(
    tmp_path: Path, clock: ManualClock, ca: trustme.CA, file: str, content: str, says: str
) -> None:
    account = service_account(tmp_path, ca)
    (account / file).write_text(content)
    with pytest.raises(CredentialsError, match=f"^service account {account}: {says}"):
        await Credentials(find_source(environ=INSIDE, service_account=account), clock).access()


def test_the_library_is_loaded_without_its_models_and_leaves_no_trace(tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path / "config", HERE)
    script = f"""
import asyncio, sys
from bayplan.kube.clock import RealClock
from bayplan.kube.credentials import Credentials, find_source

def loaded():
    return [name for name in sys.modules if name.startswith("kubernetes_asyncio")]

assert not loaded()
access = asyncio.run(Credentials(find_source({path!r}), RealClock()).access())
assert access.authorization == "Bearer secret"
assert not loaded()
import kubernetes_asyncio.config
assert kubernetes_asyncio.client.V1Pod  # others get the whole of it
assert len(loaded()) > 500
access = asyncio.run(Credentials(find_source({path!r}), RealClock()).access())
"""
    subprocess.run([sys.executable, "-c", script], check=True)
