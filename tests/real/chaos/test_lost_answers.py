"""A bind whose answer is lost may have been carried out: its place is not given away meanwhile."""

from pathlib import Path

import pytest

from bayplan.testing.controlplane import ControlPlane
from tests.real.chaos.judging import judge
from tests.real.chaos.load import node, pod
from tests.real.chaos.proxy import Answer, Asked, Drop, Proxy, bind_of, read_of, watch_of
from tests.real.chaos.recorder import Recorder
from tests.real.chaos.replica import Start, kubeconfig

UNAVAILABLE = Answer(503)
IN_DOUBT_S = 8.0  # how long nobody can tell; a server may be away for longer


def says_that_the_second_waits(asked: Asked) -> bool:
    return asked.method == "PATCH" and asked.path.endswith("/pods/second/status")


@pytest.mark.timeout(120, func_only=True)
def test_a_bind_that_was_carried_out_unseen_keeps_its_place(
    empty: ControlPlane, namespace: str, start: Start, tmp_path: Path
) -> None:
    """As when the server goes away just after it bound a pod, and its watches come back last."""
    pods = f"/api/v1/namespaces/{namespace}/pods"
    empty.request("POST", "/api/v1/nodes", node("only", "east"))
    with Proxy(empty) as proxy, Recorder(empty) as recorder:
        replica = start(kubeconfig=kubeconfig(tmp_path / "proxied", proxy.url))
        replica.wait_until_ready()
        carry_out = proxy.hold(bind_of("first"))
        empty.request("POST", pods, pod("first", gpus=8))
        proxy.wait_for(bind_of("first"))
        empty.request("POST", pods, pod("second", gpus=8))
        proxy.wait_for(says_that_the_second_waits)

        let_watches_go_on = proxy.freeze(watch_of("/pods"))
        away = proxy.rule(read_of("first"), UNAVAILABLE)
        proxy.rule(bind_of("first"), Drop(carried_out=True), times=1)
        carry_out()
        assert recorder.wait(lambda: recorder.bound() == 1, 10.0), "the first was not bound"
        both = recorder.wait(lambda: recorder.bound() == 2, IN_DOUBT_S)

        away()
        let_watches_go_on()
        judge(empty, recorder)
        assert not both
