"""Stories of jobs whose number of workers changes, and of nodes that are busier than it seems:
`bayplan demo` plays them."""

from bayplan.cli.story import Arrival, Change, Json, Story, node, pod

_JOBS = "/apis/bayplan.dev/v1alpha1/namespaces/default/elasticjobs"


def _job(name: str, least: int, most: int, **more: str) -> Json:
    worker = pod(name, "bayplan", 1)["spec"]
    return {
        "apiVersion": "bayplan.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": name},
        "spec": {
            "minWorkers": least,
            "maxWorkers": most,
            "template": {"spec": worker},
            **more,
        },
    }


def _comes(name: str, workers: dict[str, int], because: str) -> Change:
    return Change(f"{name} comes", ("POST", _JOBS, _job(name, 2, 5)), workers, because)


COUNTS = Story(
    name="elastic jobs",
    says="each has from 2 to 5 workers with a GPU; there are 6 GPUs, on three nodes",
    nodes=(node("a", 2), node("b", 2), node("c", 2)),
    elastic=True,
    scenes=(
        _comes("first", {"first": 5}, "alone: its maximum"),
        _comes("second", {"first": 3, "second": 3}, "another worker is worth most to who has few"),
        _comes("third", {"first": 2, "second": 2, "third": 2}, "everybody's minimum, before more"),
        Change(
            "first ends",
            ("DELETE", f"{_JOBS}/first", None),
            {"second": 3, "third": 3},
            "the others grow, as GPUs are free",
        ),
        Change(
            "node c dies",
            ("DELETE", "/api/v1/nodes/c", None),
            {"second": 2, "third": 2},
            "4 GPUs are left: each has its minimum, whoever lost workers",
        ),
    ),
)


def granted(workers: int, generation: int, because: str) -> Change:
    """By the controller of the story."""
    grant = {
        "generation": generation,
        "workers": workers,
        "passing": 0,
        "counts": {"nvidia.com/gpu": workers},
    }
    request = ("PATCH", f"{_JOBS}/train/status", {"status": {"grant": grant}})
    return Change(f"train: promised {workers}", request, {"train": workers}, because)


def _worker(number: int, noted: bool = True) -> Json:
    made = pod(f"train-{number}", "bayplan", 1)
    if noted:
        made["metadata"]["annotations"] = {"bayplan.dev/elastic": "train"}
    return made


GROWTH = Story(
    name="growth without a race",
    says=(
        "workers are promised places before they are made, so nobody comes in between; a naive "
        "scaler that looks for free GPUs and then makes a worker may find them gone"
    ),
    nodes=(node("a", 4),),
    elastic=True,
    scenes=(
        Change(
            "train: created",
            ("POST", _JOBS, _job("train", 1, 4, managedBy="example.com/mine")),
            {"train": 0},
            "a job with a controller of its own, which has promised nothing yet",
        ),
        granted(2, 1, "2 of the 4 GPUs are kept; the workers are still to come"),
        Arrival(pod("other-1", "bayplan", 3), None, "4 GPUs are free, but two are promised"),
        Arrival(_worker(0), "a", "its place was kept"),
        Arrival(_worker(1), "a", "its place was kept"),
        Arrival(
            pod("other-2", "bayplan", 2),
            "a",
            "a naive scaler has just seen these 2 free, and makes train-2 …",
        ),
        Arrival(_worker(2), None, "made without a grant, a second too late"),
    ),
)

_PROFILER = "ai.centaurus.io/gpu-"


def _profiled(name: str, used_gb: int, busy: int) -> Json:
    """A node with two cards, described as Alnair's profiler does; nobody asked for them."""
    static = "{'count': '2', 'model': 'Tesla K80', 'mem_size': '12GB', 'pcie_gen_width': '1x16'}"
    card = (
        f"{{'mem_used': '{used_gb}GB', 'mem_free': '{12 - used_gb}GB', 'process_cnt': 1, "
        f"'cyclic_pattern': False, 'max_mem_bw_util': {busy}, 'max_gpu_util': {busy}}}"
    )
    notes = {f"{_PROFILER}static": static, f"{_PROFILER}0": card, f"{_PROFILER}1": card}
    return node(name, 2, notes)


USE = Story(
    name="Alnair's UtilSched",
    says="the profile utilsched looks at what profilers measured, not only at what was asked for",
    nodes=(_profiled("busy", 11, 88), _profiled("idle", 0, 0)),
    scenes=(
        Arrival(pod("train-1", "utilsched", 1), "idle", "busy has as many GPUs, but they work"),
        Arrival(pod("train-2", "utilsched", 1), "idle", "rather a second one on idle"),
        Arrival(pod("train-3", "utilsched", 1), "busy", "it is the last resort, and not refused"),
    ),
)
