"""Elastic jobs from their arrival to their end, on virtual time: the readable specification."""

from itertools import pairwise

import pytest

from bayplan.elastic.memory import Patience
from bayplan.elastic.planner import Settings
from bayplan.elastic.sizes import Policy
from bayplan.kube.client import PODS
from bayplan.kube.elastic import GENERAL, HOROVOD, RESOURCES
from tests.elastic.stage import (
    DEFINITIONS,
    GPU,
    Stage,
    elastic,
    horovod,
    node,
    patch,
    play,
    template,
)


def test_two_jobs_share_and_a_third_takes_its_part_and_one_goes_and_a_node_dies() -> None:
    async def story(stage: Stage) -> None:
        await stage.submit(elastic("a", 2, 5))
        await stage.pass_time(5)
        assert stage.workers() == {"a": 5}

        await stage.submit(elastic("b", 2, 5))
        await stage.pass_time(10)
        assert stage.workers() == {"a": 3, "b": 3}

        await stage.submit(elastic("c", 2, 5))
        await stage.pass_time(10)
        assert stage.workers() == {"a": 2, "b": 2, "c": 2}

        await stage.remove("a")
        await stage.pass_time(10)
        assert stage.workers() == {"b": 3, "c": 3}

        await stage.kubelets.vanish("right")
        await stage.pass_time(30)
        assert sum(stage.workers().values()) == 3  # one of them has less than its minimum
        assert sorted(stage.workers().values()) == [1, 2]
        assert stage.standin.overtaken == []

    play(story, left=3, right=3)


def test_a_job_grows_when_devices_are_free_again() -> None:
    async def story(stage: Stage) -> None:
        await stage.pod("other", 3)
        await stage.pass_time(1)
        await stage.submit(elastic("a", 1, 4))
        await stage.pass_time(5)
        assert stage.workers() == {"a": 1}

        await stage.user.request("DELETE", "/api/v1/namespaces/default/pods/other")
        await stage.pass_time(10)
        assert stage.workers() == {"a": 4}

    play(story, only=4)


def test_a_job_whose_minimum_does_not_fit_waits_with_a_reason_and_lets_a_smaller_one_start() -> (
    None
):
    async def story(stage: Stage) -> None:
        await stage.submit(elastic("large", 5, 8))
        await stage.submit(elastic("small", 2, 2))
        await stage.pass_time(5)
        assert stage.workers() == {"small": 2}
        said = stage.job("large").said
        assert said["phase"] == "Pending"
        assert said["message"] == f"waits until there is room for 5 workers of 1 {GPU}"
        assert "grant" not in said

    play(story, only=4)


def test_places_that_the_scheduler_does_not_find_are_given_up_after_a_while() -> None:
    """Four GPUs, but no node with two of them free."""

    async def story(stage: Stage) -> None:
        await stage.submit(elastic("a", 1, 2, gpus=2))
        await stage.pass_time(3)
        assert stage.job("a").grant.workers == 1  # two devices: the allocator thinks that it fits
        assert stage.workers() == {}
        await stage.pass_time(12)
        assert stage.job("a").grant.workers == 0
        assert stage.job("a").said["message"] == "no room for 1 more"

        await stage.pod("filler", 1)  # nothing is gained by that
        await stage.pass_time(5)
        assert stage.job("a").grant.workers == 0

        await stage.kubelets.add(node("roomy", 2))
        await stage.pass_time(10)
        assert stage.workers() == {"a": 1}

    play(story, one=1, two=1)


def test_what_does_not_fit_is_asked_for_again_after_longer_and_longer_times() -> None:
    async def story(stage: Stage) -> None:
        await stage.submit(elastic("a", 1, 1, gpus=2))
        asked = []
        before = 0
        for second in range(700):
            await stage.pass_time(1)
            now = stage.job("a").grant
            if now.generation != before and now.workers:
                asked.append(second)
            before = now.generation
        gaps = [after - first for first, after in pairwise(asked)]
        assert gaps[0] == pytest.approx(40, abs=2)  # 10 s of patience and 30 s of rest
        assert gaps[1] == pytest.approx(70, abs=2)
        assert gaps[2] == pytest.approx(130, abs=2)

    play(story, one=1, two=1)


def test_a_suspended_job_has_no_workers_and_comes_back() -> None:
    async def story(stage: Stage) -> None:
        await stage.submit(elastic("a", 2, 4))
        await stage.pass_time(5)
        await stage.change("a", {"suspend": True})
        await stage.pass_time(10)
        grant = stage.job("a").grant
        assert (stage.pods(), grant.places) == ([], 0)
        assert stage.job("a").said["message"] == "suspended"
        await stage.change("a", {"suspend": None})
        await stage.pass_time(10)
        assert stage.workers() == {"a": 4}

    play(story, only=4)


def test_a_lower_maximum_removes_the_highest_indices() -> None:
    async def story(stage: Stage) -> None:
        await stage.submit(elastic("a", 1, 4))
        await stage.pass_time(5)
        await stage.change("a", {"maxWorkers": 2})
        await stage.pass_time(10)
        assert stage.pods() == ["a-worker-0", "a-worker-1"]

    play(story, only=4)


def test_a_template_that_asks_for_something_else_is_granted_that() -> None:
    async def story(stage: Stage) -> None:
        await stage.submit(elastic("a", 1, 2))
        await stage.pass_time(5)
        changed = template()
        changed["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "1"}}
        await stage.change("a", {"template": changed})
        await stage.pass_time(5)
        grant = stage.job("a").grant
        assert (grant.workers, grant.counts) == (2, {})
        await stage.pass_time(60)
        assert stage.job("a").grant == grant

    play(story, only=4)


def test_a_worker_that_someone_deletes_is_made_again_when_it_is_gone() -> None:
    async def story(stage: Stage) -> None:
        await stage.submit(elastic("a", 2, 4))
        await stage.pass_time(5)
        await stage.user.request("DELETE", "/api/v1/namespaces/default/pods/a-worker-1")
        await stage.pass_time(8)
        assert stage.workers() == {"a": 4}
        assert stage.job("a").said.get("failures", 0) == 0

    play(story, only=4)


def test_a_job_is_complete_when_its_workers_have_succeeded_and_has_given_everything_back() -> None:
    async def story(stage: Stage) -> None:
        job = elastic("a", 1, 2)
        await stage.submit(job)
        await stage.submit(elastic("b", 1, 4))
        await stage.pass_time(8)
        assert stage.workers() == {"a": 2, "b": 2}
        await stage.end_pod("a-worker-0", "Succeeded")
        await stage.pass_time(3)
        assert stage.job("a").said["phase"] == "Finishing"
        assert stage.job("a").grant.workers == 1
        await stage.end_pod("a-worker-1", "Succeeded")
        await stage.pass_time(10)
        done = stage.job("a")
        assert (done.said["phase"], done.grant.places) == ("Complete", 0)
        assert done.said["completionTime"]
        assert {c["type"]: c["status"] for c in done.said["conditions"]}["Complete"] == "True"
        assert stage.workers() == {"b": 4}

    play(story, only=4)


def test_a_worker_that_fails_is_replaced_later_and_later_until_the_job_has_failed() -> None:
    async def story(stage: Stage) -> None:
        await stage.submit(elastic("a", 1, 2, backoffLimit=2))
        await stage.pass_time(5)
        for count, wait in ((1, 10), (2, 20)):
            await stage.end_pod("a-worker-0", "Failed")
            await stage.pass_time(wait - 2)
            assert stage.workers() == {"a": 1}
            await stage.pass_time(6)
            assert stage.workers() == {"a": 2}
            assert stage.job("a").said["failures"] == count
        await stage.end_pod("a-worker-1", "Failed")
        await stage.pass_time(10)
        job = stage.job("a")
        assert (job.said["phase"], job.said["failures"], job.grant.places) == ("Failed", 3, 0)
        assert stage.workers() == {}

    play(story, only=2)


def test_a_worker_that_was_evicted_is_nobodys_fault() -> None:
    async def story(stage: Stage) -> None:
        await stage.submit(elastic("a", 1, 2, backoffLimit=0))
        await stage.pass_time(5)
        await stage.end_pod("a-worker-0", "Failed", "Evicted")
        await stage.pass_time(15)
        assert stage.workers() == {"a": 2}
        assert stage.job("a").said["phase"] == "Running"

    play(story, only=2)


def test_a_launcher_starts_when_the_least_number_is_ready_and_its_end_is_the_jobs() -> None:
    async def story(stage: Stage) -> None:
        await stage.submit(elastic("a", 2, 4, launcher=template(0)))
        await stage.pass_time(6)
        assert "a-launcher" in stage.pods()
        await stage.end_pod("a-launcher", "Succeeded")
        await stage.pass_time(10)
        assert stage.pods() == ["a-launcher"]
        assert stage.job("a").said["phase"] == "Complete"

    play(story, only=4)


def test_a_job_of_another_controller_is_left_alone_and_its_grant_counts() -> None:
    async def story(stage: Stage) -> None:
        await stage.submit(elastic("theirs", 1, 4, managedBy="example.com/mine"))
        await stage.pass_time(3)
        assert stage.job("theirs").said == {}
        path = RESOURCES["ElasticJob"].path("default", "theirs", "status")
        grant = {"generation": 1, "workers": 3, "passing": 0}
        await patch(stage.user, path, {"status": {"grant": grant}})
        await stage.pass_time(3)
        await stage.submit(elastic("ours", 1, 4))
        await stage.pass_time(5)
        assert stage.workers() == {"ours": 1}
        assert stage.job("theirs").confirmed.workers == 3

    play(story, only=4)


def test_a_bad_job_is_told_why_and_disturbs_nobody() -> None:
    async def story(stage: Stage) -> None:
        bad = elastic("bad", 3, 4)
        bad["spec"]["maxWorkers"] = 2
        odd = elastic("odd", 1, 2)
        odd["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"][GPU] = "many"
        none = elastic("none", 1, 2)
        none["spec"]["template"] = {"spec": {"containers": []}}
        for job in (bad, odd, none, elastic("good", 1, 2)):
            await stage.submit(job)
        await stage.pass_time(5)
        assert stage.workers() == {"good": 2}
        assert stage.job("bad").said["message"] == (
            "ElasticJob default/bad: spec.maxWorkers: 2 is not a whole number from 3 to 10000"
        )
        assert stage.job("odd").said["message"] == (
            "ElasticJob default/odd: spec.template.spec.containers[0].resources.limits: "
            "'many' is not a quantity"
        )
        assert stage.job("none").said["message"] == (
            "ElasticJob default/none: spec.template.spec.containers: there are none"
        )
        await stage.change("bad", {"maxWorkers": 4, "minWorkers": 1})
        await stage.pass_time(5)
        assert stage.workers() == {"good": 2, "bad": 2}

    play(story, only=4)


def test_a_pod_that_the_api_refuses_is_told_and_costs_the_others_nothing() -> None:
    async def story(stage: Stage) -> None:
        bad = elastic("bad", 1, 1)
        bad["spec"]["template"]["spec"]["restartPolicy"] = "Sometimes"
        await stage.submit(bad)
        await stage.submit(elastic("good", 1, 2))
        await stage.pass_time(5)
        assert stage.workers() == {"good": 2}
        assert stage.job("bad").said["message"].startswith("MakeWorkers: ")
        assert "restartPolicy" in stage.job("bad").said["message"]

    play(story, only=4)


def test_workers_of_a_job_that_became_bad_still_have_their_devices() -> None:
    """Others are not granted them, and make room for who is new."""

    async def story(stage: Stage) -> None:
        await stage.submit(elastic("bad", 2, 2))
        await stage.submit(elastic("good", 1, 4))
        await stage.pass_time(5)
        assert stage.workers() == {"bad": 2, "good": 4}
        await stage.change("bad", {"maxWorkers": 1})
        await stage.pass_time(5)
        await stage.submit(elastic("new", 2, 2))
        await stage.pass_time(9)
        assert stage.workers() == {"bad": 2, "good": 2, "new": 2}

    play(story, only=6)


def test_a_name_that_is_taken_is_told() -> None:
    async def story(stage: Stage) -> None:
        await stage.pod("a-worker-0", 0)
        await stage.submit(elastic("a", 1, 2))
        await stage.pass_time(5)
        assert stage.workers() == {}
        assert '"a-worker-0" already exists' in stage.job("a").said["message"]
        await stage.user.request("DELETE", PODS.path("default", "a-worker-0"))
        await stage.pass_time(70)
        assert stage.workers() == {"a": 2}

    play(story, only=2)


def test_a_server_without_pod_groups_is_told_of_in_a_horovod_job() -> None:
    async def story(stage: Stage) -> None:
        name = "podgroups.scheduling.sigs.k8s.io"
        await stage.user.request("DELETE", f"{DEFINITIONS}/{name}")
        await stage.submit(horovod("a", 1, 2))
        await stage.pass_time(5)
        assert stage.job("a", HOROVOD).said["message"].startswith("Scale: ")

    play(story, only=2)


def test_the_faithful_rule_cuts_to_the_minimum_and_gives_the_rest_to_the_newcomer() -> None:
    async def story(stage: Stage) -> None:
        await stage.submit(elastic("a", 2, 5))
        await stage.pass_time(5)
        assert stage.workers() == {"a": 5}
        await stage.submit(elastic("b", 2, 5))
        await stage.pass_time(10)
        assert stage.workers() == {"a": 2, "b": 4}

    play(story, Settings(Policy("faithful")), left=3, right=3)


def test_jobs_that_ask_for_different_resources_do_not_compete() -> None:
    async def story(stage: Stage) -> None:
        cpus = elastic("cpus", 1, 3)
        resources = cpus["spec"]["template"]["spec"]["containers"][0]["resources"]
        resources["limits"] = {"cpu": "1"}
        await stage.submit(elastic("gpus", 1, 4))
        await stage.submit(cpus)
        await stage.pass_time(5)
        assert stage.job("cpus").grant.workers == 3
        assert stage.job("gpus").grant.workers == 4

    play(story, only=4)


def test_a_job_that_no_scheduler_serves_does_not_keep_what_others_gave_up() -> None:
    async def story(stage: Stage) -> None:
        await stage.submit(elastic("a", 1, 4))
        await stage.pass_time(5)
        stage.standin.serves = False
        await stage.submit(elastic("b", 1, 4))
        await stage.pass_time(60)
        assert stage.job("b").grant.workers == 0
        assert stage.job("b").said["message"] == "the scheduler has not confirmed the grant"
        stage.standin.serves = True
        await stage.pass_time(60)
        assert stage.workers() == {"a": 2, "b": 2}

    play(story, Settings(patience=Patience(confirm_s=5.0)), only=4)


def test_an_elastic_horovod_job_has_what_the_original_makes() -> None:
    async def story(stage: Stage) -> None:
        await stage.submit(horovod("sample", 2, 5))
        await stage.pass_time(10)
        assert stage.workers() == {"elastichorovodjob/sample": 4}
        base = "elastichorovodjob-sample"
        assert base in stage.objects("services")
        found = stage.objects("statefulsets.apps")[f"{base}-workers"]
        assert found["spec"]["replicas"] == 4
        assert found["spec"]["podManagementPolicy"] == "Parallel"
        (owner,) = found["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"]) == (HOROVOD, "sample")
        labels = found["spec"]["template"]["metadata"]["labels"]
        assert labels == {
            "ElasticHorovodJob": "sample",
            "role": "worker",
            "pod-group.scheduling.sigs.k8s.io": "podgroup-ehjob-sample",
        }
        group = stage.objects("podgroups.scheduling.sigs.k8s.io")["podgroup-ehjob-sample"]
        assert group["spec"] == {"minMember": 2, "minResources": {GPU: "2"}}
        assert (
            "discover_hosts.sh" in stage.objects("configmaps")["ai-horovod-discover-hosts"]["data"]
        )
        job = stage.objects("jobs.batch")[f"{base}-launcher"]
        (command,) = job["spec"]["template"]["spec"]["containers"]
        assert "-np 2 --max-np 5 --host-discovery-script" in command["args"][1]
        said = stage.job("sample", HOROVOD).said
        assert said["workers"] == f"statefulset.apps/{base}-workers"
        assert said["launcher"] == f"job.batch/{base}-launcher"
        assert (said["availableReplicas"], said["phase"]) == (4, "Running")

    play(story, only=4)


def test_both_kinds_share_the_devices_and_a_fixed_size_is_kept() -> None:
    async def story(stage: Stage) -> None:
        await stage.submit(horovod("sample", 1, 4))
        await stage.pass_time(10)
        assert stage.workers() == {"elastichorovodjob/sample": 4}
        await stage.submit(elastic("a", 2, 4))
        await stage.pass_time(10)
        assert stage.workers() == {"elastichorovodjob/sample": 2, "a": 2}
        await stage.change("sample", {"workersSpec": {"targetReplicas": 1}}, HOROVOD)
        await stage.pass_time(10)
        assert stage.workers() == {"elastichorovodjob/sample": 1, "a": 3}

    play(story, only=4)


def test_a_horovod_job_whose_launcher_is_done_gives_everything_back() -> None:
    async def story(stage: Stage) -> None:
        await stage.submit(horovod("sample", 1, 4))
        await stage.pass_time(10)
        (launcher,) = [name for name in stage.pods() if "launcher" in name]
        await stage.end_pod(launcher, "Succeeded")
        await stage.pass_time(15)
        job = stage.job("sample", HOROVOD)
        assert (job.said["phase"], job.grant.places) == ("Complete", 0)
        assert stage.objects("statefulsets.apps") == {}
        assert stage.objects("services") == {}
        assert stage.pods() == [launcher]

    play(story, only=4)


def test_nobody_overtakes_a_job_for_which_others_make_room() -> None:
    """An ordinary pod has waited for long, and does not get what is passed on."""

    async def story(stage: Stage) -> None:
        await stage.submit(elastic("a", 1, 4))
        await stage.submit(elastic("b", 1, 4))
        await stage.pass_time(8)
        assert stage.workers() == {"a": 2, "b": 2}
        await stage.pod("greedy", 1)
        await stage.pass_time(3)
        await stage.submit(elastic("c", 2, 2))
        await stage.pass_time(10)
        assert stage.workers() == {"a": 1, "b": 1, "c": 2}
        assert "nodeName" not in stage.objects("pods")["greedy"]["spec"]

    play(story, left=2, right=2)


def test_sizes_do_not_change_without_a_reason() -> None:
    async def story(stage: Stage) -> None:
        for name in ("a", "b", "c"):
            await stage.submit(elastic(name, 1, 6))
        await stage.pass_time(20)
        before = [stage.job(name).version for name in ("a", "b", "c")]
        await stage.pass_time(600)
        assert [stage.job(name).version for name in ("a", "b", "c")] == before

    play(story, left=4, right=4)


def test_a_job_that_tells_that_more_workers_do_not_help_gives_them_up() -> None:
    async def story(stage: Stage) -> None:
        await stage.submit(elastic("a", 1, 4))
        await stage.submit(elastic("b", 1, 4))
        await stage.pass_time(8)
        assert stage.workers() == {"a": 2, "b": 2}

        async def tell(items: str) -> None:
            notes = {"metadata": {"annotations": {"bayplan.dev/throughput": items}}}
            await patch(stage.user, PODS.path("default", "a-worker-0"), notes)
            await stage.pass_time(3)

        await tell("100")
        assert stage.job("a").said["measured"] == {"2": 100.0}
        await tell("nonsense")
        await tell("102")  # hardly another
        assert stage.job("a").said["measured"] == {"2": 100.0}
        await stage.change("b", {"suspend": True})
        await stage.pass_time(10)
        assert stage.workers() == {"a": 4}
        assert stage.job("a").said["measured"] == {"2": 100.0}  # what it says is from before
        await tell("103")
        assert stage.job("a").said["measured"] == {"2": 100.0, "4": 103.0}
        await stage.change("b", {"suspend": False})
        await stage.pass_time(15)
        assert stage.workers() == {"a": 1, "b": 3}

    play(story, only=4)


# Statuses that somebody has written by hand


async def set_generation(stage: Stage, generation: int) -> None:
    path = RESOURCES[GENERAL].path("default", "a", "status")
    await patch(stage.user, path, {"status": {"grant": {"generation": generation}}})


@pytest.mark.parametrize("generation", [0, 2**53, 2**62])
def test_a_generation_that_was_set_back_or_cannot_be_read_is_counted_on_from(
    generation: int,
) -> None:
    async def story(stage: Stage) -> None:
        await stage.pod("other", 1)
        await stage.submit(elastic("a", 1, 3))
        await stage.pass_time(5)
        before = stage.job("a").grant
        await stage.kill()
        await set_generation(stage, generation)
        stage.start()
        await stage.user.request("DELETE", PODS.path("default", "other"))
        await stage.pass_time(30)
        job = stage.job("a")
        assert stage.workers() == {"a": 3}
        assert before.generation < job.grant.generation == job.confirmed.generation < 10
        stage.judges[-1].wrong.clear()  # it knows nothing of hands

    play(story, only=3)


def test_after_the_last_generation_nothing_changes_and_the_owner_is_told() -> None:
    async def story(stage: Stage) -> None:
        await stage.submit(elastic("a", 1, 3))
        await stage.pass_time(5)
        await set_generation(stage, 2**53 - 1)
        await stage.submit(elastic("b", 1, 1))
        await stage.pass_time(30)
        assert stage.workers() == {"a": 3}
        words = "9007199254740991 is the last, none comes after it: make the job anew"
        assert stage.job("a").said["message"].endswith(words)
        before = len(stage.judges[0].writes)
        await stage.pass_time(60)
        assert stage.judges[0].writes[before:] == []
        await stage.remove("a")
        await stage.pass_time(10)
        assert stage.workers() == {"b": 1}

    play(story, only=3)
