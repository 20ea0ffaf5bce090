"""Questions to the running scheduler, answered on its own state between two events.

A small question is answered at once, and takes the loop's time: about a millisecond. A large one is
answered by a copy of the process (`apart`), which has the state of the moment. Both are bounded, by
what they may ask for and by the time that they may take.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from bayplan.core.engine.advice import Advice
from bayplan.core.engine.bounds import Limits, TooLong, TooMuch
from bayplan.core.engine.engine import Engine
from bayplan.core.engine.what_if import WhatIf
from bayplan.core.model import steps as ask_for
from bayplan.core.model.advice import Explanation, UnknownPod
from bayplan.core.model.pods import Pod
from bayplan.core.model.steps import Changed, Counted, Failed, GangWhere, Step, Where
from bayplan.core.model.vendors import Vendors
from bayplan.kube.client import Client
from bayplan.kube.read import Reader
from bayplan.kube.steps import BadQuestion, FitsStep, Question, read_fits, read_steps
from bayplan.scheduler.apart import Apart
from bayplan.scheduler.classes import KnownClasses
from bayplan.scheduler.config import ApiAccess, ConfigError
from bayplan.web.api import Access, Asked, BadToken, Handler, Table, Token
from bayplan.web.desk import Refused
from bayplan.web.questions import PodQuestion, Types, routes
from bayplan.web.server import Answer, Routes
from bayplan.web.tls import BadTls, Tls, TlsFiles

LONGEST_S = 2.0  # a loop that does not tick for 5 s is taken for dead
LONGEST_APART_S = 20.0
SMALL_BYTES, FEW = 64 << 10, 8  # of a question that is answered at once: its body, its steps
Read = Callable[[], list[Step]]
TYPES = Types(Question, FitsStep, (Where, GangWhere, Counted, Changed, Failed), Explanation)


class LiveQuestions:
    """`is_ready`: the state is all that the API server has; before, nothing is answered."""

    def __init__(
        self,
        engine: Engine,
        vendors: Vendors,
        client: Client,
        is_ready: Callable[[], bool],
        apart: Apart | None = None,
    ) -> None:
        self._engine, self._vendors, self._is_ready = engine, vendors, is_ready
        self._apart = apart
        self._classes = KnownClasses(client)
        self._what_if = WhatIf(engine, Limits(seconds=LONGEST_S), client.clock.time)
        self._patient = WhatIf(engine, Limits(seconds=LONGEST_APART_S), client.clock.time)
        self._advice = Advice(engine)

    async def what_if(self, body: bytes) -> bytes:
        await self._classes.refresh()
        return await self._answer(lambda: read_steps(body, self._reader()), len(body))

    async def fits(self, body: bytes) -> bytes:
        await self._classes.refresh()
        return await self._answer(lambda: [read_fits(body, self._reader())], len(body))

    async def fits_known(self, question: PodQuestion) -> bytes:
        return await self._answer(lambda: [self._known(question)])

    async def explain(self, pod: str) -> bytes:
        self._check_ready()
        if self._apart is None:
            return self._explained(pod)
        return await self._apart.run(lambda: self._explained(pod))

    def _explained(self, pod: str) -> bytes:
        try:
            return msgspec.json.encode(self._advice.explain(pod))
        except UnknownPod as unknown:
            raise Refused(404, str(unknown)) from None

    def _check_ready(self) -> None:
        if not self._is_ready():
            raise Refused(503, "the scheduler has not read the whole cluster yet")

    async def _answer(self, read: Read, size: int = 0) -> bytes:
        self._check_ready()
        if self._apart is None:
            return asked(self._what_if, read)
        if size <= SMALL_BYTES:
            steps = readable(read)
            if is_small(steps):
                return asked(self._what_if, lambda: steps)
        return await self._apart.run(lambda: asked(self._patient, read))

    def _reader(self) -> Callable[[dict[str, Any]], Pod]:
        """A manifest's pod. The reader is the question's own: what it keeps ends with it."""
        reader = Reader(self._vendors)
        return lambda manifest: self._classes.pod(manifest, reader)

    def _known(self, question: PodQuestion) -> Step:
        key = question.pod if "/" in question.pod else f"default/{question.pod}"
        waiting = (waiter.pod for waiter, _ in self._engine.waiting.pods.values())
        parked = (pod for pod, _ in self._engine.held.values())
        for pod in (*waiting, *parked):
            if pod.key == key:
                return ask_for.Fits(pod, question.node, question.without)
        return ask_for.Unreadable(f"no pod {key} waits")


def asked(what_if: WhatIf, read: Read) -> bytes:
    try:
        return msgspec.json.encode(what_if.ask(readable(read)))
    except TooMuch as error:
        raise Refused(400, str(error)) from None
    except TooLong as error:
        raise Refused(503, f"{error}; ask for less at once") from None


def readable(read: Read) -> list[Step]:
    try:
        return read()
    except BadQuestion as error:
        raise Refused(400, str(error)) from None


def is_small(steps: list[Step]) -> bool:
    """Whether it is answered in about a millisecond: one or a few pods, one after the other."""
    named = 0
    for step in steps:
        match step:
            case ask_for.Fits(without=without):
                named += len(without)
            case ask_for.Evict(pods):
                named += len(pods)
            case ask_for.Place() | ask_for.Unreadable():
                continue
            case _:
                return False
    return len(steps) <= FEW and named <= FEW


def table(questions: LiveQuestions, others: Routes, version: str) -> Table:
    """All that can be asked; `others` are plain GETs."""
    return {
        **routes(questions, TYPES, version),
        **{path: {"GET": _plain(answer)} for path, answer in others.items()},
    }


def _plain(answer: Callable[[], Awaitable[Answer]]) -> Handler:
    async def handle(_: Asked) -> Answer:
        return await answer()

    return handle


def access_of(settings: ApiAccess) -> Access:
    """Who may ask. `ConfigError` when a file cannot be used."""
    files, token = settings.tls, None
    try:
        if settings.token_file:
            token = Token(settings.token_file)
        if not files.cert_file:
            return Access(token)
        either = TlsFiles(
            files.cert_file, files.key_file, files.client_ca_file, or_none=token is not None
        )
        return Access(token, Tls(either), bool(files.client_ca_file))
    except (BadToken, BadTls) as error:
        raise ConfigError(f"apiAccess: {error}") from None
