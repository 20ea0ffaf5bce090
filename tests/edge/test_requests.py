"""What a pod asks for in all."""

import pytest

from bayplan.core.model.quantity import parse
from bayplan.core.model.requests import Ask, Asked, PodAsk, TooManyResources, asked, is_counted

MI = 2**20


def amounts(**quantities: str) -> dict[str, int]:
    return {name.replace("_", "-"): parse(text) for name, text in quantities.items()}


def ask(restartable: bool = False, **quantities: str) -> Ask:
    return Ask(amounts(**quantities), restartable)


def figures(
    *containers: Ask,
    init: tuple[Ask, ...] = (),
    whole: Ask | None = None,
    bound: bool = True,
    infeasible: bool = False,
    **overhead: str,
) -> Asked:
    pod = PodAsk(containers, init, whole or Ask(), amounts(**overhead), infeasible)
    return asked(pod, bound)


def requests(*containers: Ask, init: tuple[Ask, ...] = ()) -> dict[str, int]:
    return dict(figures(*containers, init=init).requests)


def test_containers_add_up_exactly_and_are_rounded_once() -> None:
    assert requests(ask(cpu="500u"), ask(cpu="500u")) == {"cpu": 1}
    assert requests(ask(memory="1500m"), ask(memory="1500m")) == {"memory": 3}


def test_zeros_are_left_out() -> None:
    assert requests(ask(cpu="0", memory="0Mi")) == {}
    assert requests() == {}


def test_an_init_container_needs_its_own_only_while_it_runs() -> None:
    assert requests(ask(cpu="1"), init=(ask(cpu="3"), ask(cpu="2"))) == {"cpu": 3000}
    assert requests(ask(cpu="5"), init=(ask(cpu="3"),)) == {"cpu": 5000}


def test_sidecars_count_with_the_containers_and_with_later_init_containers() -> None:
    sidecar = ask(restartable=True, cpu="1")
    assert requests(ask(cpu="1"), init=(sidecar,)) == {"cpu": 2000}
    assert requests(ask(cpu="1"), init=(sidecar, ask(cpu="4"))) == {"cpu": 5000}
    assert requests(ask(cpu="1"), init=(ask(cpu="4"), sidecar)) == {"cpu": 4000}


def test_overhead_comes_on_top() -> None:
    got = figures(ask(cpu="1"), init=(ask(cpu="3"),), cpu="250m", memory="1Mi")
    assert got.requests == (("cpu", 3250), ("memory", MI))


def test_pod_level_requests_replace_the_containers() -> None:
    whole = Ask({**amounts(cpu="2", hugepages_2Mi="4Mi"), "example.com/foo": parse("9")})
    got = figures(ask(cpu="5", memory="1Mi"), whole=whole, cpu="1")
    assert dict(got.requests) == {"cpu": 3000, "memory": MI, "hugepages-2Mi": 4 * MI}


@pytest.mark.parametrize(("infeasible", "cpu"), [(False, 4000), (True, 3000)])
def test_a_resize_under_way_counts_as_the_most_of_it(infeasible: bool, cpu: int) -> None:
    resized = Ask(amounts(cpu="4"), False, amounts(cpu="2"), amounts(cpu="3"))
    assert figures(resized, infeasible=infeasible).requests == (("cpu", cpu),)
    assert figures(resized, infeasible=infeasible, bound=False).requests == (("cpu", 4000),)


def test_a_resize_of_an_init_container_counts_only_if_it_stays() -> None:
    for restartable, cpu in ((True, 2000), (False, 1000)):
        init = Ask(amounts(cpu="1"), restartable, amounts(cpu="2"))
        assert figures(init=(init,)).requests == (("cpu", cpu),)


def test_a_pod_level_resize_that_is_infeasible_counts_what_was_given() -> None:
    whole = Ask(amounts(cpu="4", memory="1Mi"), False, amounts(cpu="2"))
    got = figures(ask(), whole=whole, infeasible=True)
    assert got.requests == (("cpu", 2000),)


def test_scores_take_containers_that_say_nothing_for_something() -> None:
    got = figures(ask(cpu="1"), ask(cpu="0", memory="1Mi"), init=(ask(),))
    assert got.requests == (("cpu", 1000), ("memory", MI))
    assert got.scored == (("cpu", 1000), ("memory", 201 * MI))
    assert got.scored_placed == (1000, 201 * MI)
    assert figures(ask(), ask()).scored == (("cpu", 200), ("memory", 400 * MI))


def test_pod_level_requests_are_scored_differently_before_and_after_placing() -> None:
    got = figures(ask(memory="1Mi"), ask(), whole=ask(cpu="2"))
    assert got.scored == (("cpu", 200), ("memory", 201 * MI))  # as if there were none
    assert got.scored_placed == (2000, MI)  # memory is known for the pod, so nothing is made up


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("cpu", True),
        ("memory", True),
        ("ephemeral-storage", True),
        ("nvidia.com/gpu", True),
        ("hugepages-1Gi", True),
        ("attachable-volumes-csi", True),
        ("kubernetes.io/anything", True),
        ("x.kubernetes.io/y", True),
        ("pods", False),
        ("gpu", False),
        ("storage", False),
        ("requests.example.com/x", False),
        ("a/b/c", False),
        ("/x", False),
        ("Example.com/x", False),
        ("example.com/-x", False),
        ("example.com/" + "x" * 63, True),
        ("example.com/" + "x" * 64, False),
        ("x" * 244 + "/y", True),  # a label may be long here, as long as the whole prefix is not
        ("x" * 245 + "/y", False),
    ],
)
def test_which_resources_count(name: str, counts: bool) -> None:
    assert is_counted(name) is counts
    assert dict(figures(Ask({name: parse("1")})).requests).keys() == ({name} if counts else set())


def test_too_many_resources_are_refused() -> None:
    many = Ask({f"example.com/r{i}": parse("1") for i in range(41)})
    with pytest.raises(TooManyResources, match="41 kinds of resources; 40 at most"):
        figures(many)
