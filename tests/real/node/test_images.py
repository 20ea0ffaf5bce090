"""The archive of images is a function of busybox alone."""

import io
import json
import tarfile
from pathlib import Path

from bayplan.testing import images


def test_the_same_program_gives_the_same_bytes(tmp_path: Path) -> None:
    busybox = tmp_path / "busybox"
    busybox.write_bytes(b"\x7fELF and more")

    one = images.archive(busybox, ["sh", "busybox", "sleep"], "amd64")
    two = images.archive(busybox, ["sleep", "sh", "sh"], "amd64")

    assert one == two
    with tarfile.open(fileobj=io.BytesIO(one)) as tar:
        manifest = json.load(tar.extractfile("manifest.json") or io.BytesIO())
        layer = tar.extractfile(manifest[0]["Layers"][0])
        assert layer is not None
        with tarfile.open(fileobj=layer) as files:
            links = {file.name: file.linkname for file in files if file.issym()}
    assert [image["RepoTags"] for image in manifest] == [[images.BUSYBOX], [images.PAUSE]]
    assert links == {"bin/sh": "/bin/busybox", "bin/sleep": "/bin/busybox"}


def test_a_program_with_a_loader_is_not_static(tmp_path: Path) -> None:
    program = tmp_path / "program"
    for head, static in ((b"\x7fELF", True), (b"\x7fELF /lib64/ld-linux", False), (b"#!", False)):
        program.write_bytes(head)
        assert images.is_static(program) is static
