"""Tokens for Amazon MSK (IAM) and Google's Managed Service for Apache Kafka, where there is no Airflow.

Airflow's side has them from its own providers (:mod:`airflow_kafka_eos.kafka_connection`). Here each host is asked who
it is: boto3's chain of credentials, and Google's application default credentials. Neither has a secret in the settings.
"""

from __future__ import annotations

import base64
import datetime
import json
import re
import time
from collections.abc import Callable
from typing import Any

from airflow_kafka_eos.errors import setting_error
from airflow_kafka_eos.extras import needed

#: The provider's name, as ``oauth_cb`` has it.
MSK = "msk"
_REGION = "region="
#: MSK's own names, provisioned and serverless: as the Kafka provider of Airflow knows them.
_MSK_BROKER = re.compile(
    r"\.kafka(?:-serverless)?\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(?:\.cn)?(?::\d+)?\s*(?:,|$)", re.IGNORECASE
)
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def msk_config(region: str) -> str:
    """``sasl.oauthbearer.config`` for the provider ``msk``."""
    return f"{_REGION}{region}"


def config_of(name: str, servers: str) -> str:
    """What a provider is given where ``sasl.oauthbearer.config`` is not set; empty: nothing.

    :param servers: ``bootstrap.servers``: in MSK's own names stands the region.
    """
    found = _MSK_BROKER.search(servers) if name == MSK else None
    return "" if found is None else msk_config(found["region"].lower())


def _msk() -> Callable[[str], tuple[str, float]]:
    with needed("a login by MSK IAM"):
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
        from botocore.session import Session

    def signed(config: str) -> tuple[str, float]:
        region = config.strip().removeprefix(_REGION)
        if not config.strip().startswith(_REGION) or not region:
            remedy = "Write region=eu-west-1, or whichever the cluster's is: bootstrap.servers are not MSK's own names"
            raise setting_error("sasl.oauthbearer.config", "names no region for the token provider 'msk'", remedy)
        try:
            token, expires_ms = MSKAuthTokenProvider.generate_auth_token(region)
        except AttributeError:  # the signer's word for no credentials
            if Session().get_credentials() is None:
                raise LookupError("boto3 finds no credentials of AWS on this host") from None
            raise
        return token, expires_ms / 1000

    return signed


def _google() -> Callable[[str], tuple[str, float]]:
    with needed("a login to Google's Managed Kafka"):
        import google.auth
        from google.auth.transport.requests import Request

    found: list[Any] = []

    def asked(_: str) -> tuple[str, float]:
        if not found:
            found.append(google.auth.default(scopes=[_SCOPE])[0])
        (credentials,) = found
        credentials.refresh(Request())
        return google_token(credentials)

    return asked


def google_token(credentials: Any) -> tuple[str, float]:
    """What Google's brokers take for a token: an access token in a JWT's clothes, as Google's own clients send it.

    :param credentials: of google-auth, refreshed.
    :raises ValueError: they are a person's: brokers want a service account's.
    """
    account = getattr(credentials, "service_account_email", None)
    if not account:
        raise ValueError(f"{type(credentials).__name__} name no service account")
    expires_s = credentials.expiry.replace(tzinfo=datetime.UTC).timestamp()  # google-auth's is UTC, and does not say so
    claims = {"exp": expires_s, "iat": time.time(), "iss": "Google", "scope": "kafka", "sub": account}
    parts = json.dumps({"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}), json.dumps(claims), credentials.token
    return ".".join(base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts), expires_s


#: By name; each call looks whether its library is there.
PROVIDERS: dict[str, Callable[[], Callable[[str], tuple[str, float]]]] = {"google": _google, MSK: _msk}
