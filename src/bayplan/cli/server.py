"""Asking a running scheduler: one GET, and one line when nobody answers."""

import json
from http.client import HTTPException
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

import click

from bayplan.cli.shell import BadInput

ADDRESS = "http://127.0.0.1:10271"
LONGEST_S = 120.0  # a fresh list of a large cluster takes a while
SHOWN = 300  # characters of what a server says

SERVER = click.option(
    "--server",
    metavar="URL",
    envvar="BAYPLAN_SERVER",
    default=ADDRESS,
    show_default=True,
    help="The API of a running scheduler; also $BAYPLAN_SERVER.",
)


def get(server: str, path: str) -> bytes:
    """What the scheduler answers."""
    url = f"{address(server)}{path}"
    try:
        # A proxy for the outside world does not lead to a scheduler.
        with build_opener(ProxyHandler({})).open(url, timeout=LONGEST_S) as answer:
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
