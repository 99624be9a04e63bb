"""Which requests of Kafka's protocol the steps of a load send, and what follows where a broker lacks one. No I/O.

Brokers are judged by what they offer (ApiVersions), never by whose they are: what is Kafka-compatible says little about
transactions. :data:`CAPABILITIES` is the one table, for the checks before anything is written, for the doctor, and for
docs/brokers.md. Whether an offer is kept only using it tells.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from enum import Enum
from typing import Any

from kafka.protocol.admin.acl import DescribeAclsRequest
from kafka.protocol.admin.cluster import DescribeClusterRequest, DescribeQuorumRequest
from kafka.protocol.admin.configs import DescribeConfigsRequest
from kafka.protocol.admin.transactions import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.consumer.fetch import FetchRequest
from kafka.protocol.consumer.offsets import ListOffsetsRequest
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer.produce import ProduceRequest
from kafka.protocol.producer.transaction import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    WriteTxnMarkersRequest,
)

from airflow_kafka_eos.errors import BrokerTooOldError

#: api key -> (lowest, highest version), as ApiVersions shows it.
Offered = Mapping[int, tuple[int, int]]


class Step(str, Enum):
    """Who sends it."""

    PREPARE = "prepare"
    DECIDE = "decide"
    COMMIT = "commit"
    CLEANUP = "cleanup"
    REPAIR = "repair"
    HANGING = "transactions hanging"
    DOCTOR = "doctor"


#: What has to go on after records were written. Steps on Airflow's side that write none ask no more of a broker.
ENDING = frozenset({Step.DECIDE, Step.COMMIT, Step.CLEANUP})
_EVERY = (Step.PREPARE, Step.DECIDE, Step.COMMIT, Step.CLEANUP, Step.REPAIR)
_WRITING = (Step.PREPARE, Step.REPAIR)


@dataclass(frozen=True)
class Capability:
    """A request, from a version on.

    :param request: kafka-python's class of it.
    :param lowest: the first version that has what we need of it.
    :param since: the first Apache Kafka that offers it.
    :param purpose: what it is sent for.
    :param without: what is so where a broker lacks it, and loads work; empty: no load works.
    :param warns: what is lost then should not be.
    :param only: the one version that is sent; None: the highest that both sides speak.
    """

    request: Any
    lowest: int
    since: str
    steps: tuple[Step, ...]
    purpose: str
    without: str = ""
    warns: bool = False
    only: int | None = None

    @property
    def key(self) -> int:
        return int(self.request.API_KEY)

    @property
    def name(self) -> str:
        """As the protocol names it, such as ``EndTxn``."""
        return str(self.request.name).removesuffix("Request")

    @property
    def highest(self) -> int:
        """The last version that we can send."""
        return int(self.request.max_version) if self.only is None else self.only

    @property
    def is_needed(self) -> bool:
        return not self.without

    def __str__(self) -> str:
        return f"{self.name} v{self.lowest}"


#: Needed ones first; each request once, and once more for each version that makes a difference.
CAPABILITIES = (
    Capability(MetadataRequest, 10, "2.8", _EVERY, "topic ids"),
    Capability(FindCoordinatorRequest, 4, "3.0", _EVERY, "finding many coordinators at once"),
    Capability(DescribeConfigsRequest, 1, "1.1", _EVERY, "reading limits"),
    Capability(InitProducerIdRequest, 2, "2.4", _WRITING, "initialising transactions"),
    Capability(AddPartitionsToTxnRequest, 3, "2.8", _WRITING, "adding partitions to transactions", only=3),
    Capability(ProduceRequest, 9, "2.8", _WRITING, "writing records"),
    Capability(DescribeTransactionsRequest, 0, "3.0", _EVERY, "confirming what is prepared"),
    Capability(
        DescribeProducersRequest,
        0,
        "2.8",
        (Step.PREPARE, Step.DECIDE, Step.COMMIT, Step.CLEANUP),
        "comparing what was written",
    ),
    Capability(ListOffsetsRequest, 4, "2.1", (Step.DECIDE, Step.COMMIT), "reading last stable offsets"),
    Capability(
        ListTransactionsRequest,
        1,
        "3.8",
        (Step.DECIDE, Step.CLEANUP),
        "finding lingering transactions, and what runs for too long by the brokers' clocks (KIP-994)",
    ),
    Capability(EndTxnRequest, 3, "2.8", _EVERY, "ending transactions by their recorded identity"),
    Capability(FetchRequest, 13, "3.1", (Step.COMMIT, Step.REPAIR), "reading end markers by topic id"),
    Capability(
        WriteTxnMarkersRequest,
        0,
        "0.11",
        (Step.COMMIT, Step.CLEANUP, Step.HANGING),
        "ending what a restarted broker has forgotten to end",
        without="what a restarted broker forgets to end holds readers back until somebody ends it by other means",
        warns=True,
    ),
    Capability(
        ListTransactionsRequest,
        2,
        "4.1",
        (Step.CLEANUP,),
        "listing our transactional ids alone (KIP-1152)",
        without="brokers list every application's ids, and ours are picked here: it costs more, the more there are",
    ),
    Capability(
        ProduceRequest,
        12,
        "4.0",
        _WRITING,
        "adding partitions by writing to them (KIP-890)",
        without="partitions are added by AddPartitionsToTxn",
    ),
    Capability(
        EndTxnRequest,
        5,
        "4.0",
        (Step.COMMIT, Step.CLEANUP),
        "raising the epoch with each end (KIP-890)",
        without="a zombie may begin anew under an identity that was ended; cleanup finds it",
    ),
    Capability(
        InitProducerIdRequest,
        6,
        "4.1",
        (Step.PREPARE,),
        "two-phase commit (KIP-939)",
        without="transactions have a timeout, the hold time",
    ),
    Capability(
        DescribeAclsRequest,
        1,
        "2.0",
        (Step.HANGING,),
        "proving that no transaction is hidden",
        without="MAY BE ALIVE is said of what no coordinator shows",
    ),
    Capability(
        DescribeClusterRequest,
        0,
        "2.8",
        (Step.DOCTOR,),
        "seeing rights on the cluster",
        without="acl-cluster-alter could not be checked",
    ),
    Capability(
        DescribeQuorumRequest,
        1,
        "3.3",
        (Step.DOCTOR,),
        "the controller's clock (KIP-836)",
        without="clock-brokers could not be checked",
    ),
)


@dataclass(frozen=True)
class Lack:
    """What one broker does not have.

    :param offered: the versions that it has of that request; None: none.
    """

    capability: Capability
    offered: tuple[int, int] | None

    def __str__(self) -> str:
        c = self.capability
        what = f"{c.name} ({', '.join(s.value for s in c.steps)}: {c.purpose})"
        if self.offered is None:
            return f"{what} is missing"
        if self.offered[1] < c.lowest:
            return f"{what} goes up to v{self.offered[1]}, v{c.lowest} is needed"
        return f"{what} begins with v{self.offered[0]}, v{c.highest} is the last that is known here"


def lacking(offered: Offered, steps: Set[Step] = frozenset(Step)) -> tuple[Lack, ...]:
    """What a broker lacks of all that these steps send, in the table's order."""
    return tuple(
        Lack(c, offered.get(c.key))
        for c in CAPABILITIES
        if not steps.isdisjoint(c.steps) and not _has(offered.get(c.key), c)
    )


def _has(versions: tuple[int, int] | None, wanted: Capability) -> bool:
    return versions is not None and versions[1] >= wanted.lowest and versions[0] <= wanted.highest


def needed(lacks: Collection[Lack]) -> tuple[Lack, ...]:
    """Those without which no load works."""
    return tuple(one for one in lacks if one.capability.is_needed)


def remedy_for(lacks: Collection[Lack]) -> str:
    """What to do about needed ones."""
    newest = max((one.capability.since for one in lacks), key=lambda since: tuple(map(int, since.split("."))))
    return (
        f"Apache Kafka offers all of that from {newest} on, and is tried from 3.9 on: upgrade the brokers, or name a "
        "cluster that offers it in bootstrap.servers (docs/brokers.md, Kafka-compatible services)"
    )


def refusal(by_broker: Mapping[str, Offered], steps: Set[Step] = frozenset(Step)) -> BrokerTooOldError | None:
    """Why loads cannot work with these brokers, naming all that is missing; None where they can.

    :param by_broker: what each offers; by a name for people, such as ``broker 2``.
    """
    who: dict[tuple[Lack, ...], list[str]] = defaultdict(list)
    for broker, offered in by_broker.items():
        who[needed(lacking(offered, steps))].append(broker)
    who.pop((), None)
    if not who:
        return None
    texts = (
        f"{', '.join(brokers)} lack{'s' if len(brokers) == 1 else ''} what exactly-once needs: "
        f"{'; '.join(map(str, lacks))}"
        for lacks, brokers in who.items()
    )
    return BrokerTooOldError(". ".join(texts), remedy=remedy_for({one for lacks in who for one in lacks}))
