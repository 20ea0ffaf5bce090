"""The faithful mode: the numbers of Alnair's code, worked out by hand from its formulas.

Where that code divides by zero, panics, or looks at another node, the corrected result stands here.
"""

import pytest

from bayplan.core.model.utilisation import DeviceUse, NodeUse
from bayplan.kube.profiles import OLD, node_use
from bayplan.testing.world import node, pod
from tests.utilsched.clusters import GIB, carded, device, scores, used, world

TITAN = NodeUse(4, "TITAN X (Pascal)", 12, 3, 16)
V100 = NodeUse(1, "V100", 16, 3, 16)
STATIC = "{'count': '2', 'model': 'Tesla K80', 'mem_size': '12GB', 'pcie_gen_width': '1x16'}"
BUSY = "{'mem_used': '11GB', 'mem_free': '1GB', 'max_mem_bw_util': 66, 'max_gpu_util': 88}"
FULL = "{'mem_used': '12GB', 'mem_free': '0GB', 'max_mem_bw_util': 66, 'max_gpu_util': 88}"


def sample() -> NodeUse:
    """The original's own annotations, with a second device that is full."""
    notes = {f"{OLD}gpu-static": STATIC, f"{OLD}gpu-0": BUSY, f"{OLD}gpu-1": FULL}
    found = node_use(notes, lambda field, why: pytest.fail(f"{field}: {why}"))
    assert found is not None
    return found


def stretched(*raw: int) -> list[int]:
    """The original's NormalizeScore."""
    low, high = min(raw), max(0, *raw)
    if low == high:
        low -= 1
    return [(each - low) * 100 // (high - low) for each in raw]


def by_hand(pod_cpu: int) -> list[int]:
    """5 · Node + 10 · Actual + 3 · PodCPU of the four nodes below."""
    node = [12 * 6 * 2 // 12, 12 * 7 * 4 // 12, 16 * 10 * 1 // 12, 0]
    actual = [11 // (11 + 1) + 12 // (12 + 0), 0, 0, 0]
    assert (node, actual) == ([12, 28, 13, 0], [1, 0, 0, 0])
    return [5 * n + 10 * a + 3 * pod_cpu for n, a in zip(node, actual, strict=True)]


def test_the_originals_numbers() -> None:
    made = world(
        node("k80", use=sample()), node("titan", use=TITAN), node("v100", use=V100), node("none")
    )
    found = scores(made, pod("p", gpus=1), mode="faithful")

    assert by_hand(pod_cpu=1) == [73, 143, 68, 3]
    assert list(found.values()) == stretched(*by_hand(pod_cpu=1)) == [50, 100, 46, 0]


@pytest.mark.parametrize("milli", [0, 1, 500, 64_000])
def test_the_pods_cpu_is_the_same_everywhere_and_so_no_matter(milli: int) -> None:
    assert stretched(*by_hand(milli)) == stretched(*by_hand(0))


def test_pods_without_devices_are_scored_alike() -> None:
    made = world(node("k80", use=sample()), node("titan", use=TITAN))
    assert scores(made, pod("p"), mode="faithful") == {"k80": 0, "titan": 100}


def test_it_prefers_full_devices_as_the_original_does() -> None:
    idle, full = used(device(0), device(1)), used(device(0, used=12 * GIB), device(1))
    made = world(carded("idle", idle), carded("full", full))
    assert scores(made, pod("p", gpus=1), mode="faithful") == {"idle": 0, "full": 100}


def test_equal_nodes_all_get_the_most() -> None:
    made = world(node("a", use=V100), node("b", use=V100), node("c", use=V100))
    assert set(scores(made, pod("p"), mode="faithful").values()) == {100}


# ---- where the original fails


def test_a_real_name_of_a_model_counts_as_that_model() -> None:
    """The original knows "V100" only, and gives 0 to what NVML really says."""
    real = NodeUse(1, "Tesla V100-SXM2-16GB", 16, 3, 16)
    made = world(
        node("a", use=V100), node("b", use=real), node("other", use=NodeUse(8, "A100", 40))
    )
    assert scores(made, pod("p"), mode="faithful") == {"a": 100, "b": 100, "other": 0}


def test_a_device_without_memory_is_no_division_by_zero() -> None:
    made = world(node("a", use=used(device(0, of=0))), node("b", use=used(device(0))))
    assert scores(made, pod("p"), mode="faithful") == {"a": 100, "b": 100}


def test_a_node_without_annotations_does_not_panic() -> None:
    made = world(node("a"), node("b", use=NodeUse(devices=(DeviceUse(0),))))
    assert scores(made, pod("p"), mode="faithful") == {"a": 100, "b": 100}


def test_the_last_node_of_the_list_has_its_own_data() -> None:
    """The original gives it those of the first."""
    made = world(node("first", use=V100), node("last", use=TITAN))
    assert scores(made, pod("p"), mode="faithful") == {"first": 0, "last": 100}


def test_counts_and_sizes_of_any_length_are_read() -> None:
    """The original cuts the text at fixed places: one digit of count, two of memory."""
    text = STATIC.replace("'2'", "'16'").replace("12GB", "8GB").replace("1x16", "4x8")
    found = node_use({f"{OLD}gpu-static": text}, lambda field, why: pytest.fail(why))
    assert found == NodeUse(16, "Tesla K80", 8, 4, 8)


def test_only_feasible_nodes_are_compared() -> None:
    """As in kube-scheduler, which normalises the scores of those that passed."""
    made = world(node("k80", use=sample()), node("v100", use=V100), mode="faithful")
    made.node("far-better", gpus=0, use=TITAN)
    made.submit("p", gpus=1)
    assert made.running() == {"p": "k80"}
