"""Where the Spark driver will run, and whether a load can be prepared from there. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_kafka_eos.errors import ConfigurationError

#: ``spark.submit.deployMode``: what spark-submit goes by when neither the connection nor the operator names a mode.
_MODE = "spark.submit.deployMode"
_YARN_ENV = "spark.yarn.appMasterEnv."
_KUBERNETES_ENV = "spark.kubernetes.driverEnv."
_KUBERNETES_SECRET = "spark.kubernetes.driver.secretKeyRef."
_KUBERNETES_TEMPLATE = "spark.kubernetes.driver.podTemplateFile"


@dataclass(frozen=True)
class Deployment:
    """One submission.

    :param master: Spark's, such as ``local[2]``, ``spark://host:port``, ``yarn``, ``k8s://https://host:port``.
    :param deploy_mode: of the connection or the operator; None for Spark's own default.
    :param conf: Spark settings of the operator.
    """

    master: str
    deploy_mode: str | None
    conf: Mapping[str, Any]

    @property
    def is_cluster(self) -> bool:
        """Whether the driver runs elsewhere than this worker."""
        return (self.deploy_mode or str(self.conf.get(_MODE, "client"))) == "cluster"

    @property
    def is_local(self) -> bool:
        """Whether driver and executors are one process here."""
        return self.master.startswith("local")

    @property
    def ships_files(self) -> bool:
        """YARN in cluster mode: the settings travel as a file, as Spark's own keytabs do."""
        return self.is_cluster and self.master.startswith("yarn")

    def file_settings(self, files: Mapping[str, str]) -> dict[str, str]:
        """Spark settings that tell a driver in YARN where its files are.

        :param files: by variable, the name in the driver's working folder. Names are no secrets.
        """
        return {f"{_YARN_ENV}{variable}": name for variable, name in files.items()}

    def check(self, manifest_dir: str | None, variable: str, registry_variable: str) -> None:
        """Refuse what cannot work, before an attempt is taken.

        :param manifest_dir: as the author gave it.
        :param variable: the environment variable of the driver with the Kafka settings.
        :param registry_variable: that with the schema registry's.
        :raises ConfigurationError: naming the deploy mode, and what is missing.
        """
        for prefix in (_YARN_ENV, _KUBERNETES_ENV, "spark.executorEnv."):
            for name, what in ((variable, "Kafka"), (registry_variable, "schema registry's")):
                if prefix + name in self.conf:
                    raise ConfigurationError(
                        f"{prefix}{name} would show the {what} settings in Spark's UI and on its command line",
                        remedy=f"Hand the driver a file, and name it by {prefix}{name}_FILE (docs/spark.md)",
                    )
        if not self.is_cluster:
            return
        if self.master.startswith(("spark://", "local")):
            raise ConfigurationError(
                f"deploy mode 'cluster' with Spark master {self.master!r}: Spark supports it for Python applications "
                "on YARN and Kubernetes only",
                remedy="Use deploy mode 'client': the driver runs on Airflow's worker",
            )
        if not manifest_dir:
            raise ConfigurationError(
                "deploy mode 'cluster' needs a manifest_dir: the driver does not see this worker's folders",
                remedy="Set manifest_dir to s3://bucket/folder or the like, or to a folder that all hosts mount",
            )
        wanted = (f"{_KUBERNETES_SECRET}{variable}", f"{_KUBERNETES_ENV}{variable}_FILE", _KUBERNETES_TEMPLATE)
        if not self.ships_files and not any(key in self.conf for key in wanted):
            raise ConfigurationError(
                f"deploy mode 'cluster' with Spark master {self.master!r}: nothing brings the Kafka settings to the "
                "driver",
                remedy=f"Put them into a Kubernetes secret and set {wanted[0]}=<secret>:<key> in conf (docs/spark.md)",
            )
