"""One bind, and what became of it.

A bind that may or may not have been carried out (a time-out, a broken connection, a 500) is looked
up before anything else is done: the pod itself says on which node it is. Until it does, however
long that takes, the pod keeps its place. It is given up only when nothing that was sent can be
carried out any more.
"""

from msgspec import MsgspecError, Struct
from msgspec.json import Decoder

from bayplan.core.model.effects import Placement
from bayplan.kube import wire
from bayplan.kube.client import PODS, Client
from bayplan.kube.clock import Backoff
from bayplan.kube.transport import ApiError, BeforeSend, Fenced, TransportError
from bayplan.scheduler import requests

TRIES = 4
_decode_pod = Decoder(wire.Pod).decode


class Outcome(Struct, frozen=True, gc=False):
    bound: bool
    why: str = ""
    is_ours: bool = False  # an error that people should hear of, not one that the watch explains


BOUND = Outcome(True)


class _Tries:
    """What was sent for one bind: when last, and whether any of it may still be carried out."""

    def __init__(self, client: Client, before_send: BeforeSend) -> None:
        self.now, self._before_send = client.clock.time, before_send
        self.sent_at = 0.0
        self.unknown = False

    def sending(self) -> None:
        self._before_send()
        self.sent_at = self.now()


class Binder:
    """Sends Bindings behind the fence, with a time-out that the server knows too."""

    def __init__(self, client: Client, timeout_s: float) -> None:
        self._client = client
        # the server gives up first: what we then find is what it will stay
        self._timeout_s = timeout_s
        self._params = {"timeout": f"{max(1, int(timeout_s) - 1)}s"}

    async def bind(
        self, placement: Placement, annotations: dict[str, str], before_send: BeforeSend
    ) -> Outcome:
        wrong = requests.bad_annotation(annotations) if annotations else None
        if wrong is not None:
            return Outcome(False, wrong, is_ours=True)
        tries = _Tries(self._client, before_send)
        outcome = await self._try(tries, placement, annotations)
        if outcome.bound or not tries.unknown:
            return outcome
        # something that was sent may still be on its way to the server, or inside it
        await self._client.clock.sleep(max(0.0, tries.sent_at + self._timeout_s - tries.now()))
        return await self._look(placement, outcome.why) or outcome

    async def _try(
        self, tries: "_Tries", placement: Placement, annotations: dict[str, str]
    ) -> Outcome:
        pod = placement.pod
        path = PODS.path(pod.namespace, pod.name, "binding")
        body = requests.binding(pod, placement.node, annotations)
        backoff: Backoff | None = None
        why = ""
        for _ in range(TRIES):
            asked_s: float | None = None
            try:
                await self._client.request(
                    "POST",
                    path,
                    params=self._params,
                    body=body,
                    timeout_s=self._timeout_s,
                    before_send=tries.sending,
                )
                return BOUND
            except Fenced as fenced:
                return Outcome(False, str(fenced))
            except ApiError as error:
                why, asked_s = str(error), error.retry_after
                if error.status == 404:
                    return Outcome(False, why)
                if error.status != 429 and error.status < 500 and error.status != 409:
                    return Outcome(False, why, is_ours=True)
                unknown, tries.unknown = error.status != 429, tries.unknown or error.status >= 500
            except TransportError as error:
                why, unknown = str(error), error.sent
                tries.unknown = tries.unknown or unknown
            if unknown:
                outcome = await self._look(placement, why)
                if outcome is not None:
                    return outcome
            if backoff is None:
                backoff = Backoff(self._client.clock, self._client.rng, first_s=0.1, most_s=2.0)
            await backoff.pause(asked_s)
        return Outcome(False, why, is_ours=True)

    async def _look(self, placement: Placement, why: str) -> Outcome | None:
        """What the pod says; None when it is not bound and may be tried again."""
        pod = placement.pod
        path = PODS.path(pod.namespace, pod.name)
        backoff = Backoff(self._client.clock, self._client.rng, first_s=0.2, most_s=5.0)
        while True:
            try:
                seen = _decode_pod(await self._client.request("GET", path))
                break
            except ApiError as error:
                if error.status == 404:
                    return Outcome(False, "the pod is gone")
                asked_s = error.retry_after
            except (TransportError, MsgspecError):  # no answer, or none that can be read
                asked_s = None
            await backoff.pause(asked_s)
        metadata, spec = seen.metadata or wire.Metadata(), seen.spec or wire.PodSpec()
        if metadata.uid != pod.uid:
            return Outcome(False, "the pod was made again")
        if spec.node_name:
            if spec.node_name == placement.node:
                return BOUND
            return Outcome(False, f"it was bound to {spec.node_name}")
        if metadata.deletion_timestamp or spec.scheduling_gates:
            return Outcome(False, why)
        return None
