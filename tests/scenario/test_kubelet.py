"""Nodes whose kubelet refuses pods, and devices that nobody here allocates."""

from bayplan.core.engine.questions import fits
from bayplan.core.model.events import DeviceClassGone, DeviceClassSeen, KubeletRefused, NodeGone
from bayplan.testing import World
from bayplan.testing.world import pod

GPU = "nvidia.com/gpu"
REFUSED = KubeletRefused("a", (GPU,))
THROUGH = "only through a DeviceClass, which this scheduler does not allocate"
WAITS = f"0/1 nodes are available: 1 node(s) refused a pod for {GPU} recently."


def closed_for(world: World, resource: str = GPU) -> float:
    """For how many seconds from now the node takes no pods that ask for the resource."""
    return world.engine.cluster.distrusted.nodes["a"][resource].until - world.now


def test_a_refused_pods_node_is_left_alone_for_ten_seconds() -> None:
    world = World(a=8)
    world.tell(REFUSED)
    world.submit("train", gpus=1)
    world.submit("web", cpu=1000)

    assert world.waiting() == {"train": WAITS}
    assert world.running() == {"web": "a"}
    world.wait(2)  # its own rest is over by then
    assert world.engine.next_time(world.now) == 10.0

    world.wait(7)
    assert world.waiting() == {"train": WAITS}

    world.wait(1)
    assert world.running() == {"web": "a", "train": "a"}
    assert world.engine.next_time(world.now) is None


def test_the_pause_doubles_to_five_minutes() -> None:
    world = World(a=8)
    pauses = []
    for _ in range(8):
        world.tell(REFUSED)
        pauses.append(closed_for(world))
        world.wait(400)

    assert pauses == [10, 20, 40, 80, 160, 300, 300, 300]


def test_three_refusals_in_ten_minutes_close_the_node_for_half_an_hour() -> None:
    world = World(a=8)
    for _ in range(3):
        world.tell(REFUSED)
        world.wait(60)
    world.submit("train", gpus=1)

    world.wait(1700 - 60)
    assert world.waiting() == {"train": WAITS}

    world.wait(100)
    assert world.running() == {"train": "a"}


def test_after_a_quiet_half_hour_the_next_is_the_first() -> None:
    world = World(a=8)
    world.tell(REFUSED)
    world.tell(REFUSED)
    world.wait(1800)
    world.tell(REFUSED)

    assert closed_for(world) == 10


def test_a_node_that_counts_otherwise_now_is_trusted_again() -> None:
    world = World(a=8)
    world.tell(KubeletRefused("a", (GPU, "cpu")))
    world.submit("train", gpus=1)
    world.node("a", gpus=7)
    world.wait(1)

    assert world.running() == {"train": "a"}
    assert list(world.engine.cluster.distrusted.nodes["a"]) == ["cpu"]


def test_a_node_that_comes_again_is_a_new_one() -> None:
    world = World(a=8)
    world.tell(REFUSED)
    world.tell(NodeGone("a"))
    world.tell(REFUSED)  # it came late
    world.node("a")
    world.submit("train", gpus=1)

    assert world.running() == {"train": "a"}


def test_too_many_pods_close_the_node_to_all() -> None:
    world = World(a=8)
    world.tell(KubeletRefused("a", ("pods",)))
    world.submit("web")

    text = "1 node(s) refused a pod for pods recently"
    assert world.waiting() == {"web": f"0/1 nodes are available: {text}."}


def test_next_time_is_none_while_nothing_waits_or_too_much_is_in_flight() -> None:
    world = World(a=8, binds="hold")
    world.tell(REFUSED)
    assert world.engine.next_time(0) is None

    world.engine.max_in_flight = 1
    world.submit("web", pods=2)
    assert len(world.running()) == 1
    assert world.engine.next_time(0) is None

    world.answer("web-0")
    assert len(world.running()) == 2


def test_a_pod_with_resource_claims_is_never_bound() -> None:
    world = World(a=8, b=8)
    world.submit("train", resource_claims=True)

    text = "pod uses resourceClaims, which this scheduler does not allocate"
    assert world.waiting() == {"train": f"0/2 nodes are available: {text}."}


def test_a_resource_that_a_device_class_serves_is_not_called_short() -> None:
    world = World(a=0, b=2)
    world.tell(DeviceClassSeen("gpu.example", GPU))
    world.submit("other", gpus=2)
    world.submit("train", gpus=1)

    assert world.running() == {"other": "b"}
    through = f"node(s) could have {GPU} {THROUGH}"
    short = f"Insufficient {GPU}"
    assert world.waiting() == {"train": f"0/2 nodes are available: 1 {short}, 1 {through}."}

    world.tell(DeviceClassGone("gpu.example"))
    world.wait(1)

    assert world.waiting() == {"train": f"0/2 nodes are available: 2 {short}."}


def test_every_device_class_has_a_resource_of_its_own() -> None:
    world = World(a=8)
    own = "deviceclass.resource.kubernetes.io/fpga"
    asked = pod("train", requests={own: 1}, cpu=100_000)
    verdicts = world.engine.verdicts["bayplan"]

    assert fits(verdicts, asked).reasons == {"a": ["Insufficient cpu", f"Insufficient {own}"]}

    world.tell(DeviceClassSeen("fpga", ""))

    found = fits(verdicts, asked)
    through = f"node(s) could have {own} {THROUGH}"
    assert found.reasons == {"a": ["Insufficient cpu", through]}
    assert found.helped_by_preemption == []
