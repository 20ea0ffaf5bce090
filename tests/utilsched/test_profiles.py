"""What profilers have written, in each of its forms, and what is left out with which words."""

import json
import math
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.core.model.utilisation import DeviceUse, NodeUse, PodUse
from bayplan.kube.profiles import NEW, OLD, node_use, pod_use
from bayplan.kube.read import Reader

STATIC = "{'count': '2', 'model': 'Tesla K80', 'mem_size': '12GB', 'pcie_gen_width': '1x16'}"
BUSY = (
    "{'mem_used': '11GB', 'mem_free': '1GB', 'process_cnt': 1, 'pid-mem': [(18477, '11094MB')], "
    "'cyclic_pattern': True, 'period': '12.5', 'max_mem_bw_util': 66, 'max_gpu_util': 88}"
)
K80 = NodeUse(2, "Tesla K80", 12, 1, 16)


class Said(list[str]):
    def __call__(self, field: str, why: str) -> None:
        self.append(f"{field}: {why}")


def node(**notes: str) -> NodeUse | None:
    said = Said()
    found = node_use({OLD + name.replace("_", "-"): text for name, text in notes.items()}, said)
    assert not said
    return found


def test_the_originals_sample() -> None:
    busy = DeviceUse(0, 88, 66, 11 * 1024, 1024)
    assert node(gpu_static=STATIC) == K80
    assert node(gpu_static=STATIC, gpu_0=BUSY) == NodeUse(2, "Tesla K80", 12, 1, 16, (busy,))


def test_the_older_key_for_bandwidth() -> None:
    found = node(gpu_3="{'max_mem_util': 7, 'max_gpu_util': 0}")
    assert found == NodeUse(devices=(DeviceUse(3, 0, 7),))


def test_the_oldest_form_of_all() -> None:
    notes = {"GPU_0_job_type": "DLT", "GPU_0_mem_util_max": "66", "GPU_1_job_type": "Empty"}
    found = node(**notes)
    assert found == NodeUse(devices=(DeviceUse(0, copy_percent=66), DeviceUse(1, 0)))


def test_the_newer_form_counts_more_than_the_oldest() -> None:
    found = node(GPU_0_mem_util_max="1", GPU_0_job_type="Empty", gpu_0=BUSY)
    again = node(gpu_0=BUSY, GPU_0_mem_util_max="1", GPU_0_job_type="Empty")
    assert found == again == NodeUse(devices=(DeviceUse(0, 88, 66, 11 * 1024, 1024),))


def test_times_are_in_utc_and_the_later_counts() -> None:
    own = "{'max_gpu_util': 1, 'timestamp': '2022-03-01 12:00:30'}"
    notes = {"gpu_0": own, "gpu_1": "{'max_gpu_util': 2}", "timestamp": "2022-03-01 12:00:00"}
    found = node(**notes)
    noon_s = 1_646_136_000.0
    assert found is not None
    assert [device.at_s for device in found.devices] == [noon_s + 30, noon_s]


def test_json_is_read_too() -> None:
    assert node(gpu_0=json.dumps({"max_gpu_util": 5.4, "cyclic_pattern": False})) == NodeUse(
        devices=(DeviceUse(0, 5),)
    )


@pytest.mark.parametrize("annotations", [{}, {"other/gpu-0": BUSY}, {OLD + "alnair-gpu-id": "x"}])
def test_nothing_said_is_nothing_known(annotations: dict[str, str]) -> None:
    said = Said()
    assert node_use(annotations, said) is None
    assert pod_use(annotations, said) is None
    assert said == []


def test_a_pod_as_the_old_profiler_has_it() -> None:
    said = Said()
    found = pod_use(
        {
            OLD + "node.a-gpu-0_util": "27",
            OLD + "node.a-gpu-1_util": "31.6",
            OLD + "node.a-gpu-0_mem_mb": "11094",
            OLD + "node.a-gpu-0_mem_bw_util": "4",
            OLD + "cpu_util": "250.4",
            OLD + "cpu_mem_mb": "2048",
            OLD + "network_mbps": "1",
            OLD + "disk_io": "2",
            OLD + "timestamp": "2022-03-01 12:00:00",
        },
        said,
    )
    assert found == PodUse(32, 4, 11094, 250, 2048)
    assert said == []


def test_a_pod_as_the_newest_profiler_has_it() -> None:
    said = Said()
    found = pod_use(
        {
            NEW + "max_cpu_util": "12",
            NEW + "max_cpu_mem_mb": "300",
            NEW + "max_network_mbps": "1",
            NEW + "gpu_util": "{'gpu_0_4711': 27, 'gpu_0_4712': 50, 'gpu_1_4713': 30}",
            NEW + "gpu_mem_util": "{'gpu_0_4711': 90, 'gpu_0_4712': 50}",
            NEW + "query_dt": "2022-03-01 12:00:00",
        },
        said,
    )
    assert found == PodUse(77, 100, cpu_percent=12, memory_mib=300)
    assert said == []


AT = "metadata.annotations[ai.centaurus.io/gpu-0]"
HOSTILE = [
    ("{'max_gpu_util': __import__('os').abort()}", f"{AT}: it is no plain Python or JSON value"),
    ("x" * (1 << 20), f"{AT}: it has 1048576 characters, more than 16384"),
    ("{'max_gpu_util': nan}", f"{AT}.max_gpu_util: 'nan' is not within 0 and 100 percent"),
    ("{'mem_used': -inf}", f"{AT}.mem_used: '-inf' is not within"),
    ("{'timestamp': NaN}", f"{AT}.timestamp: 'nan' is no time"),
    ("{'max_gpu_util': 'nan'}", f"{AT}.max_gpu_util: 'nan' is no number"),
    ("{'max_gpu_util': -1}", f"{AT}.max_gpu_util: '-1' is not within 0 and 100 percent"),
    ("{'max_gpu_util': 101}", f"{AT}.max_gpu_util: '101' is not within"),
    ("{'max_gpu_util': True}", f"{AT}.max_gpu_util: 'True' is no number"),
    ("{'max_gpu_util': [1]}", f"{AT}.max_gpu_util: '[1]' is no number"),
    ("{'max_gpu_util': {}}", f"{AT}.max_gpu_util: '{{}}' is no number"),
    ("{'max_gpu_util': None}", f"{AT}.max_gpu_util: 'None' is no number"),
    ("{'max_gpu_util': " + "9" * 400 + "}", f"{AT}: it has a number of more than"),
    ("{'mem_used': '-11GB'}", f"{AT}.mem_used: '-11GB' is no number"),
    ("{'mem_used': '99999999999GB'}", f"{AT}.mem_used: "),
    ("{'mem_used': b'11GB'}", f"{AT}: it is no plain"),
    ("{'timestamp': 'yesterday'}", f"{AT}.timestamp: "),
    ("{'timestamp': 7}", f"{AT}.timestamp: "),
    ("[1, 2]", f"{AT}: it is no dict"),
    ("[[[[[[1]]]]]]", f"{AT}: it is nested deeper than 4"),
    ("7", f"{AT}: it is no dict"),
    ("", f"{AT}: it is no plain"),
]


@pytest.mark.parametrize(("text", "words"), HOSTILE, ids=lambda text: text[:30])
def test_what_is_wrong_is_left_out_by_itself_and_named(text: str, words: str) -> None:
    said = Said()
    notes = {OLD + "gpu-static": STATIC, OLD + "gpu-0": text, OLD + "gpu-1": BUSY}
    found = node_use(notes, said)

    assert found == NodeUse(2, "Tesla K80", 12, 1, 16, (DeviceUse(1, 88, 66, 11 * 1024, 1024),))
    (only,) = said
    assert only.startswith(words)
    assert len(only) < 300


def test_a_wrong_field_leaves_the_others() -> None:
    said = Said()
    text = "{'mem_used': '11GB', 'mem_free': [], 'max_gpu_util': -3, 'max_mem_util': 9}"
    found = node_use({OLD + "gpu-0": text, OLD + "gpu-static": "{'count': 'many'}"}, said)
    assert found == NodeUse(devices=(DeviceUse(0, copy_percent=9, used_mib=11 * 1024),))
    fields = sorted(each.split(": ")[0].rpartition("]")[2] for each in said)
    assert fields == [".count", ".max_gpu_util", ".mem_free"]


@pytest.mark.parametrize("word", ["nan", "inf", "-inf", "NaN", "Infinity", "np.float64(nan)"])
def test_what_is_no_number_leaves_the_others(word: str) -> None:
    said = Said()
    text = f"{{'mem_used': '11GB', 'max_gpu_util': {word}, 'max_mem_bw_util': np.int64(5)}}"
    found = node_use({OLD + "gpu-0": text}, said)
    assert found == NodeUse(devices=(DeviceUse(0, copy_percent=5, used_mib=11 * 1024),))
    (only,) = said
    assert only.startswith(f"{AT}.max_gpu_util: ")
    measures = f"{{'gpu_0_12': 60, 'gpu_0_13': 7, 'gpu_1_9': {word}}}"
    assert pod_use({NEW + "gpu_util": measures}, said) == PodUse(67)


@pytest.mark.parametrize(
    ("size", "mib"),
    [
        ("0.9GB", 922),
        ("11.9GB", 12_186),
        ("1.5 GiB", 1536),
        ("0.6MB", 1),
        ("2.0GB", 2048),
        ("11.0341796875GB", 11_299),
        ("1048576.0GB", 1 << 30),
    ],
)
def test_sizes_count_with_their_decimals(size: str, mib: int) -> None:
    assert node(gpu_0=f"{{'mem_used': '{size}'}}") == NodeUse(devices=(DeviceUse(0, used_mib=mib),))


def test_a_size_above_the_bound_by_a_fraction_is_left_out() -> None:
    said = Said()
    assert node_use({OLD + "gpu-0": "{'mem_used': '1048576.5GB'}"}, said) is None
    assert len(said) == 1


def test_a_model_in_json_may_have_any_letters() -> None:
    for model in ("NVIDIA® A100", "a 😀", "L40"):
        assert node(gpu_static=json.dumps({"model": model})) == NodeUse(model=model)
    assert node(gpu_static='{"model": "a \\ud800"}') == NodeUse(model="a \ufffd")


TEXTS = st.text(max_size=60) | st.sampled_from([text for text, _ in HOSTILE])
KEYS = st.sampled_from(
    [OLD + name for name in ("gpu-static", "gpu-0", "gpu-9999", "GPU-0-mem-util-max", "timestamp")]
    + [OLD + name for name in ("n-gpu-0_util", "n-gpu-0_mem_mb", "cpu_util", "cpu_mem_mb", "")]
    + [NEW + name for name in ("gpu_util", "gpu_mem_util", "max_cpu_util", "query_dt")]
)


@given(st.dictionaries(KEYS, TEXTS, max_size=6))
def test_no_annotation_is_too_bad(annotations: dict[str, str]) -> None:
    said = Said()
    node, pod = node_use(annotations, said), pod_use(annotations, said)
    for device in () if node is None else node.devices:
        assert -1 <= device.gpu_percent <= 100
        assert -1 <= device.copy_percent <= 100
        assert min(device.used_mib, device.free_mib) >= -1
        assert math.isfinite(device.at_s)
    assert pod is None or all(getattr(pod, name) >= -1 for name in pod.__struct_fields__)
    assert all(each.startswith("metadata.annotations[") for each in said)


def test_the_reader_names_the_object_and_reads_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    words: list[str] = []
    reader = Reader(remark=words.append)
    notes = {OLD + "gpu-0": "{'max_gpu_util': print('evaluated')}", OLD + "gpu-1": BUSY}
    metadata: dict[str, Any] = {"name": "n1", "uid": "u", "annotations": notes}
    seen = reader.node({"metadata": metadata, "status": {"allocatable": {"cpu": "4"}}})
    pod = {**metadata, "namespace": "team", "annotations": {OLD + "cpu_util": "-1"}}
    read = reader.pod({"metadata": pod, "spec": {"containers": [{"name": "c"}]}})

    assert seen.allocatable == {"cpu": 4000}
    assert seen.use is not None
    assert [device.index for device in seen.use.devices] == [1]
    assert read.use is None
    assert [each.partition("]")[0] for each in words] == [
        "node n1: metadata.annotations[ai.centaurus.io/gpu-0",
        "pod team/n1: metadata.annotations[ai.centaurus.io/cpu_util",
    ]
    assert all(each.endswith("; it is left out") for each in words)
    assert capsys.readouterr().out == ""


def test_a_megabyte_of_annotations_takes_a_moment() -> None:
    notes = {f"{OLD}gpu-{i}": "{'a': '" + "x" * 16_000 + "'}" for i in range(64)}
    began = time.process_time()
    node_use(notes, Said())
    pod_use({f"{OLD}n-gpu-{i}_util": "9" * 16_000 for i in range(64)}, Said())
    assert time.process_time() - began < 2.0
