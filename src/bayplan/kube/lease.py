"""Leader election on a Lease, as client-go does it: who may write, and until when.

    acquire() ──held──▶ keep() ──not renewed in time, or taken──▶ acquire() again, or exit
                          └── cancelled, work done ──▶ release()

Nobody's clock is trusted but our own: another's lease is over when its record has not changed for
its duration since *we* saw it change. What leading means is the caller's business.

It runs in a thread with an event loop of its own, so that a busy scheduler still renews: make the
`HttpTransport`, its `Credentials` and the `Client` inside that loop. They share nothing with
those of the main loop. `renewed_at`, `deadline` and `last_seen_renewal` may be read from any
thread: each is one number, written whole.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct

from bayplan.kube.client import LEASES, Client
from bayplan.kube.transport import ApiError, TransportError

NEVER = float("-inf")
_JITTER = 1.2  # client-go: a standby asks every 1 to 2.2 retry periods


class LeaseConfig(Struct, frozen=True):
    """The times are kube-scheduler's defaults."""

    namespace: str
    name: str
    identity: str  # of this process; a new one after each start
    lease_s: int = 15
    renew_deadline_s: float = 10.0
    retry_s: float = 2.0


class Lease:
    """`on_trouble` hears why a try failed; standing by is no trouble."""

    def __init__(
        self,
        client: Client,
        config: LeaseConfig,
        on_trouble: Callable[[Exception], None] | None = None,
    ) -> None:
        if not config.lease_s > config.renew_deadline_s > config.retry_s * _JITTER:
            raise ValueError("a lease must outlast its renew deadline, and that its retry period")
        self._client, self._clock, self._config = client, client.clock, config
        self._on_trouble = on_trouble
        self._path = LEASES.path(config.namespace, config.name)
        self._seen: dict[str, Any] = {}  # the object as it was last read or written
        self._changed_at = NEVER  # when we saw its spec change

        self.renewed_at = NEVER
        """When we last renewed it: just before the request that succeeded was sent, by the
        clock's `time()`. NEVER while we do not hold it."""
        self.last_seen_renewal = NEVER
        """When we last saw another's record change. NEVER if there was none, or when it was
        given up: then nothing of it is to be waited for."""

    @property
    def deadline(self) -> float:
        """Until when we may act on it, by the clock's `time()`."""
        return self.renewed_at + self._config.renew_deadline_s

    @property
    def holder(self) -> str:
        """Who holds it, as far as we know."""
        return str(_spec(self._seen).get("holderIdentity") or "")

    @property
    def _is_ours(self) -> bool:
        return self.holder == self._config.identity

    async def acquire(self, may_ask: Callable[[], bool] = lambda: True) -> None:
        """Returns when we hold it. While `may_ask` says no, it is not asked for."""
        while not (may_ask() and await self._try(self._config.renew_deadline_s / 2)):
            chance = self._client.rng.random()
            await self._clock.sleep(self._config.retry_s * (1 + _JITTER * chance))

    async def keep(self) -> None:
        """Renews; returns when it is lost: at the renew deadline, or when another has it."""
        while (left_s := self.deadline - self._clock.time()) > 0:
            await self._clock.sleep(min(left_s, self._config.retry_s))
            left_s = self.deadline - self._clock.time()
            most_s = min(left_s, self._config.renew_deadline_s / 2)
            if most_s > 0 and not await self._try(most_s) and not self._is_ours:
                break
        self.renewed_at = NEVER

    async def release(self) -> None:
        """Gives it up, so that another need not wait; when that fails, it runs out by itself."""
        if self.renewed_at == NEVER:
            return
        self.renewed_at = NEVER
        try:
            async with self._clock.timeout(self._config.renew_deadline_s / 2):
                self._observe(await self._get())
                if self._is_ours:
                    now = self._now()
                    given_up = {"holderIdentity": "", "leaseDurationSeconds": 1}
                    await self._put({**given_up, "renewTime": now, "acquireTime": now})
        except (ApiError, TransportError, TimeoutError) as error:
            self._tell(error)

    async def _try(self, most_s: float) -> bool:
        try:
            async with self._clock.timeout(most_s):
                return await self._acquire_or_renew()
        except Exception as error:  # also credentials that cannot be read: the election goes on
            self._tell(error)
            return False

    async def _acquire_or_renew(self) -> bool:
        config = self._config
        if self.renewed_at != NEVER and self._is_ours:
            try:
                await self._take()
                return True
            except ApiError as error:
                if error.status not in (404, 409):
                    raise
        try:
            self._observe(await self._get())
        except ApiError as error:
            if error.status != 404:
                raise
            if self._clock.time() < self.last_seen_renewal + config.lease_s:
                return False  # somebody deleted it, but its holder may write until it runs out
            self._seen = {}
        if self.holder not in ("", config.identity):
            lasts_s = _spec(self._seen).get("leaseDurationSeconds") or config.lease_s
            if self._clock.time() < self._changed_at + lasts_s:
                return False
        await self._take()
        return True

    async def _take(self) -> None:
        """Writes us in. Another's write in between makes it fail (409)."""
        now = self._now()
        spec: dict[str, Any] = {
            "holderIdentity": self._config.identity,
            "leaseDurationSeconds": self._config.lease_s,
            "renewTime": now,
        }
        if not self._is_ours:
            old = _spec(self._seen)
            spec["acquireTime"] = now
            spec["leaseTransitions"] = (old.get("leaseTransitions") or 0) + 1 if old else 0
        began = self._clock.time()
        await self._put(spec)
        self.renewed_at = began

    async def _get(self) -> dict[str, Any]:
        return _decode(await self._client.request("GET", self._path))

    async def _put(self, changes: dict[str, Any]) -> None:
        """What else is in the object stays; its version is in it."""
        lease = {**self._seen, "spec": {**_spec(self._seen), **changes}}
        if self._seen:
            method, path = "PUT", self._path
        else:
            method, path = "POST", LEASES.path(self._config.namespace)
            lease |= {
                "apiVersion": f"{LEASES.group}/{LEASES.version}",
                "kind": "Lease",
                "metadata": {"namespace": self._config.namespace, "name": self._config.name},
            }
        self._seen = _decode(await self._client.request(method, path, body=_encode(lease)))
        self._changed_at = self._clock.time()

    def _observe(self, found: dict[str, Any]) -> None:
        changed = _spec(found) != _spec(self._seen)
        self._seen = found
        if not changed:
            return
        self._changed_at = self._clock.time()
        if self.renewed_at == NEVER or self.holder not in ("", self._config.identity):
            self.last_seen_renewal = self._changed_at if self.holder else NEVER

    def _now(self) -> str:
        return datetime.fromtimestamp(self._clock.wall(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def _tell(self, error: Exception) -> None:
        if self._on_trouble is not None:
            self._on_trouble(error)


_encode = msgspec.json.encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def _spec(lease: dict[str, Any]) -> dict[str, Any]:
    return lease.get("spec") or {}
