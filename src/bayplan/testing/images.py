"""Container images made of one static program, as an archive that `ctr images import` takes.

The same program gives the same bytes. There is no registry, no compression, and one layer: all of
busybox with a link for each of its applets.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

BUSYBOX = "localhost/busybox:1"
PAUSE = "localhost/pause:1"
# The sandbox of a pod only has to stay; it is ended with SIGKILL.
COMMANDS: Mapping[str, Sequence[str]] = {
    BUSYBOX: ("/bin/sh",),
    PAUSE: ("/bin/sleep", "infinity"),
}
FOLDERS = ("bin", "dev", "etc", "proc", "sys", "tmp")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # Go's names of them


def archive(busybox: Path, applets: Iterable[str], architecture: str) -> bytes:
    """Both images, in the form of `docker save`."""
    layer = _layer(busybox.read_bytes(), sorted(set(applets) - {"busybox"}))
    digest = hashlib.sha256(layer).hexdigest()
    files = {f"{digest}.tar": layer}
    manifest = []
    for name, command in COMMANDS.items():
        config = json.dumps(_config(command, digest, architecture), sort_keys=True).encode()
        path = f"{hashlib.sha256(config).hexdigest()}.json"
        files[path] = config
        manifest.append({"Config": path, "RepoTags": [name], "Layers": [f"{digest}.tar"]})
    files["manifest.json"] = json.dumps(manifest, sort_keys=True).encode()
    return _tar((_entry(path), data) for path, data in files.items())


def is_static(program: Path) -> bool:
    """Whether it needs no loader, whose path a dynamic program names in its first bytes."""
    with open(program, "rb") as file:
        head = file.read(4096)
    return head.startswith(b"\x7fELF") and b"/ld-" not in head


def _layer(busybox: bytes, applets: Sequence[str]) -> bytes:
    def entries() -> Iterable[tuple[tarfile.TarInfo, bytes]]:
        for folder in FOLDERS:
            yield _entry(folder, tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755), b""
        yield _entry("bin/busybox", mode=0o755), busybox
        for applet in applets:
            link = _entry(f"bin/{applet}", tarfile.SYMTYPE, 0o777)
            link.linkname = "/bin/busybox"
            yield link, b""

    return _tar(entries())


def _config(command: Sequence[str], layer: str, architecture: str) -> dict[str, Any]:
    return {
        "architecture": architecture,
        "os": "linux",
        "config": {"Cmd": list(command), "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer}"]},
    }


def _entry(path: str, kind: bytes = tarfile.REGTYPE, mode: int = 0o644) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path)
    entry.type, entry.mode = kind, mode
    return entry


def _tar(entries: Iterable[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for entry, data in entries:
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return written.getvalue()
