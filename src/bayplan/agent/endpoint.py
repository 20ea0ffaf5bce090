"""A plugin's socket, and its registration with the kubelet, kept up.

A kubelet that starts deletes every socket in its directory and makes its own anew. So the files are
looked at every second: when ours is gone it is made again, and when the kubelet's is another one
the plugin is registered again. A kubelet also forgets a plugin without a restart: when another one
of the same resource, such as the vendor's own, comes and goes. Then it has hung up, or the node's
status offers none of the devices; when that lasts, all is made anew.

Every socket of ours has a name of its own, because a server that ends removes the file of its name,
also when that is another server's by then.
"""

import logging
import os
import re
import secrets
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import grpc
import grpc.aio

from bayplan.agent import wire
from bayplan.agent.counts import Told
from bayplan.agent.plugin import OPTIONS, Plugin
from bayplan.kube.clock import Clock

log = logging.getLogger("bayplan")

KUBELET_SOCKET = "kubelet.sock"
LONGEST_PATH = 107  # bytes, of a socket
_REGISTER_S = 10.0
_STOP_S = 3.0  # for what the kubelet has asked; more than the API is waited for
# Looks for as long as the kubelet seems to have forgotten us; it writes the status every 10 s.
_FIRST_PATIENCE, _LAST_PATIENCE = 20, 300

_File = tuple[int, int]  # inode and when it was made; inodes are used again


class Endpoint:
    def __init__(
        self,
        plugin: Plugin,
        folder: Path,
        clock: Clock,
        is_offered: Callable[[], bool],
        poll_s: float = 1.0,
    ) -> None:
        self._plugin, self._folder, self._clock = plugin, folder, clock
        self._is_offered, self._poll_s, self._counts = is_offered, poll_s, plugin.counts
        self._prefix = f"bayplan-{re.sub(r'[^A-Za-z0-9.]', '-', plugin.resource)}-"
        self._server: grpc.aio.Server | None = None
        self._path = folder
        self._registered: _File | None = None  # the kubelet's socket by which it was
        self._forgotten, self._patience = 0, _FIRST_PATIENCE
        self._told = Told()

    @property
    def is_registered(self) -> bool:
        return self._registered is not None and self._plugin.is_watched and self._is_offered()

    async def keep(self) -> NoReturn:
        """Until cancelled."""
        remove_dead(self._folder, self._prefix)
        try:
            while True:
                await self._look()
                await self._clock.sleep(self._poll_s)
        finally:
            await self._close()

    async def _look(self) -> None:
        try:
            if self._server is None or not self._path.exists():
                await self._close()
                await self._serve()
            kubelet = _file(self._folder / KUBELET_SOCKET)
            if kubelet != self._registered:
                self._registered, self._forgotten = None, 0
                if kubelet is not None:
                    await self._register()
                    self._registered = kubelet
            self._forgotten = 0 if self.is_registered else self._forgotten + 1
            if self._registered is not None and self._forgotten >= self._patience:
                log.warning("%s: the kubelet has forgotten it", self._plugin.resource)
                self._patience = min(2 * self._patience, _LAST_PATIENCE)
                await self._close()
            self._tell()
        except grpc.aio.AioRpcError as error:
            self._tell(f"the kubelet does not register it: {error.details()}")
        except TimeoutError:
            self._tell(f"the kubelet did not answer within {_REGISTER_S:.0f} s")
        except (OSError, RuntimeError) as error:  # grpc's word for a socket that cannot be made
            self._tell(f"no socket in {self._folder}: {error}")

    def _tell(self, why: str | None = None) -> None:
        cases = [(why, f"{self._plugin.resource}: {why}; it is tried again")] if why else []
        self._counts.troubles += self._told.new(cases)

    async def _serve(self) -> None:
        path = self._folder / f"{self._prefix}{secrets.token_hex(4)}.sock"
        if len(os.fsencode(path)) > LONGEST_PATH:
            raise OSError(f"{path} is longer than the {LONGEST_PATH} bytes of a socket's path")
        self._folder.stat()  # a server that is made in vain leaves memory behind
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((self._plugin.handler(),))
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        self._server, self._path = server, path

    async def _register(self) -> None:
        asked = wire.Registration(wire.VERSION, self._path.name, self._plugin.resource, OPTIONS)
        kubelet = wire.channel(str(self._folder / KUBELET_SOCKET))
        async with kubelet as channel, self._clock.timeout(_REGISTER_S):
            await wire.call(channel, wire.REGISTER, wire.Empty)(asked)
        self._counts.registrations += 1
        log.info("registered %s with the kubelet", self._plugin.resource)

    async def _close(self) -> None:
        self._registered, self._forgotten = None, 0
        if self._server is not None:
            server, self._server = self._server, None
            self._plugin.hang_up()
            await server.stop(grace=_STOP_S)
            with suppress(OSError):
                self._path.unlink()


def remove_dead(folder: Path, prefix: str) -> None:
    """Sockets that an earlier agent left behind, and on which nobody listens."""
    for path in folder.glob(f"{prefix}*.sock"):
        with suppress(OSError), socket.socket(socket.AF_UNIX) as ours:
            if stat.S_ISSOCK(path.lstat().st_mode):
                ours.setblocking(False)  # one that hangs may have a full queue
                try:
                    ours.connect(str(path))
                except ConnectionRefusedError:
                    path.unlink()


def _file(path: Path) -> _File | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns
