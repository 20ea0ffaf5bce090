"""The same life of a cluster (`simulation`), with priorities, gangs and budgets.

Every plan is looked at when it is made: nobody goes in vain. In the end nobody waits for room that
less important pods have, nothing is kept for anybody, and no gang of equals runs in part.
"""

from bayplan.core.engine.engine import Engine
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.kube.client import PODS
from tests.fake import simulation
from tests.fake.simulation import Json, Lawyer, Simulation, told
from tests.law.preempting import nobody_goes_in_vain
from tests.real.apicheck import Pod, read_pod, waiting_for_less

CLASSES = {"low": 0, "middle": 100, "high": 1000}
CLASS_PATH = "/apis/scheduling.k8s.io/v1/priorityclasses"
BUDGET_PATH = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
GANG, MINIMUM = "bayplan.dev/gang", "bayplan.dev/gang-min"


class Witness(Lawyer):
    """Looks at every plan, too."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.preemptions = 0

    def step(self, event: on.Event, now: float, effects: list[do.Effect]) -> None:
        super().step(event, now, effects)
        for effect in effects:
            if isinstance(effect, do.Preempt):
                self.preemptions += 1
                nobody_goes_in_vain(self._engine, effect)


class Preempting(Simulation):
    def __init__(self, seed: int, steps: int = 60) -> None:
        super().__init__(seed, steps)
        self.gangs = 0
        self._witnesses: list[Witness] = []
        self.kept: list[str] = []
        self.reserved: dict[str, str] = {}  # by uid: the node that has room for it (reserveAfter)

    async def play(self) -> None:
        for name, value in CLASSES.items():
            made = {"metadata": {"name": name}, "value": value}
            await self._post(CLASS_PATH, made)
        selector = {"matchLabels": {"class": "low"}}
        budget = {"metadata": {"name": "low"}, "spec": {"selector": selector, "minAvailable": 1}}
        await self._post(BUDGET_PATH, budget)
        await super().play()

    async def _add_pods(self) -> None:
        (name,) = self.rng.choices(list(CLASSES), (5, 3, 2))
        gpus, seconds = self.rng.choice((0, 1, 1, 2, 4)), self.rng.choice((None, 5, 30, 100))
        count, notes = self.rng.randint(1, 5), {}
        if self.rng.random() < 0.4:
            self.gangs += 1
            notes = {GANG: f"gang-{self.gangs}", MINIMUM: str(self.rng.randint(1, count))}
            seconds = None
        for _ in range(count):
            self.pods += 1
            made = simulation.pod(f"pod-{self.pods}", gpus, seconds)
            made["metadata"]["annotations"] |= notes
            made["metadata"]["labels"] = {"class": name}
            made["spec"]["priorityClassName"] = name
            await self._post(PODS.path("default"), made)

    def _start(self) -> None:
        super()._start()
        assert self.process is not None
        self.process.service.loop.tries = 1  # so that every plan can be judged by itself
        recorders = self.process.service.loop.recorders
        recorders.remove(self.process.lawyer)
        witness = self.process.lawyer = Witness(self.process.service.engine)
        recorders.append(witness)
        self._witnesses.append(witness)

    def _look(self) -> None:
        super()._look()
        if self.process is not None:
            engine = self.process.service.engine
            owners, awaited = engine.nominations.owners, engine.nominations.awaited
            cluster = engine.cluster
            self.kept = sorted(uid for uid in cluster.holds.rows if owners.get(uid) not in awaited)
            rows = cluster.holds.rows.items()
            self.reserved = {uid: cluster.name(row) for uid, row in rows if uid not in self.kept}

    @property
    def preemptions(self) -> int:
        return sum(witness.preemptions for witness in self._witnesses)

    # ---- the judge

    def judge(self) -> list[str]:
        words = super().judge()
        gangs = {value["metadata"]["name"] for value in self._pods() if gang_of(value)}
        waits = [text for text in words if not any(f"{name} " in f"{text} " for name in gangs)]
        pods = [{**value, "spec": simulation.judged(value)["spec"]} for value in self._pods()]
        vain = waiting_for_less(pods, self._living().values())
        return [*waits, *vain, *(f"room is kept for {uid}" for uid in self.kept)]

    def _expected(self) -> list[Pod]:
        waits = [value for value in self._pods() if value["metadata"]["uid"] in self.reserved]
        nodes = [self.reserved[value["metadata"]["uid"]] for value in waits]
        placed = [
            {**value, "spec": {**value["spec"], "nodeName": node}}
            for value, node in zip(waits, nodes, strict=True)
        ]
        return [read_pod(simulation.judged(value)) for value in placed]

    def _pods(self) -> list[Json]:
        return list(self.api.store.values("pods"))


def gang_of(value: Json) -> str:
    return str(value["metadata"].get("annotations", {}).get(GANG, ""))


def play(seed: int) -> Preempting:
    return told(seed, Preempting)
