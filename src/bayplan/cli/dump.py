"""`bayplan dump`: a support bundle of a running scheduler, as one file."""

import io
import os
import tarfile
import time
from pathlib import Path
from typing import Any

import click
import msgspec

from bayplan.cli.server import SERVER, get
from bayplan.cli.shell import OUTPUT, BadInput

HELP = """Write a support bundle of a running scheduler, and print its path.

It holds the configuration, what is believed about nodes and pods, the queue and the last 1,000
decisions, each as a JSON file. Secrets, and the environment, arguments and annotations of pods, are
not in it; names, labels and requests are.

\b
Examples:
  bayplan dump
  bayplan dump -f bundle.tar.gz --server http://127.0.0.1:10271
  bayplan dump -o json
"""


@click.command(help=HELP)
@click.option("-f", "--file", metavar="FILE", help="Where to write.  [default: by the time]")
@SERVER
@OUTPUT
def dump(file: str | None, server: str, output: str) -> None:
    if file is not None and output == "json":
        raise BadInput("-o json prints the bundle, so there is no FILE (see bayplan dump --help)")
    body = get(server, "/v1/dump")
    try:
        found = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise BadInput(f"{server}: this is not the answer of a scheduler: {error}") from None
    if output == "json":
        click.echo(body)
        return
    now = time.time()
    path = Path(file or time.strftime("bayplan-%Y%m%d-%H%M%S.tar.gz", time.localtime(now)))
    try:
        write(path, found, now)
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    click.echo(str(path))


def write(path: Path, found: dict[str, Any], now: float) -> None:
    """A folder with one JSON file per entry, readable by its owner only."""
    folder = path.name.partition(".")[0] or "bayplan"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(file, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as archive:
        for name, value in found.items():
            content = msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
            entry = tarfile.TarInfo(f"{folder}/{name}.json")
            entry.size, entry.mtime, entry.mode = len(content), int(now), 0o600
            archive.addfile(entry, io.BytesIO(content))
