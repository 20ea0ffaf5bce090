"""What `bayplan demo` plays: for each system that Bayplan replaces, its own story in a few pods."""

from bayplan.cli.stories_of_elastic import COUNTS, GROWTH, USE
from bayplan.cli.stories_of_gangs import CROWD, GROUP, RACK, ZONES
from bayplan.cli.story import Arrival, Asked, Json, Story, node, pod

HEAD = {"vipu-ctrl": "vctl1"}  # the label of nodes that reach the controller


def _toy(name: str, gpus: int, node: str | None, because: str) -> Arrival:
    return Arrival(pod(name, "toyscheduler", gpus), node, because)


TOY = Story(
    name="toy GPU scheduler",
    says="each pod goes where the fewest GPUs are left over",
    nodes=(node("large", 8), node("small", 4), node("plain")),
    scenes=(
        _toy("nginx-1", 1, "small", "leaves 3 over; on large it would leave 7"),
        _toy("nginx-2", 1, "small", "leaves 2 over"),
        _toy("train", 5, "large", "only large has 5"),
        _toy("nginx-3", 2, "small", "leaves none over; on large it would leave 1"),
        _toy("web", 0, "plain", "needs no GPU, so it takes none away"),
        _toy("too-big", 8, None, "Insufficient nvidia.com/gpu"),
    ),
)

_VGPU = "alnair/vgpu-memory"
_COST_SAVING, _HIGH_PERFORMANCE = "alnair-cost-saving", "alnair-high-performance"


def _alnair_node(name: str, gib: int) -> Json:
    """Two cards, described as Alnair's device plugin does, with its spelling."""
    noted = {
        "ai.centaurus.io/physical-gpu-count": "2",
        "ai.centaurus.io/vitual-gpu-count": f"{gib},{gib}",
        "ai.centaurus.io/physical-gpu-uuids": f"GPU-{name}0,GPU-{name}1",
    }
    return node(name, notes=noted, **{_VGPU: 2 * gib})


def _alnair(name: str, scheduler: str | None, gib: int, to: tuple[str, str], why: str) -> Arrival:
    return Arrival(pod(name, scheduler, **{_VGPU: gib}), to[0], why, (to[1],))


ALNAIR = Story(
    name="Alnair vGPU scheduler",
    says="GiB of one card: cost-saving fills cards, high-performance spreads over them",
    nodes=(_alnair_node("a", 16), _alnair_node("b", 24), node("plain")),
    scenes=(
        _alnair("gpu-pod-04", None, 4, ("a", "GPU-a0"), "the smallest card that it breaks into"),
        _alnair("gpu-pod-06", _COST_SAVING, 6, ("a", "GPU-a0"), "6 of the 12 left on that card"),
        _alnair("gpu-pod-08", _COST_SAVING, 8, ("a", "GPU-a1"), "6 are left there: another card"),
        _alnair("fast-1", _HIGH_PERFORMANCE, 4, ("b", "GPU-b0"), "a card that nobody has"),
        _alnair("fast-2", _HIGH_PERFORMANCE, 4, ("b", "GPU-b1"), "the last such card"),
        Arrival(pod("web", _HIGH_PERFORMANCE), "plain", "ordinary pods are scheduled too"),
        Arrival(
            pod("too-big", _COST_SAVING, **{_VGPU: 22}), None, "60 GiB are free, but on no card 22"
        ),
    ),
    config="alnair",
)

_NEURON, _CORE = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"


def _neuron_node(name: str, type: str, devices: int, cores: int) -> Json:
    """As AWS's device plugin publishes it."""
    made = node(name, 0, None, **{_NEURON: devices, _CORE: devices * cores})
    made["metadata"]["labels"]["node.kubernetes.io/instance-type"] = type
    return made


def _neuron(name: str, devices: int, to: tuple[str, str], why: str) -> Arrival:
    return Arrival(pod(name, "bayplan", **{_NEURON: devices}), to[0], why, tuple(to[1].split()))


NEURON = Story(
    name="AWS Neuron scheduler extension",
    says="devices side by side: any number on inf1 and inf2, whole rows of the torus on trn1",
    nodes=(
        _neuron_node("trn1", "trn1.32xlarge", 16, 2),
        _neuron_node("inf1", "inf1.6xlarge", 4, 4),
        node("plain"),
    ),
    scenes=(
        Arrival(
            pod("seven", "bayplan", **{_NEURON: 7}),
            None,
            "Instance type trn1.32xlarge does not support requests for device: 7",
        ),
        _neuron("llama", 8, ("trn1", "0 1 2 3 4 5 6 7"), "rows 0 and 1 of the torus"),
        _neuron("bert", 3, ("inf1", "0 1 2"), "three side by side; trn1 gives 1, 4, 8 or 16"),
        _neuron("probe", 1, ("inf1", "3"), "the device that is left over breaks no row"),
        _neuron("t5", 4, ("trn1", "8 9 10 11"), "a whole row"),
        Arrival(
            pod("cores", "bayplan", **{_CORE: 2}), "trn1", "both cores of device 12", ("24", "25")
        ),
        Arrival(pod("row", "bayplan", **{_NEURON: 4}), None, "device 12 is in use by its cores"),
        Arrival(pod("web", "bayplan"), "plain", "ordinary pods are scheduled too"),
    ),
)

_IPU = "graphcore.ai/ipu"


def _head(name: str) -> Json:
    made = node(name)
    made["metadata"]["labels"] |= HEAD
    return made


def _ipus(name: str, count: int, urgent: bool = False, gang: str = "", on: str = "") -> Json:
    made = pod(name, "bayplan", **{_IPU: count})
    if on:
        made["spec"]["nodeSelector"] = {"kubernetes.io/hostname": on}
    if urgent:
        made["spec"]["priorityClassName"] = "urgent"
    if gang:
        notes = {"bayplan.dev/gang": gang, "bayplan.dev/gang-min": "2"}
        made["metadata"]["annotations"] = notes
    return made


def _machines(*numbers: int) -> tuple[str, ...]:
    """The IPUs of these IPU-Machines."""
    return tuple(f"ag{number}.{i}" for number in numbers for i in range(4))


_A = _ipus("a", 8, urgent=True, on="head-1")

G8S8 = Story(
    name="g8s8",
    says=(
        "IPUs that both head nodes reach, given as partitions that a controller makes while a pod "
        "is bound; questions are answered in memory, by the code that decides, and come true"
    ),
    nodes=(_head("head-1"), _head("head-2")),
    others=(
        (
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": "urgent"},
                "value": 1000,
            },
        ),
    ),
    ipus=16,
    scenes=(
        Arrival(_ipus("six", 6), None, "partitions are powers of two"),
        Arrival(_ipus("b", 8, on="head-2"), "head-2", "two whole IPU-Machines", _machines(1, 2)),
        Arrival(_ipus("c", 4, on="head-2"), "head-2", "one IPU-Machine", _machines(3)),
        Asked("fits a on head-1?", {"fits": {"pod": _A, "node": "head-1"}}, False),
        Asked(
            "… and without b?",
            {"fits": {"pod": _A, "node": "head-1", "without": ["b"]}},
            True,
            "head-1",
            ("default/b",),
            because="b is on head-2, but its IPUs are everybody's",
        ),
        Asked(
            "who must go for a?",
            {"preempt": {"pod": _A}},
            True,
            "head-1",
            ("default/c",),
            because="b came earlier, and is spared",
        ),
        Asked(
            "how many like c?",
            {"capacity": {"pod": _ipus("like-c", 4)}},
            True,
            count=1,
            because="one IPU-Machine is left, whichever head node asks",
        ),
        Arrival(_A, "head-1", "c was deleted for it, and with c its partition", _machines(3, 4)),
        Arrival(_ipus("w-0", 4, gang="train"), None, "waits for the other member of its gang"),
        Arrival(_ipus("w-1", 4, gang="train"), None, "0 of 2 members fit, so none is placed"),
    ),
)

STORIES = (TOY, ALNAIR, NEURON, G8S8, GROUP, RACK, CROWD, ZONES, COUNTS, GROWTH, USE)
