"""How to reach the API server, and as whom: from a kubeconfig, or from a pod's service account.

Reading these is kubernetes_asyncio's work (docs/decisions/0007-the-network-libraries.md). Here is
when to read them again: tokens and certificates in files change under a running process, exec
plugins say when theirs expire, and a 401 means now. Whatever goes wrong is one sentence.

One `Credentials` belongs to one event loop, like the transport that uses it.
"""

import asyncio
import hashlib
import importlib
import importlib.util
import logging
import os
import re
import ssl
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import yaml
from msgspec import Struct

from bayplan.kube.clock import Clock
from bayplan.kube.transport import Unauthorized

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_LIBRARY = "kubernetes_asyncio"

_FILES_S = 60.0  # client-go reads token files again after a minute
_EARLY_S = 60.0  # before an exec plugin's token expires
_PLUGIN_S = 60.0  # what a plugin may take; one that asks for a password in vain must not hang us
_AGAIN_S = 5.0  # between reading them again after a 401
_RECORD = 16 << 10  # bytes: the most that one read of a TLS connection gives (RFC 8446, 5.1)

_NO_ENTRY = re.compile(r"Expected object with name (.*) in .*/(context|cluster|user)s list")
_NO_KEY = re.compile(r"Expected key (\S+) in (.*)")


class CredentialsError(Exception):
    """No way to the API server: which file, and what is wrong with it."""


class Access(Struct, frozen=True, eq=False):
    """Where the API server is, and what to show it."""

    server: str
    authorization: str = ""  # the header
    ssl: Any = None  # an SSLContext, for https
    server_name: str | None = None  # what its certificate says, if not the host
    proxy: str | None = None

    def __repr__(self) -> str:
        return f"Access({self.server!r})"  # no secrets in logs


class Source(Struct, frozen=True):
    """A kubeconfig (or several, as in $KUBECONFIG) and a context of it, or a service account."""

    kubeconfig: str = ""
    context: str | None = None
    service_account: str = ""
    environ: Mapping[str, str] = {}

    def __str__(self) -> str:
        if self.kubeconfig:
            return f"kubeconfig {self.kubeconfig}"
        return f"service account {self.service_account}"


def find_source(
    kubeconfig: str | None = None,
    context: str | None = None,
    environ: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT,
) -> Source:
    """The kubeconfig that is named, else the service account, else $KUBECONFIG, else ~/.kube."""
    if kubeconfig is None:
        inside = {name: environ.get(f"KUBERNETES_SERVICE_{name}") for name in ("HOST", "PORT")}
        if all(inside.values()) and (service_account / "token").is_file():
            return Source(service_account=str(service_account), environ=environ)
        usual = str(Path(environ.get("HOME") or Path.home()) / ".kube" / "config")
        paths = environ.get("KUBECONFIG") or usual
        if not _exists(paths):
            raise CredentialsError(
                f"no way to a cluster: this is not a pod with a service account, and "
                f"{paths} does not exist; name a kubeconfig"
            )
    elif not _exists(paths := kubeconfig):
        raise CredentialsError(f"kubeconfig {kubeconfig} does not exist")
    return Source(kubeconfig=paths, context=context)


class Credentials:
    def __init__(self, source: Source, clock: Clock) -> None:
        self._source, self._clock = source, clock
        self._reading = asyncio.Lock()
        self._loading = threading.Lock()
        self._loaded: _Loaded | None = None
        self._stale_at = 0.0
        self._forced_at = float("-inf")

    async def access(self) -> Access:
        """What holds now. The first call reads it and may raise `CredentialsError`."""
        loaded = self._loaded
        if loaded is None:
            async with self._reading:
                return await self._read(None)
        if self._clock.time() >= self._stale_at and not self._reading.locked():
            async with self._reading:
                self._stale_at = self._clock.time() + _FILES_S
                with suppress(CredentialsError):  # what we have may still do; a 401 will tell
                    return await self._read(loaded)
        return loaded.access

    async def refresh(self, refused: Access) -> Access:
        """Something newer than what a 401 refused, or `Unauthorized`."""
        async with self._reading:
            loaded = self._loaded
            if loaded is not None and loaded.access is not refused:
                return loaded.access  # somebody was faster
            if self._clock.time() - self._forced_at < _AGAIN_S:
                raise Unauthorized(f"the API server refuses the credentials of {self._source}")
            try:
                access = await self._read(loaded)
            except CredentialsError as error:
                why = "the API server refuses our credentials, and new ones are not to be had"
                raise Unauthorized(f"{why}: {error}") from None
            self._forced_at = self._clock.time()
            return access

    async def _read(self, old: "_Loaded | None") -> Access:
        """In a thread: files and plugins may be slow. One that is not waited for still counts."""
        loaded = await asyncio.to_thread(self._load, old)
        expires_in = None if loaded.expires is None else loaded.expires - self._clock.wall()
        self._stale_at = self._clock.time() + (
            _FILES_S if expires_in is None else max(expires_in - _EARLY_S, _AGAIN_S)
        )
        return loaded.access

    def _load(self, old: "_Loaded | None") -> "_Loaded":
        with self._loading:
            if self._loaded is None or self._loaded is old:
                loaded = _load(self._source, old)
                if old is not None and loaded.access.server != old.access.server:
                    raise CredentialsError(
                        f"{self._source} now names another server, {loaded.access.server}"
                    )
                self._loaded = loaded
            return self._loaded


class _Loaded(Struct, frozen=True):
    access: Access
    context: str | None = None  # the one that was current, so that a later switch does not move us
    expires: float | None = None  # wall clock
    tls: bytes = b""  # digest of all that the SSL context was made from


_library_lock = threading.Lock()  # the library keeps the temporary files of all threads together


def _load(source: Source, old: _Loaded | None) -> _Loaded:
    with _library_lock:
        found = SimpleNamespace(api_key={})
        library = _library()
        try:
            with asyncio.Runner(loop_factory=_PluginLoop) as runner:
                loader = runner.run(_ask(library, source, old, found))
            return _loaded(loader, found, old)
        except TimeoutError:
            why = f"its exec plugin did not end within {_PLUGIN_S:.0f} s"
            raise CredentialsError(f"{source}: {why}") from None
        except yaml.YAMLError as error:
            raise CredentialsError(f"{source} is not valid YAML: {_line(error)}") from None
        except Exception as error:
            raise CredentialsError(f"{source}: {_sentence(error)}") from None
        finally:
            # inline keys were written to files for OpenSSL; it has read them by now
            getattr(library.kube_config, "_cleanup_temp_files", lambda: None)()


async def _ask(library: Any, source: Source, old: _Loaded | None, found: SimpleNamespace) -> Any:
    if not source.kubeconfig:
        library.load_incluster_config(
            client_configuration=found,
            token_filename=os.path.join(source.service_account, "token"),
            cert_filename=os.path.join(source.service_account, "ca.crt"),
            environ=source.environ,
        )
        return None
    try:
        async with asyncio.timeout(_PLUGIN_S):
            return await library.load_kube_config(
                config_file=source.kubeconfig,
                context=old.context if old else source.context,
                client_configuration=found,
            )
    except TimeoutError:
        await _PluginLoop.end()
        raise


class _PluginLoop(asyncio.SelectorEventLoop):
    """A loop that can end what it started: the library leaves a plugin that hangs to itself."""

    plugin: asyncio.SubprocessTransport | None = None

    async def subprocess_exec(self, *args: Any, **options: Any) -> Any:
        transport, protocol = await super().subprocess_exec(*args, **options)
        self.plugin = transport
        return transport, protocol

    @staticmethod
    async def end() -> None:
        loop = asyncio.get_running_loop()
        if isinstance(loop, _PluginLoop) and loop.plugin is not None:
            loop.plugin.close()  # kills it
            for _ in range(100):  # its end is noticed in a while, and must be before the loop's
                if loop.plugin.get_returncode() is None:
                    await asyncio.sleep(0.01)


def _loaded(loader: Any, found: SimpleNamespace, old: _Loaded | None) -> _Loaded:
    context = loader.current_context["name"] if loader else None
    expiry = getattr(loader, "exec_plugin_expiry", None)
    tls, secure = b"", None
    if found.host.startswith("https://"):
        files = [getattr(found, name, None) for name in ("ssl_ca_cert", "cert_file", "key_file")]
        verify = getattr(found, "verify_ssl", True)
        parts = [Path(file).read_bytes() if file else b"" for file in files]
        tls = hashlib.sha256(b"\0".join([*parts, b"%d" % bool(verify)])).digest()
        secure = old.access.ssl if old and old.tls == tls else _ssl_context(*files, verify=verify)
    access = Access(
        server=found.host.rstrip("/"),
        authorization=found.api_key.get("BearerToken", "").strip(),
        ssl=secure,
        server_name=getattr(found, "tls_server_name", None),
        proxy=getattr(found, "proxy", None),
    )
    return _Loaded(access, context, expiry.timestamp() if expiry else None, tls)


class _Frugal(ssl.SSLObject):
    """Reads as much as there can be. Event loops ask for 256 KiB each time; where the allocator's
    thresholds are lower (`scheduler.heap`), that is a mapping made, shrunk and given back: a
    seventh of the CPU time of a request, and most of the system's."""

    def read(self, len: int = 1024, buffer: Any = None) -> Any:
        return super().read(min(len, _RECORD), buffer)


def _ssl_context(
    ca: str | None, certificate: str | None, key: str | None, *, verify: bool
) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca)
    context.sslobject_class = _Frugal
    # Python 3.13 turned this on; many clusters' certificates lack what it asks for, and client-go
    # does not ask.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate:
        context.load_cert_chain(certificate, key)
    return context


def _library() -> Any:
    """kubernetes_asyncio.config, without the package's thousand generated modules.

    Its parts that read credentials name two classes of the generated client, in functions that
    are not called here; importing them the usual way costs 37 MB. So they are imported under
    stand-ins for the packages above them, which are taken away again.
    """
    global _config
    if _config is None:
        try:
            _config = _import_light()
        except Exception:  # its inside has changed: heavier, but it works
            _config = importlib.import_module(f"{_LIBRARY}.config")
        # it logs what it raises
        logging.getLogger(f"{_LIBRARY}.config.kube_config").setLevel(logging.CRITICAL)
    return _config


_config: ModuleType | None = None


def _import_light() -> ModuleType:
    def ours() -> list[str]:
        return [name for name in sys.modules if name.split(".")[0] == _LIBRARY]

    if ours():
        return importlib.import_module(f"{_LIBRARY}.config")
    spec = importlib.util.find_spec(_LIBRARY)
    if spec is None:
        raise ModuleNotFoundError(_LIBRARY)
    package, client = importlib.util.module_from_spec(spec), ModuleType(f"{_LIBRARY}.client")
    client.__dict__.update(ApiClient=object, Configuration=object)
    sys.modules.update({package.__name__: package, client.__name__: client})
    try:
        return importlib.import_module(f"{_LIBRARY}.config")
    finally:
        for name in ours():
            del sys.modules[name]


def _exists(paths: str) -> bool:
    return any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep) if path)


def _sentence(error: Exception) -> str:
    text = _line(error)
    if found := _NO_ENTRY.search(text):
        return f"it has no {found[2]} named {found[1]}"
    if found := _NO_KEY.search(text):
        return f"it has no {found[1]}"
    if isinstance(error, AttributeError | TypeError | KeyError | AssertionError):
        return f"an entry is missing, empty or of the wrong kind ({type(error).__name__}: {text})"
    return text.removeprefix("Invalid kube-config file. ")


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
