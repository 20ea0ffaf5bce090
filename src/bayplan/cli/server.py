"""Asking a running scheduler: one request, and one line when nobody answers."""

import json
import ssl
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

import click

from bayplan.cli.shell import BadInput

ADDRESS = "http://127.0.0.1:10271"
LONGEST_S = 120.0  # a fresh list of a large cluster takes a while
SHOWN = 300  # characters of what a server says
META = "bayplan.access"  # where a command's context keeps what the options below say

F = TypeVar("F", bound=Callable[..., Any])

_SERVER = click.option(
    "--server",
    metavar="URL",
    envvar="BAYPLAN_SERVER",
    default=ADDRESS,
    show_default=True,
    help="The API of a running scheduler; also $BAYPLAN_SERVER.",
)


def _note(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    ctx.meta.setdefault(META, {})[param.name] = value


def _access(name: str, words: str) -> Callable[[F], F]:
    variable = f"BAYPLAN_{name.upper().replace('-', '_')}"
    return click.option(
        f"--{name}",
        metavar="FILE",
        envvar=variable,
        callback=_note,
        expose_value=False,
        help=f"{words}; also ${variable}.",
    )


def SERVER(command: F) -> F:
    """`--server`, and what it may ask for. Only the address is handed to the command."""
    for option in (
        _access("client-key", "The certificate's key"),
        _access("client-cert", "A certificate to show to the scheduler"),
        _access("server-ca", "Whose certificates of schedulers to trust"),
        _access("token-file", "A token for the scheduler"),
        _SERVER,
    ):
        command = option(command)
    return command


def get(server: str, path: str) -> bytes:
    """What the scheduler answers."""
    return _ask(Request(f"{address(server)}{path}"))


def post(server: str, path: str, body: bytes) -> bytes:
    """What the scheduler answers to a question in JSON."""
    headers = {"Content-Type": "application/json"}
    return _ask(Request(f"{address(server)}{path}", body, headers))


def _ask(request: Request) -> bytes:
    url, given = request.full_url, click.get_current_context().meta.get(META, {})
    if token := given.get("token_file"):
        request.add_header("Authorization", f"Bearer {_text(token)}")
    # A proxy for the outside world does not lead to a scheduler.
    opener = build_opener(ProxyHandler({}), HTTPSHandler(context=_context(given)))
    try:
        with opener.open(request, timeout=LONGEST_S) as answer:
            body: bytes = answer.read()
            return body
    except HTTPError as error:
        with error:
            said = words(error.read())
        raise BadInput(f"{url}: the server answered {error.code} {error.reason}{said}") from None
    except (OSError, HTTPException, ValueError) as error:
        why = error.reason if isinstance(error, URLError) else error
        why = getattr(why, "strerror", None) or why
        hint = "is `bayplan run` there? --server or $BAYPLAN_SERVER says where"
        raise BadInput(f"{url}: no answer: {why or type(error).__name__} ({hint})") from None


def _context(given: dict[str, str | None]) -> ssl.SSLContext:
    certificate, key = given.get("client_cert"), given.get("client_key")
    if bool(certificate) != bool(key):
        raise BadInput("--client-cert and --client-key go together")
    trusted = given.get("server_ca") or None
    try:
        context = ssl.create_default_context(cafile=trusted)
    except OSError as error:
        raise BadInput(f"--server-ca {trusted}: {error.strerror}") from None
    if certificate and key:
        try:
            context.load_cert_chain(certificate, key, password=lambda: "")
        except OSError as error:
            raise BadInput(f"--client-cert {certificate}: {error.strerror}") from None
    return context


def _text(path: str) -> str:
    try:
        found = Path(path).read_text().strip()
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if not found or not found.isascii() or not found.isprintable():
        raise BadInput(f"{path}: no token in it")
    return found


def address(server: str) -> str:
    """The URL without a slash at its end; http:// where only host and port are given."""
    url = server.rstrip("/") if "://" in server else f"http://{server.rstrip('/')}"
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1)
    except ValueError:
        good = None
    if not good:
        raise BadInput(f"--server {server}: not a URL such as {ADDRESS}")
    return url


def words(body: bytes) -> str:
    """What an answer that is an error says."""
    try:
        found = json.loads(body)
        text = found.get("error") or found.get("message") if isinstance(found, dict) else found
    except ValueError:
        text = body.decode(errors="replace")
    text = " ".join(str(text or "").split())[:SHOWN]
    return f": {text}" if text else ""
