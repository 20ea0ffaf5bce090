"""What must be true of a pod that others go for, said as code."""

from msgspec.structs import replace

from bayplan.core.engine.engine import Engine
from bayplan.core.engine.questions import asking
from bayplan.core.model import effects as do
from bayplan.core.model.pods import Pod


def nobody_goes_in_vain(engine: Engine, effect: do.Preempt) -> None:
    """Right after the decision, since no plan knows what comes next: once all who were told to go
    are gone, the pod fits on the node beside everybody else who is promised a place; were one of
    its victims there, it would not. No gang is left in part."""
    pod, cluster, nominations = effect.pod, engine.cluster, engine.nominations
    if pod.uid not in nominations.owners:
        return  # a more important one took the place meanwhile
    owner = nominations.owners[pod.uid]
    for victim in effect.victims:
        assert owner in nominations.doomed[victim.uid]
        assert victim.uid not in nominations.spared
    going = [uid for uid in nominations.doomed if uid in cluster.pods]
    members = [uid for uid, who in nominations.owners.items() if who == owner]
    waiters = {uid: engine.waiting.pods[uid][0].pod for uid in members}
    for victim in effect.victims:
        assert victim.priority < max(each.priority for each in waiters.values())
        assert victim.gang is None or pod.gang is None or victim.gang.key != pod.gang.key
    verdicts = engine.verdicts[pod.scheduler]
    with cluster.trial():
        rows = {uid: cluster.holds.rows[uid] for uid in members}
        kept = {uid: cluster.holds.pods[row][uid] for uid, row in rows.items()}  # with devices
        for uid in members:
            cluster.holds.release(uid)
        homes = {uid: cluster.name(cluster.pods[uid].row) for uid in going}
        gone = {uid: cluster.pods[uid].pod for uid in going}
        for uid in going:
            cluster.remove(uid)
        for uid, each in waiters.items():
            with asking(verdicts, each) as ask:
                assert verdicts.takes(ask, rows[uid]), (each, rows[uid])
            cluster.place(replace(kept[uid], node=""), cluster.name(rows[uid]))
        _no_gang_is_left_in_part(engine, effect)
        if pod.gang is None and pod.terms is None and not cluster.terms.terms:
            cluster.remove(pod.uid)
            for victim in effect.victims:
                if victim.gang is None:
                    _is_needed(engine, effect, gone[victim.uid], homes[victim.uid])


def _no_gang_is_left_in_part(engine: Engine, effect: do.Preempt) -> None:
    """By this plan and those before it; members that went by themselves later are nobody's plan."""
    cluster = engine.cluster
    hit = {pod.gang.key for pod in effect.victims if pod.gang is not None}
    for key in hit & cluster.census.gangs.keys():
        members = [cluster.pods[uid].pod for uid in cluster.census.gangs[key]]
        minimum = cluster.groups.minimum
        least = max(minimum(pod.gang) for pod in members if pod.gang is not None)
        assert len(members) >= least, f"gang {key} is left in part"


def _is_needed(engine: Engine, effect: do.Preempt, victim: Pod, home: str) -> None:
    verdicts, cluster = engine.verdicts[effect.pod.scheduler], engine.cluster
    with cluster.trial():
        cluster.place(victim, home)
        with asking(verdicts, effect.pod) as ask:  # now, since its terms count as well
            assert not verdicts.takes(ask, cluster.rows[effect.node]), victim
