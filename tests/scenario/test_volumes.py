"""Pods with persistent volumes: what they wait for, and where they go."""

from bayplan.core.engine.questions import fits
from bayplan.core.model.events import (
    ClaimGone,
    ClaimSeen,
    StorageClassesHidden,
    StorageClassSeen,
    VolumeGone,
    VolumeSeen,
)
from bayplan.core.model.selectors import NodeTerm, Requirement
from bayplan.core.model.volumes import ONE_POD, Claim, StorageClass, Volume
from bayplan.testing import World
from bayplan.testing.world import HOSTNAME, pod

DATA = ("default/data",)
NONE = "0/2 nodes are available: "


def on_host(*names: str) -> tuple[NodeTerm, ...]:
    return (NodeTerm((Requirement(HOSTNAME, "In", names),)),)


def claim(name: str = "data", volume: str = "", **facts: object) -> ClaimSeen:
    """A claim of the default namespace; with a volume it is bound."""
    made = Claim("default", name, f"uid-{name}", volume, completed=bool(volume), **facts)  # type: ignore
    return ClaimSeen(made)


def test_a_pod_waits_for_its_claim_and_goes_where_its_volume_is() -> None:
    world = World(a=8, b=8)
    world.submit("web", claims=DATA)

    assert world.waiting() == {"web": f'{NONE}persistentvolumeclaim "data" not found.'}

    world.tell(VolumeSeen(Volume("disk", on_host("b"))))
    world.tell(claim(volume="disk"))
    world.wait(1)

    assert world.running() == {"web": "b"}


def test_a_claim_that_is_not_bound_yet_is_waited_for() -> None:
    world = World(a=8, b=8)
    world.tell(claim())
    world.submit("web", claims=DATA)

    assert world.waiting() == {"web": f"{NONE}pod has unbound immediate PersistentVolumeClaims."}

    world.tell(claim(volume="disk"))  # the volume itself has not been seen
    world.wait(1)

    assert world.waiting() == {"web": f'{NONE}persistentvolume "disk" not found.'}

    world.tell(VolumeSeen(Volume("disk")))
    world.wait(2)

    assert list(world.running()) == ["web"]


def test_a_claim_that_goes_is_not_used() -> None:
    world = World(a=8, b=8)
    world.tell(claim(volume="disk", deleting=True))
    world.submit("web", claims=DATA)

    assert world.waiting() == {"web": f'{NONE}persistentvolumeclaim "data" is being deleted.'}

    world.tell(claim(volume="disk", lost=True))
    world.wait(1)

    text = 'persistentvolumeclaim "data" bound to non-existent persistentvolume "disk"'
    assert world.waiting() == {"web": f"{NONE}{text}."}


def test_where_no_node_reaches_the_volume_each_says_so() -> None:
    world = World(a=8, b=0)
    world.tell(VolumeSeen(Volume("disk", on_host("b"))))
    world.tell(claim(volume="disk"))
    world.submit("train", gpus=1, claims=DATA)

    text = "1 Insufficient nvidia.com/gpu, 1 node(s) didn't match PersistentVolume's node affinity"
    assert world.waiting() == {"train": f"{NONE}{text}."}

    world.tell(VolumeSeen(Volume("disk", on_host("a"))))
    world.wait(1)

    assert world.running() == {"train": "a"}


def test_a_claim_is_made_where_its_first_pod_goes_and_the_next_follows() -> None:
    world = World(a=8, b=8, binds="hold")
    world.tell(StorageClassSeen(StorageClass("fast", True, "csi.example")))
    world.tell(claim(storage_class="fast"))
    world.submit("first", claims=DATA)
    world.submit("second", claims=DATA)
    world.submit("third", claims=DATA)

    assert len(set(world.running().values())) == 1
    assert len(world.running()) == 3


def test_a_claim_that_could_not_be_made_may_go_elsewhere() -> None:
    world = World(a=8, b=8, binds="hold")
    world.tell(StorageClassSeen(StorageClass("fast", True, "csi.example")))
    world.tell(claim(storage_class="fast"))
    world.submit("first", gpus=8, claims=DATA)
    at = world.running()["first"]
    world.submit("second", gpus=8, claims=DATA)

    text = (
        "1 Insufficient nvidia.com/gpu, 1 node(s) didn't find available persistent volumes to bind"
    )
    assert world.waiting() == {"second": f"{NONE}{text}."}

    world.answer("first", ok=False)
    world.node(at, unschedulable=True)
    world.wait(1)

    assert set(world.running().values()) == {"a", "b"} - {at}


def test_a_claim_stays_with_the_node_that_was_selected_for_it() -> None:
    world = World(a=8, b=8)
    world.tell(StorageClassSeen(StorageClass("fast", True, "csi.example")))
    world.tell(claim(storage_class="fast", selected_node="b"))
    world.submit("web", claims=DATA)

    assert world.running() == {"web": "b"}


def test_a_class_says_where_volumes_can_be_made() -> None:
    world = World(a=8, b=8)
    world.tell(StorageClassSeen(StorageClass("fast", True, "csi.example", on_host("a"))))
    world.tell(claim(storage_class="fast"))
    world.submit("web", claims=DATA)

    assert world.running() == {"web": "a"}


def test_without_a_provisioner_nothing_is_made_and_nothing_is_chosen() -> None:
    world = World(a=8, b=8)
    world.tell(StorageClassSeen(StorageClass("local", True, "kubernetes.io/no-provisioner")))
    world.tell(claim(storage_class="local"))
    verdicts = world.engine.verdicts["bayplan"]
    asked = pod("web", claims=DATA)

    found = fits(verdicts, asked)
    assert found.reasons["a"] == ["node(s) didn't find available persistent volumes to bind"]

    world.tell(VolumeSeen(Volume("disk", storage_class="local", unclaimed=True)))

    text = "node(s) may have volumes for an unbound claim, but this scheduler chooses none"
    assert fits(verdicts, asked).reasons == {"a": [text], "b": [text]}

    world.tell(VolumeGone("disk"))

    assert fits(verdicts, asked).reasons == found.reasons


def test_a_class_that_may_not_be_read_is_never_guessed() -> None:
    world = World(a=8, b=8)
    world.tell(StorageClassesHidden())
    world.tell(claim(storage_class="fast"))
    world.submit("web", claims=DATA)

    text = 'persistentvolumeclaim "data" is not bound, and its storageclass "fast" is not known'
    assert world.waiting() == {"web": f"{NONE}{text}."}

    world.tell(StorageClassSeen(StorageClass("fast", True, "csi.example")))
    world.wait(1)

    assert list(world.running()) == ["web"]


def test_a_claim_for_one_pod_is_for_one_pod() -> None:
    world = World(a=8, b=8)
    world.tell(VolumeSeen(Volume("disk")))
    world.tell(claim(volume="disk", access_modes=(ONE_POD,)))
    world.submit("first", claims=DATA)
    world.submit("second", claims=DATA)

    text = (
        "2 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode "
        "already in-use by another pod"
    )
    assert world.waiting() == {"second": f"{NONE}{text}."}

    world.finish("first")
    world.wait(1)

    assert list(world.running()) == ["second"]


def test_an_ephemeral_volume_belongs_to_its_pod() -> None:
    world = World(a=8, b=8)
    own = ("default/web-tmp",)
    world.submit("web", claims=own, ephemeral=own, claim_owner="uid-web")

    text = 'waiting for ephemeral volume controller to create the persistentvolumeclaim "web-tmp"'
    assert world.waiting() == {"web": f"{NONE}{text}."}

    world.tell(VolumeSeen(Volume("disk")))
    world.tell(claim("web-tmp", volume="disk", owner="uid-of-the-pod-before"))
    world.wait(1)

    text = "PVC default/web-tmp was not created for pod default/web (pod is not owner)"
    assert world.waiting() == {"web": f"{NONE}{text}."}

    world.tell(claim("web-tmp", volume="disk", owner="uid-web"))
    world.wait(2)

    assert list(world.running()) == ["web"]


def test_a_claim_wakes_only_the_pods_that_name_it() -> None:
    world = World(a=8, b=8)
    for i in range(3):
        world.submit(f"web-{i}", claims=(f"default/data-{i}",))
    world.tell(VolumeSeen(Volume("disk")))
    groups = {group.key: group for group in world.engine.waiting.groups.values()}

    world.engine.handle(claim("data-1", volume="disk"), world.now)

    awake = [g for g in groups.values() if g.refusal is None]
    assert [list(group.members) for group in awake] == [["uid-web-1"]]
    world.tell(ClaimGone("default/data-1"))
    world.wait(1)
    assert world.engine.waiting.asleep == 3


def test_pods_of_one_template_share_what_is_kept_whatever_their_claims() -> None:
    world = World(a=8, b=8)
    for i, host in enumerate("abab"):
        world.tell(VolumeSeen(Volume(f"disk-{i}", on_host(host))))
        world.tell(claim(f"own-{i}", volume=f"disk-{i}"))
        world.submit(f"set-{i}", claims=(f"default/own-{i}",))
    world.submit("plain")

    assert len(world.engine.verdicts["bayplan"]._kept) == 1
    assert [world.running()[f"set-{i}"] for i in range(4)] == ["a", "b", "a", "b"]
