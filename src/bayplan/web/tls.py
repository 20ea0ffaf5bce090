"""The server's certificate, and whose clients it takes: from files that others renew.

A change is noticed at the next connection. A half-written or wrong change is logged and what was
there before goes on serving, since a certificate is renewed long before it ends.
"""

import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from msgspec import Struct

log = logging.getLogger(__name__)

_LOOK_S = 1.0  # between two looks at the files; a renewal may take that long to be seen


class BadTls(ValueError):
    """A file that cannot serve, and why."""


class TlsFiles(Struct, frozen=True):
    certificate: str
    key: str
    client_ca: str = ""  # given: only clients with a certificate of this authority …
    or_none: bool = False  # … or with none at all, who must then say otherwise who they are


class Tls:
    def __init__(self, files: TlsFiles, now: Callable[[], float] = monotonic) -> None:
        if not (files.certificate and files.key):
            raise BadTls("TLS needs both a certificate file and a key file")
        self._files, self._now = files, now
        self._seen = _contents(files)
        self._context = _context(files)
        self._looked = now()

    def context(self) -> ssl.SSLContext:
        """What the next connection is to be served with."""
        if self._now() - self._looked >= _LOOK_S:
            self._looked = self._now()
            self._look()
        return self._context

    def _look(self) -> None:
        try:
            found = _contents(self._files)
            if found == self._seen:
                return
            # What is there by now may be newer than what was read; then the next look differs too.
            self._seen = found
            self._context = _context(self._files)
        except BadTls as error:
            log.error("the TLS files changed and cannot be used, the old ones serve on: %s", error)
        else:
            log.info("the TLS files changed; new connections use %s", self._files.certificate)


def _contents(files: TlsFiles) -> tuple[bytes, ...]:
    return tuple(_bytes(path) for path in (files.certificate, files.key, files.client_ca) if path)


def _bytes(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise BadTls(f"{path}: {error.strerror}") from None


def _context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        # Without a password an encrypted key would be asked for on the terminal.
        context.load_cert_chain(files.certificate, files.key, password=lambda: "")
    except OSError as error:
        raise BadTls(_blame(files, error)) from None
    if files.client_ca:
        context.verify_mode = ssl.CERT_OPTIONAL if files.or_none else ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(cafile=files.client_ca)
        except OSError as error:
            raise BadTls(f"{files.client_ca}: no certificate in PEM form ({_why(error)})") from None
    return context


def _blame(files: TlsFiles, error: OSError) -> str:
    """OpenSSL does not say which of the two files it dislikes."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cafile=files.certificate)
    except OSError as of_certificate:
        return f"{files.certificate}: no certificate in PEM form ({_why(of_certificate)})"
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return f"{files.key}: not the key of {files.certificate}"
    return f"{files.key}: no private key in PEM form without a password ({_why(error)})"


def _why(error: OSError) -> str:
    reason = isinstance(error, ssl.SSLError) and error.reason
    return reason.lower().replace("_", " ") if reason else str(error.strerror)
