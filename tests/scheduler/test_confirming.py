"""What is said of grants: the newest word of a job, one at a time, until it stands there."""

from bayplan.core.model import events as on
from bayplan.core.model.effects import Confirm
from bayplan.core.model.grants import Confirmed
from bayplan.kube.transport import Fenced
from tests.scheduler.scripted import refused
from tests.scheduler.test_writer import Rig, run

JOB = "ElasticJob team/train"


def confirm(generation: int, job: str = JOB, **facts: object) -> Confirm:
    return Confirm(job, Confirmed(generation, 2, **facts))  # type: ignore[arg-type]


def test_only_our_part_of_the_status_is_written_and_nodes_as_a_list() -> None:
    async def test(rig: Rig) -> None:
        rig.writer.confirm(confirm(3, kept=(("a", 1), ("b", 2)), why="no room"))
        rig.writer.confirm(confirm(1, "ElasticHorovodJob team/old"))
        await rig.settle()
        first, second = rig.api.sent
        assert first.path == "/apis/bayplan.dev/v1alpha1/namespaces/team/elasticjobs/train/status"
        assert first.body == {
            "status": {
                "confirmed": {
                    "generation": 3,
                    "workers": 2,
                    "kept": [{"node": "a", "workers": 1}, {"node": "b", "workers": 2}],
                    "message": "no room",
                }
            }
        }
        path = "/apis/ai.centauruscloud.io/v1alpha1/namespaces/team/elastichorovodjobs/old/status"
        assert second.path == path
        assert rig.answers() == []
        assert rig.writer.done["confirmation"] == 2

    run(test)


def test_another_job_of_the_same_name_is_not_meant() -> None:
    """Who is deleted and made again must not find what was said of the one before."""

    async def test(rig: Rig) -> None:
        rig.writer.confirm(Confirm(JOB, Confirmed(1, 2), "uid-1"))
        await rig.settle()
        assert rig.api.sent[0].body["metadata"] == {"uid": "uid-1"}

    run(test)


def test_what_is_newer_waits_for_the_answer_and_takes_the_place_of_the_rest() -> None:
    async def test(rig: Rig) -> None:
        rig.api.hold()
        rig.writer.confirm(confirm(1))
        await rig.settle()
        rig.writer.confirm(confirm(2))
        rig.writer.confirm(confirm(3))
        await rig.settle()
        assert len(rig.api.sent) == 1
        rig.api.let_go()
        await rig.settle()
        said = [sent.body["status"]["confirmed"]["generation"] for sent in rig.api.sent]
        assert said == [1, 3]

    run(test, workers=4)


def test_what_fails_is_told_after_a_pause() -> None:
    async def test(rig: Rig) -> None:
        rig.api.answer = lambda sent: refused(500, "no")
        rig.writer.confirm(confirm(1))
        await rig.settle()
        assert rig.answers() == []
        at = rig.writer.next_time()
        assert at == rig.clock.time() + 1.0
        rig.writer.tick(at)
        assert rig.answers() == [on.ConfirmFailed(JOB)]
        assert rig.writer.next_time() is None

    run(test)


def test_who_may_not_write_asks_less_and_less_often() -> None:
    async def test(rig: Rig) -> None:
        pauses = []
        for status in (403, 403, 422, 503, 403):
            rig.api.answer = lambda sent, status=status: refused(status, "no")  # type: ignore[misc]
            rig.writer.confirm(confirm(1))
            await rig.settle()
            at = rig.writer.next_time()
            assert at is not None
            pauses.append(at - rig.clock.time())
            rig.writer.tick(at)
        assert pauses == [1.0, 2.0, 4.0, 1.0, 1.0]

    run(test)


def test_nothing_is_said_after_the_lease() -> None:
    async def test(rig: Rig) -> None:
        rig.api.hold()
        rig.writer.confirm(confirm(1))
        await rig.settle()
        rig.writer.confirm(confirm(2))
        rig.writer.abandon("the lease was lost")
        rig.api.let_go()
        await rig.settle()
        assert len(rig.api.sent) == 1
        assert rig.answers() == [on.ConfirmFailed(JOB)]

        def closed() -> None:
            raise Fenced("too late")

        rig.fence.of_now = lambda: closed  # type: ignore[method-assign]
        rig.writer.confirm(confirm(3))
        await rig.settle()
        assert len(rig.api.sent) == 1
        assert rig.writer.failed["confirmation"] == 1

    run(test)
