"""OpenLineage facets of a load that readers see. Imported by OpenLineage's own call only: nobody needs it installed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.openlineage.facet import (
    Dataset,
    OutputDataset,
    OutputStatisticsOutputDatasetFacet,
)

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage


def lineage_of(
    arrival: Mapping[str, Any] | None, *, topics: Iterable[str], server: str, wrote: bool
) -> OperatorLineage[Any, Any]:
    """The topics of a load as output datasets, ``kafka://<server>`` and ``<topic>`` (OpenLineage's naming).

    :param arrival: :func:`~airflow_kafka_eos.protocol.stages.visible.arrival_of` the load; None: no load, no datasets.
    :param wrote: with rows and bytes. Not of a load that was loaded before: they would be counted twice.
    """
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
