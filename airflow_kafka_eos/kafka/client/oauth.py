"""OAUTHBEARER tokens for kafka-python, from librdkafka's own settings (KIP-255, KIP-768).

Two ways, as librdkafka has them: ``sasl.oauthbearer.method=oidc`` asks a token endpoint with client credentials
(RFC 6749, 4.4), and ``enable.sasl.oauthbearer.unsecure.jwt=true`` makes an unsigned JWT, for brokers under test.
No secret and no token is ever part of an error.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from kafka.net.sasl.oauth import AbstractTokenProvider

from airflow_kafka_eos.errors import (
    NOT_FOLLOWED,
    AccessError,
    BrokerUnavailableError,
    KafkaEosError,
    setting_error,
)

#: Part of a token's life after which a new one is fetched; librdkafka's own.
_REFRESH_AT = 0.8
_TIMEOUT_S = 10.0
_ANSWER_MAX_BYTES = 1 << 20
_P = "sasl.oauthbearer."
_NEEDED = ("client.id", "client.secret", "token.endpoint.url")
_OIDC_KEYS = {_P + name for name in ("method", *_NEEDED, "scope", "extensions")} | {"https.ca.location", "https.ca.pem"}
_UNSECURED_KEYS = {_P + "method", _P + "config"}
_UNSECURE = "enable.sasl.oauthbearer.unsecure.jwt"


class UnsecuredTokens(AbstractTokenProvider):  # type: ignore[misc]
    """Unsigned JWTs (``alg: none``), from ``sasl.oauthbearer.config``: ``principal=... scope=a,b lifeSeconds=3600``.

    :raises ConfigurationError: ``principal`` is missing, or a name or value is not understood.
    """

    def __init__(self, config: str) -> None:
        pairs = dict(word.partition("=")[::2] for word in config.split())
        self._extensions = {
            name.removeprefix("extension_"): pairs.pop(name) for name in list(pairs) if name.startswith("extension_")
        }
        principal = pairs.pop("principal", "")
        if not principal:
            raise setting_error(_P + "config", "names no principal", "Write principal=name into it")
        claims: dict[str, Any] = {pairs.pop("principalClaimName", "sub"): principal}
        scope_claim = pairs.pop("scopeClaimName", "scope")
        if scope := pairs.pop("scope", ""):
            claims[scope_claim] = scope.split(",")
        life = pairs.pop("lifeSeconds", "3600")
        if not life.isdigit() or pairs:
            what = f"has the unknown name {next(iter(pairs))!r}" if pairs else "has lifeSeconds that is no whole number"
            remedy = "Use principal, scope, lifeSeconds, principalClaimName, scopeClaimName"
            raise setting_error(_P + "config", what, remedy)
        self._claims, self._life_s = claims, int(life)

    def token(self) -> str:
        now = int(time.time())
        claims = self._claims | {"iat": now, "exp": now + self._life_s}
        return f"{_segment({'alg': 'none'})}.{_segment(claims)}."

    def extensions(self) -> dict[str, str]:
        return self._extensions


class OidcTokens(AbstractTokenProvider):  # type: ignore[misc]
    """Tokens of an OpenID Connect provider, kept until four fifths of their life are over. Safe for threads."""

    def __init__(
        self,
        url: str,
        client_id: str,
        client_secret: str,
        *,
        scope: str = "",
        extensions: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._url, self._scope, self._tls = url, scope, tls
        self._client_id, self._client_secret = client_id, client_secret
        self._extensions = dict(extensions or {})
        self._lock = threading.Lock()
        self._token, self._fresh_until = "", 0.0

    def token(self) -> str:
        """The token that is kept, or a new one.

        :raises AccessError: the endpoint refuses the client.
        :raises BrokerUnavailableError: the endpoint does not answer, or with something else than a token.
        """
        with self._lock:
            now = time.monotonic()
            if now >= self._fresh_until:
                self._token, life_s = self._fetch()
                self._fresh_until = now + life_s * _REFRESH_AT
            return self._token

    def extensions(self) -> dict[str, str]:
        return self._extensions

    def _fetch(self) -> tuple[str, float]:
        form = {"grant_type": "client_credentials"} | ({"scope": self._scope} if self._scope else {})
        # as they are: RFC 6749, 2.3.1, wants them form-encoded, but librdkafka and Kafka's Java client do not do that,
        # and one set of settings must serve all (seen: an encoded "+" is a wrong secret)
        client = f"{self._client_id}:{self._client_secret}"
        request = urllib.request.Request(
            self._url,
            data=urllib.parse.urlencode(form).encode(),
            headers={
                "Accept": "application/json",
                "Content-Type": "application/x-www-form-urlencoded",
                "Authorization": "Basic " + base64.b64encode(client.encode()).decode(),
            },
        )
        opener = urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=self._tls))
        try:
            with opener.open(request, timeout=_TIMEOUT_S) as answer:
                return _read_token(json.loads(answer.read(_ANSWER_MAX_BYTES)))
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(error.code, error.read(_ANSWER_MAX_BYTES)) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            # the text of a ValueError may quote the answer, and so a token
            reason = f"{type(error).__name__}: {error}" if isinstance(error, OSError) else "its answer holds no token"
            raise self._unavailable(reason) from None

    def _refused(self, status: int, body: bytes) -> KafkaEosError:
        reason = f"HTTP status {status}{_error_code(body)}"
        if status >= 500 or status == 429:
            return self._unavailable(reason)
        return AccessError(
            f"the token endpoint {_shown(self._url)} refused the client: {reason}",
            remedy=f"Check {_P}client.id, client.secret, scope and token.endpoint.url of the Kafka connection",
        )

    def _unavailable(self, reason: str) -> BrokerUnavailableError:
        return BrokerUnavailableError(
            f"the token endpoint {_shown(self._url)} gave no token: {reason}",
            remedy=f"Check {_P}token.endpoint.url of the Kafka connection, and that the endpoint is up",
        )


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the client's secret to another host."""

    def redirect_request(self, *args: Any, **options: Any) -> None:
        return None


def token_provider(values: Mapping[str, str]) -> AbstractTokenProvider:
    """The provider that librdkafka's keys ask for.

    :raises ConfigurationError: naming the key that is missing, wrong, or cannot be followed by kafka-python.
    """
    method = values.get(_P + "method", "default").lower()
    unsecured = values.get(_UNSECURE, "false").lower() == "true"
    if method not in ("oidc", "default"):
        raise setting_error(_P + "method", f"is {method!r}", "Use oidc")
    if method == "default" and not unsecured:
        remedy = (
            "Set it to oidc, or oauth_cb to what makes tokens (msk, google, or a function of your own): mechanism "
            "OAUTHBEARER needs tokens from somewhere"
        )
        raise setting_error(_P + "method", "is missing", remedy)
    if method == "oidc" and unsecured:
        raise setting_error(_UNSECURE, "is true beside the method oidc", "Remove one of them")
    known = _OIDC_KEYS if method == "oidc" else _UNSECURED_KEYS
    for key in values:
        if key.startswith((_P, "https.")) and key not in known:
            remedy = f"Use the method oidc with {', '.join(sorted(_OIDC_KEYS))}"
            raise setting_error(key, f"{NOT_FOLLOWED} (method {method})", remedy)
    if method == "default":
        return UnsecuredTokens(values.get(_P + "config", ""))
    for name in _NEEDED:
        if not values.get(_P + name):
            raise setting_error(_P + name, "is missing", "Set it: the method oidc needs it")
    url = values[_P + "token.endpoint.url"]
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise setting_error(_P + "token.endpoint.url", "is no http or https address", "Write it with https://")
    return OidcTokens(
        url,
        values[_P + "client.id"],
        values[_P + "client.secret"],
        scope=values.get(_P + "scope", ""),
        extensions=_extensions(values.get(_P + "extensions", "")),
        tls=_tls(values),
    )


def _tls(values: Mapping[str, str]) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(
            cafile=values.get("https.ca.location") or None, cadata=values.get("https.ca.pem") or None
        )
    except (OSError, ValueError):
        key = "https.ca.location" if values.get("https.ca.location") else "https.ca.pem"
        raise setting_error(key, "holds no certificates", "Set it to certificates in PEM form") from None


def _extensions(text: str) -> dict[str, str]:
    pairs = dict(word.strip().partition("=")[::2] for word in text.split(",") if word.strip())
    if not all(name and value for name, value in pairs.items()):
        raise setting_error(_P + "extensions", "is not a list of name=value", "Write name=value,name=value")
    return pairs


def _read_token(document: Any) -> tuple[str, float]:
    """Token and seconds to live; 0 where nothing tells, so that it is used once."""
    token = document["access_token"]
    if not isinstance(token, str) or not token or not token.isprintable():
        raise ValueError("no token")
    return token, float(document.get("expires_in", 0))


def _error_code(body: bytes) -> str:
    """RFC 6749's error code; its description is the provider's own text and may quote what was sent."""
    try:
        code = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return ""
    return f" ({code})" if isinstance(code, str) and len(code) < 50 and code.isidentifier() else ""


def _shown(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _segment(document: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(document).encode()).decode().rstrip("=")
