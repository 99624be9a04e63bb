"""An Airflow connection of type ``kafka`` as our settings, with the tokens that the Kafka provider would log in by.

The provider decides, by its own code, which ``oauth_cb`` may be called (``[apache_kafka] callback_allowlist``), whether
the brokers are Amazon MSK's or Google's, and in which region. What it calls is called on Airflow's side; to Spark goes
its name (docs/adr/0032). Airflow is imported only where tokens come from a function.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.extras import needed
from airflow_kafka_eos.kafka.client.settings import TOKEN_CALLBACK, KafkaSettings

_log = logging.getLogger(__name__)

_METHOD, _UNSECURE = "sasl.oauthbearer.method", "enable.sasl.oauthbearer.unsecure.jwt"


def settings_of(
    conn_id: str, extra: Mapping[str, Any], *, behind_import: Callable[[], None] = lambda: None
) -> KafkaSettings:
    """Check the extra of a connection.

    :param behind_import: called where Airflow was imported.
    :raises ConfigurationError: naming the connection and the key.
    """
    try:
        settings = KafkaSettings.from_mapping(extra)
        return _with_tokens(settings, conn_id, extra, behind_import) if by_function(settings) else settings
    except ConfigurationError as e:
        e.message = f"Airflow connection {conn_id!r}: {e.message}"
        raise


def by_function(settings: KafkaSettings) -> bool:
    """Whether tokens come from a function: nothing in the settings themselves says how to make them."""
    texts = settings.texts
    made = texts.get(_METHOD, "").lower() == "oidc" or texts.get(_UNSECURE, "").lower() == "true"
    return settings.sasl_mechanism == "OAUTHBEARER" and (TOKEN_CALLBACK in texts or not made)


def _with_tokens(
    settings: KafkaSettings, conn_id: str, extra: Mapping[str, Any], behind_import: Callable[[], None]
) -> KafkaSettings:
    from airflow_kafka_eos.kafka.client.cloud_tokens import msk_config
    from airflow_kafka_eos.kafka.client.token_sources import provider_of

    named = settings.texts.get(TOKEN_CALLBACK)
    given: dict[str, Any] = {k: v for k, v in extra.items() if not k.endswith("_cb") and k != "on_commit"}
    if named is not None:
        # without a dot it is a package's that somebody has installed, and no path that a connection may choose
        given[TOKEN_CALLBACK] = named if "." in named else provider_of(named)
    with needed(f"the login of Airflow connection {conn_id!r}"):
        from airflow.providers.apache.kafka.hooks import base
    behind_import()
    found: Any = _by_provider(base, conn_id, given).get(TOKEN_CALLBACK)
    if isinstance(found, partial) and found.func is base._msk_iam_oauth_cb:
        return settings.with_token_callback("msk", msk_config(*found.args), found)
    if getattr(found, "__name__", "") == "get_confluent_token":
        return settings.with_token_callback("google", None, found)
    if named is not None:
        return settings.with_token_callback(named, None, found)
    if found is not None:
        raise ConfigurationError(
            f"the Kafka provider makes tokens by {found!r}, which airflow-kafka-eos does not know",
            remedy="Name it by oauth_cb in the connection, so that Spark's hosts find it, too",
        )
    return settings


def _by_provider(base: Any, conn_id: str, extra: Mapping[str, Any]) -> dict[str, Any]:
    """What the provider would give librdkafka; it takes the connection that is here already."""
    from airflow.providers.common.compat.sdk import AirflowException, AirflowOptionalProviderFeatureException

    hook = base.KafkaBaseHook(conn_id)
    read: Callable[[str], Any] = lambda _: SimpleNamespace(extra_dejson=dict(extra))  # noqa: E731
    hook.get_connection = read
    hook._log = _log  # a hook's own writes to stdout, which is a command's answer
    build: Callable[[], dict[str, Any]] = hook._build_config  # a provider that has changed is no wrong connection
    try:
        return build()
    except AirflowOptionalProviderFeatureException as e:
        extra_name = "msk" if "msk" in str(e) else "google"
        more = "" if extra_name == "msk" else " apache-airflow-providers-google"
        raise ConfigurationError(str(e), remedy=f"pip install 'airflow-kafka-eos[{extra_name}]'{more}") from e
    except AirflowException as e:  # Google's provider has a connection of its own
        raise ConfigurationError(
            f"the Kafka provider cannot make tokens: {e}", remedy="Make the Airflow connection that it asks for"
        ) from e
    except ValueError as e:
        raise ConfigurationError(
            str(e),
            remedy="Add it to [apache_kafka] callback_allowlist, wherever Airflow runs tasks, triggers and pages",
        ) from e
    except (ImportError, AttributeError) as e:
        raise ConfigurationError(
            f"{TOKEN_CALLBACK} cannot be imported in this Python: {type(e).__name__}: {e}",
            remedy="Install it wherever Kafka is logged in to: Airflow's hosts, the Spark driver, the executors",
        ) from e
