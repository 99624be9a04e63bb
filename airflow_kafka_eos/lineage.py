"""What a load that readers see tells others: asset events and OpenLineage's facets.

Asset events: one for each topic, once per load (docs/assets.md).

Airflow registers the events of a task together with its success, so what it has registered is what was told: before
anything is told, Airflow is asked for it. A cleared or backfilled ``loaded`` of a committed load wakes nobody again.

Airflow makes an asset that no DAG file names together with its first event, and with the first event by an alias it
notes that the alias has the asset. Where two tasks end at once, the second meets the database's UNIQUE constraint, and
Airflow 3.3 marks it as failed for good, without retries ("Error updating Task Instance state. Setting the task to
failed", seen in a backfill): a load that is committed and visible would show as a failed run. So tasks whose success
would make the same in Airflow wait for each other: one has the lease (docs/adr/0022).

Rule: lease-for-the-first-event.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.providers.common.compat.sdk import AirflowException
from airflow.sdk import Asset, AssetAlias
from airflow.sdk.definitions.asset import AssetRef, AssetUniqueKey
from airflow.sdk.exceptions import AirflowRuntimeError

from airflow_kafka_eos.errors import ConfigurationError, KafkaEosError, TerminalError

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context


log = logging.getLogger(__name__)

#: Airflow has the success of whoever acquired the lease by then, on a busy machine too.
LEASE_TTL = timedelta(seconds=60)
#: Nobody waits longer.
PATIENCE = timedelta(minutes=3)
_LOOK_S = 1.0
#: of what batches of a streaming query bring; a load has an attempt instead
_OF_QUERY = ("query_id", "batches")
DEFAULT_PORT = 9092
#: The event of a load follows its decision; so many of other loads are looked through for it.
MAX_EVENTS = 1000
#: Events of one run that tell of a query, of a topic each, and of others that share the outlet.
MAX_NEWEST = 100
#: The decision has the ledger's time, the event Airflow's.
CLOCKS_APART = timedelta(minutes=10)


def server_of(bootstrap_servers: str) -> str:
    """The authority of a cluster's assets: the first ``host:port`` that the connection names.

    The first, as OpenLineage has it too. A list that is reordered makes other assets: then name ``asset_server``.

    :param bootstrap_servers: librdkafka's list; a protocol in front of a host is left out.
    """
    first = bootstrap_servers.split(",")[0].strip().rpartition("://")[2]
    has_port = ":" in first.rpartition("]")[2]
    return first if has_port else f"{first}:{DEFAULT_PORT}"


def check_server(server: str | None) -> None:
    """
    :raises ConfigurationError: it is no authority of a URI.
    """
    if server is not None and (not server or any(c in server for c in "/@?# ,")):
        raise ConfigurationError(
            f"asset_server={server!r} is not the authority of an asset's URI",
            remedy="Set it to one host:port or to a name of the cluster, as it stands in kafka://<here>/topic",
        )


def topic_uri(server: str, topic: str) -> str:
    """As the Kafka provider's asset scheme has it."""
    return f"kafka://{server}/{topic}"


def alias_of(load_name: str) -> AssetAlias:
    """The outlet of a load whose connection is not known when its DAG is parsed; events come through it.

    Its name is the load's, in ASCII: databases of Airflow's may keep no other.
    """
    return AssetAlias(load_name if load_name.isascii() else quote(load_name))


@dataclass
class Told:
    """What a task's success tells.

    :param outlets: the task's, without the assets that this load was told of before.
    :param events: URIs of the assets that are told of, but for those that Airflow resolves by itself.
    :param before: URIs of those that were told of before.
    """

    outlets: list[Any] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)


def announce(
    context: Context,
    outlets: Iterable[Any],
    arrival: Mapping[str, Any],
    *,
    alias: AssetAlias | None,
    topics: Iterable[str],
    server: str,
    acquire: Callable[[Collection[str]], str | None] = lambda what: None,
) -> Told:
    """Note for this task's success what there is to tell, with its extra.

    :param outlets: the task's own, ``alias`` among them.
    :param arrival: :func:`~airflow_kafka_eos.protocol.stages.visible.arrival_of` the load.
    :param alias: tells of ``topics`` that no outlet names; None to tell of outlets alone.
    :param acquire: acquires the lease of what is to be made in Airflow, see :func:`acquire_lease`.
    """
    accessors: Any = context["outlet_events"]
    own: list[tuple[Any, AssetUniqueKey | None]] = []
    for outlet in outlets:
        key = None
        if isinstance(outlet, Asset | AssetRef):
            with suppress(AirflowRuntimeError):  # not known, or not said: it stays, and Airflow tells of it, or warns
                key = accessors[outlet].key
        own.append((outlet, key))
    named = [key for _, key in own if key is not None]
    uris = {key.uri for key in named}
    by_alias = {uri: topic for topic in topics if alias and (uri := topic_uri(server, topic)) not in uris}
    found = _Found()

    def look() -> list[str]:
        nonlocal found
        found = _look(accessors, named, by_alias, alias, arrival)
        return found.to_be_made

    acquire_lease(look, acquire)
    # what was found last, and nothing is asked any more: a lease is short, and was acquired with just these assets
    told = Told(before=found.before)
    for outlet, key in own:
        if key is not None:
            if key.uri in found.before:
                continue
            accessors[outlet].extra.update(_extra(arrival, _topic_of(key.uri, server)))
            told.events.append(key.uri)
        told.outlets.append(outlet)
    for uri, key in found.by_alias.items():
        accessors[alias].add(key.to_asset(), extra=_extra(arrival, by_alias[uri]))
        told.events.append(uri)
    return told


@dataclass
class _Found:
    """What there is to tell, as Airflow has it at one moment.

    :param before: URIs of the assets that this load was told of before.
    :param by_alias: by URI, those of the others that are told of by the alias.
    :param to_be_made: what telling makes in Airflow.
    """

    before: list[str] = field(default_factory=list)
    by_alias: dict[str, AssetUniqueKey] = field(default_factory=dict)
    to_be_made: list[str] = field(default_factory=list)


def _look(
    accessors: Any,
    named: Iterable[AssetUniqueKey],
    uris: Collection[str],
    alias: AssetAlias | None,
    arrival: Mapping[str, Any],
) -> _Found:
    """
    :param named: of outlets.
    :param uris: told of by the alias.
    """
    found = _Found([key.uri for key in named if _was_told(key, arrival)])
    if alias is None or not uris:
        return found
    ours = _assets_of(alias)
    for uri in uris:
        known = _known(accessors, uri)
        key = known or _unknown(uri)
        if _was_told(key, arrival):
            found.before.append(uri)
            continue
        found.by_alias[uri] = key
        if key not in ours:
            found.to_be_made += to_be_made(uri, alias.name, is_made=known is not None or _has_event(key))
    return found


def to_be_made(uri: str, alias: str, *, is_made: bool) -> list[str]:
    """Names of what the first event of an asset by an alias makes in Airflow. No I/O.

    :param is_made: Airflow has the asset, and has yet to note that the alias has it.
    """
    of_alias = f"{uri} by {alias}"
    return [of_alias] if is_made else [uri, of_alias]


def acquire_lease(look: Callable[[], Collection[str]], acquire: Callable[[Collection[str]], str | None]) -> None:
    """Wait until nothing is left to be made, or we have the lease to make all of it.

    The lease of whoever acquired it is over when Airflow has its success, for then nothing is left; or by time, where
    it died. Behind :data:`PATIENCE`, or where the ledger refuses a lease for good, this goes on all the same: the
    records are there, and readers want to be told.

    :param look: asks Airflow for what is left.
    :param acquire: acquires the lease of that; None, or who has it.
    """
    began, said = time.monotonic(), ""
    while left := look():
        try:
            other = acquire(left)
            if other is None:
                return
            reason = f"{other} has the lease"
            may_come = True
        except (KafkaEosError, AirflowException, AirflowRuntimeError) as e:  # a connection that Airflow does not give
            reason, may_come = f"{type(e).__name__}: {e}", not isinstance(e, TerminalError)
        waited_s = time.monotonic() - began
        if not may_come or waited_s >= PATIENCE.total_seconds():
            log.warning(
                "waited %.0f s for its lease to create %s in Airflow, and goes on without it (%s). If another task "
                "creates the same at this moment, Airflow fails one of the two tasks: clear it then; the records "
                "are visible",
                *(waited_s, ", ".join(sorted(left)), reason),
            )
            return
        if reason != said:
            log.info("waits for its lease to create %s in Airflow (%s)", ", ".join(sorted(left)), reason)
            said = reason
        time.sleep(_LOOK_S)


def _known(accessors: Any, uri: str) -> AssetUniqueKey | None:
    """The asset that DAGs know under this URI, whatever name they gave it; None where there is none yet.

    Nor is there one, for Airflow, in the minute before its scheduler calls a new asset active.
    """
    try:
        key: AssetUniqueKey = accessors[Asset.ref(uri=uri)].key
    except AirflowRuntimeError:
        return None
    return key


def _unknown(uri: str) -> AssetUniqueKey:
    """The asset that Airflow makes with the first event of one that no DAG knows."""
    return AssetUniqueKey.from_asset(Asset(uri=uri))


def _topic_of(uri: str, server: str) -> str | None:
    prefix = topic_uri(server, "")
    return uri[len(prefix) :] if uri.startswith(prefix) else None


def _extra(arrival: Mapping[str, Any], topic: str | None) -> dict[str, Any]:
    """What an event carries: of its topic alone, or of the whole load for an outlet that is no topic of it."""
    common = {name: arrival[name] for name in ("load", "attempt", *_OF_QUERY, "decided_at") if name in arrival}
    if topic is None:
        return common | {"records": arrival["records"]}
    of_topic = arrival["topics"].get(topic, {"records": 0, "offsets": {}})
    return common | {name: of_topic[name] for name in ("records", "offsets", "by_batch") if name in of_topic}


def _has_event(key: AssetUniqueKey) -> bool:
    """Whether the asset was made, active or not: Airflow makes those that no DAG names with their first event."""
    try:
        return bool(_past(key.to_asset(), limit=1))
    except AirflowRuntimeError:
        return False


def _past(of: Asset | AssetAlias, *, since: datetime | None = None, limit: int) -> Sequence[Any]:
    """Events that Airflow has, the oldest first.

    :raises AirflowRuntimeError: Airflow does not say.
    """
    from airflow.sdk.execution_time.context import InletEventsAccessors

    found: Any = InletEventsAccessors([of])[of]
    if isinstance(found, list):  # Airflow 3.1 has no filters, and gives all there are
        return [event for event in found if since is None or event.timestamp >= since][:limit]
    return list((found.after(since.isoformat()) if since else found).limit(limit))


def _assets_of(alias: AssetAlias) -> set[AssetUniqueKey]:
    """Those that were told of by this alias, active or not. None: Airflow does not say, and a lease is acquired."""
    try:
        from airflow.sdk.execution_time.comms import AssetsByAliasResult, GetAssetsByAlias
    except ImportError:  # before Airflow 3.3
        return _assets_of_events(alias)
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

    try:
        answer = SUPERVISOR_COMMS.send(GetAssetsByAlias(alias_name=alias.name))
    except AirflowRuntimeError:
        return set()
    if not isinstance(answer, AssetsByAliasResult):
        return set()
    return {AssetUniqueKey(asset.name, asset.uri) for asset in answer.assets}


def _assets_of_events(alias: AssetAlias) -> set[AssetUniqueKey]:
    """The same, from the alias's events: where the events of an asset are gone, it has a lease again."""
    try:
        events = _past(alias, limit=MAX_EVENTS)
    except AirflowRuntimeError:
        return set()
    return {AssetUniqueKey(event.asset.name, event.asset.uri) for event in events}


def _was_told(key: AssetUniqueKey, arrival: Mapping[str, Any]) -> bool:
    since = datetime.fromisoformat(arrival["decided_at"]) - CLOCKS_APART
    try:
        events = _past(key.to_asset(), since=since, limit=MAX_EVENTS)
    except AirflowRuntimeError as e:
        # twice is better than never
        log.warning("events of %s cannot be read: this load sends its own, maybe for the second time: %s", key.uri, e)
        return False
    return any((event.extra or {}).get("load") == arrival["load"] for event in events)


def told_up_to(of: Iterable[Asset | AssetAlias], query_id: str) -> int | None:
    """The last batch of a streaming query that Airflow has an event of; None: of none, or Airflow does not say."""
    found: list[int] = []
    for one in of:
        try:
            extras = [event.extra or {} for event in _newest(one)]
        except AirflowRuntimeError as e:
            log.warning("events of %s cannot be read: what was told of before may be told again: %s", one.name, e)
            continue
        found += [int(extra["batches"][1]) for extra in extras if extra.get("query_id") == query_id]
    return max(found, default=None)


def _newest(of: Asset | AssetAlias) -> Sequence[Any]:
    """The newest events that Airflow has."""
    from airflow.sdk.execution_time.context import InletEventsAccessors

    found: Any = InletEventsAccessors([of])[of]
    if isinstance(found, list):  # Airflow 3.1 has no filters, and gives all there are
        return found[-MAX_NEWEST:]
    return list(found.ascending(False).limit(MAX_NEWEST))


def lineage_of(
    arrival: Mapping[str, Any] | None, *, topics: Iterable[str], server: str, wrote: bool
) -> OperatorLineage[Any, Any]:
    """The topics of a load as output datasets, ``kafka://<server>`` and ``<topic>`` (OpenLineage's naming).

    :param arrival: :func:`~airflow_kafka_eos.protocol.stages.visible.arrival_of` the load; None: no load, no datasets.
    :param wrote: with rows and bytes. Not of a load that was loaded before: they would be counted twice.
    """
    # nobody needs it installed: it is OpenLineage that calls
    from airflow.providers.common.compat.openlineage.facet import (
        Dataset,
        OutputDataset,
        OutputStatisticsOutputDatasetFacet,
    )
    from airflow.providers.openlineage.extractors import OperatorLineage

    outputs: list[Dataset] = []
    for topic in topics if arrival is not None else ():
        found = arrival["topics"].get(topic, {"records": 0, "bytes": 0}) if arrival else {}
        statistics = OutputStatisticsOutputDatasetFacet(rowCount=found["records"], size=found["bytes"])
        outputs.append(
            OutputDataset(
                namespace=f"kafka://{server}",
                name=topic,
                outputFacets={"outputStatistics": statistics} if wrote else {},
            )
        )
    return OperatorLineage(outputs=outputs)
