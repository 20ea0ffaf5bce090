"""What an elastic job was granted, and how much of that has a place.

Whoever runs elastic jobs writes the grant before it makes a worker. The scheduler keeps the places,
and says so in the same object.
"""

from msgspec import Struct

from bayplan.core.model.pods import Pod, Worker


class Confirmed(Struct, frozen=True):
    """What the scheduler says of a grant."""

    generation: int = 0  # of the grant that it is said of
    places: int = 0  # that are kept, or taken
    kept: tuple[tuple[str, int], ...] = ()  # by node: those that are not taken yet; sorted
    why: str = ""  # there are not more


class Grant(Struct, frozen=True):
    key: str  # of the job, as its pods have it
    generation: int
    places: int
    pod: Pod  # what each worker is like; nobody's own
    confirmed: Confirmed = Confirmed()  # as the object says now
    wrong: str = ""  # why it cannot be understood; then there is no place for it
    uid: str = ""  # of the job

    @property
    def marks(self) -> set[Worker]:
        """What its workers name as their job; those of an earlier job of its name do not, if they
        say whose they are."""
        return {Worker(self.key), Worker(self.key, self.uid)}


GENERAL, HOROVOD = "ElasticJob", "ElasticHorovodJob"
KINDS = (GENERAL, HOROVOD)


def elastic_key(kind: str, namespace: str, name: str) -> str:
    return f"{kind} {namespace}/{name}"


def job_named(text: str, namespace: str) -> str:
    """The key of the job that a worker names: an ElasticJob, or of a kind that stands before it."""
    kind, slash, name = text.rpartition("/")
    found = next((each for each in KINDS if each.lower() == kind.lower()), kind)
    return elastic_key(found if slash else GENERAL, namespace, name)
