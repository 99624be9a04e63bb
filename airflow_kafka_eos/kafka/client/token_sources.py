"""Tokens for OAUTHBEARER from a function of somebody's: ``oauth_cb``, by its name (docs/adr/0032).

The function is confluent-kafka's: it gets the text of ``sasl.oauthbearer.config`` and returns ``(token, when it
expires)`` in seconds since the epoch, and if it likes a principal and a dict of SASL extensions behind them. It is
called in a thread of its own, by which a token is renewed before its end: a login finds one there, and neither a slow
function nor one that hangs holds up what is being written (rule: tokens-last-as-long). Its token is never part of an
error.
"""

from __future__ import annotations

import copy
import importlib
import importlib.metadata
import logging
import math
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from kafka.net.sasl.oauth import AbstractTokenProvider

from airflow_kafka_eos.errors import (
    BrokerUnavailableError,
    ConfigurationError,
    KafkaEosError,
    nearest,
    setting_error,
)
from airflow_kafka_eos.kafka.client import cloud_tokens
from airflow_kafka_eos.reasons import noted

_log = logging.getLogger(__name__)

#: Token providers of one's own are entry points of this group.
GROUP = "airflow_kafka_eos.token_providers"
KEY = "oauth_cb"
_CONFIG = "sasl.oauthbearer.config"
_METHOD = "sasl.oauthbearer.method"
_UNSECURE = "enable.sasl.oauthbearer.unsecure.jwt"
#: Seconds that a provider may take for a token.
ANSWER_S = 30.0
#: Part of a token's life after which it is renewed: librdkafka asks at 0.8, and kafka-python logs in anew from 0.85 on.
_RENEW_AT = 0.75
_PAUSE_S = 10.0
#: Seconds before its end from which on a token is not shown to a broker any more; less for one that lives shortly.
_MARGIN_S = 10.0
#: Seconds since the epoch that are no date: milliseconds.
_NO_SECONDS = 1e11
#: What may be a token in the text of somebody's exception.
_TOKEN_LIKE = re.compile(r"eyJ[\w.~+/=-]{8,}|[\w~+/=-]{40,}")

TokenCallback = Callable[[str], Any]


class Token(NamedTuple):
    """What a provider gave."""

    text: str
    #: seconds since the epoch
    expires_s: float
    principal: str
    extensions: Mapping[str, str]

    def __repr__(self) -> str:
        return f"Token(***, expires_s={self.expires_s})"


class TokenSource(AbstractTokenProvider):  # type: ignore[misc]
    """A provider's tokens, each kept until three quarters of its life are over. Safe for threads.

    :param name: the provider's, for errors.
    :param callback: the provider.
    :param config: what it is given.
    :param secrets: what is masked in the texts of its exceptions.
    """

    def __init__(self, name: str, callback: TokenCallback, config: str = "", secrets: Iterable[str] = ()) -> None:
        self.name = name
        self._callback, self._config, self._secrets = callback, config, tuple(secrets)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._token: Token | None = None
        self._margin_s = 0.0
        self._failure: KafkaEosError | None = None
        self._answers = 0
        self._wanted = False

    def current(self) -> Token:
        """The token that is kept, or a new one: then it is waited for, :data:`ANSWER_S` at most.

        :raises BrokerUnavailableError: the provider raises, or does not answer.
        :raises ConfigurationError: it returns something else than a token.
        """
        with self._changed:
            self._wanted = True
            end, seen = time.monotonic() + ANSWER_S, self._answers
            while not self._is_good():
                if self._answers != seen and self._failure is not None:
                    raise copy.copy(self._failure)
                if self._thread is None or not self._thread.is_alive():  # a forked process has no thread any more
                    self._thread = threading.Thread(target=self._keep, name=f"tokens of {self.name}", daemon=True)
                    self._thread.start()
                left_s = end - time.monotonic()
                if left_s <= 0:
                    raise self._failed(
                        f"has not answered for {ANSWER_S:g} s",
                        f"Find out what it waits for on {socket.gethostname()}, and give it a timeout of its own",
                    )
                self._changed.notify_all()  # a thread that sleeps until the renewal looks again
                self._changed.wait(left_s)
            assert self._token is not None
            return self._token

    def token(self) -> str:
        """For kafka-python; errors as :meth:`current`."""
        return self.current().text

    def extensions(self) -> dict[str, str]:
        """For kafka-python: those of the token that it got last."""
        return dict(self._token.extensions) if self._token is not None else {}

    def for_librdkafka(self, _: str) -> tuple[str, float, str, dict[str, str]]:
        """For confluent-kafka, as its ``oauth_cb``; errors as :meth:`current`."""
        found = self.current()
        return found.text, found.expires_s, found.principal, dict(found.extensions)

    # -- the thread ----------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        """Get a token and renew it, for as long as somebody logs in with it. The only one that asks the provider."""
        while True:
            found = self._ask()
            with self._changed:
                now = time.time()
                self._answers += 1
                if isinstance(found, Token):
                    self._token, self._failure = found, None
                    self._margin_s = min(_MARGIN_S, (found.expires_s - now) * (1 - _RENEW_AT) / 2)
                    pause_s = (found.expires_s - now) * _RENEW_AT
                else:
                    self._failure = found
                    if (kept := self._token) is None or not self._is_good():
                        self._end()
                        return
                    left_s = kept.expires_s - now
                    pause_s = min(_PAUSE_S, left_s / 4)
                    _log.warning("%s The token in use is good for %.0f s more", found, left_s)
                self._changed.notify_all()
                end = time.monotonic() + pause_s
                while self._is_good() and (left_s := end - time.monotonic()) > 0:
                    self._changed.wait(left_s)
                if self._failure is None:
                    if not self._wanted:
                        self._end()
                        return
                    self._wanted = False

    def _end(self) -> None:
        self._thread = None
        self._changed.notify_all()

    def _is_good(self) -> bool:
        """Good for a login that begins now: one that arrives with a token that has just ended is refused for ever."""
        return self._token is not None and self._token.expires_s - self._margin_s > time.time()

    def _ask(self) -> Token | KafkaEosError:
        try:
            return self._read(self._callback(self._config))
        except KafkaEosError as e:
            return e
        except BaseException as e:
            # its author's text: it may quote what was sent
            text = _TOKEN_LIKE.sub("***", noted(str(e), self._secrets))
            return self._failed(
                f"failed: {type(e).__name__}{f': {text}' if text else ''}",
                f"Correct what it says on {socket.gethostname()}: its credentials and network have to be there, too",
            )

    def _read(self, answer: Any) -> Token:
        given = (*answer, "", {})[:4] if isinstance(answer, tuple) and len(answer) == 2 else answer
        if isinstance(given, tuple) and len(given) == 3:
            given = (*given, {})
        if not isinstance(given, tuple) or len(given) != 4:
            raise self._wrong(f"returned a {type(answer).__name__} that is no token and its end")
        text, expires, principal, extensions = given
        if not isinstance(text, str) or not text or not text.isprintable() or not text.isascii():
            raise self._wrong("returned a token that is no printable text")
        if isinstance(expires, bool) or not isinstance(expires, (int, float)) or not math.isfinite(expires):
            raise self._wrong(f"returned a {type(expires).__name__} where the token's end is to stand")
        if expires > _NO_SECONDS:
            raise self._wrong("returned the token's end in something else than seconds since the epoch")
        if not isinstance(principal or "", str) or not isinstance(extensions or {}, Mapping):
            raise self._wrong("returned a principal that is no text, or extensions that are no dict")
        extensions = dict(extensions or {})
        if not all(isinstance(part, str) and part.isprintable() for pair in extensions.items() for part in pair):
            raise self._wrong("returned extensions that are no texts")
        if expires <= (now := time.time()):
            raise self._failed(
                f"gave a token that has ended {now - expires:.0f} s ago",
                f"Check the clock of {socket.gethostname()}, or what the provider keeps",
            )
        return Token(text, float(expires), principal or "", extensions)

    def _wrong(self, problem: str) -> ConfigurationError:
        return ConfigurationError(
            f"the token provider {self.name!r} ({KEY}) {problem}",
            remedy="Have it return (token, seconds since the epoch), as confluent-kafka's oauth_cb does",
        )

    def _failed(self, problem: str, remedy: str) -> BrokerUnavailableError:
        return BrokerUnavailableError(f"the token provider {self.name!r} ({KEY}) {problem}", remedy=remedy)


_sources: dict[tuple[str, str], TokenSource] = {}
_making = threading.Lock()


def source_of(values: Mapping[str, str], callback: TokenCallback | None, secrets: Iterable[str]) -> TokenSource:
    """The one source in this process for these settings: Spark's Python workers log in for each task.

    :param values: settings with ``oauth_cb``.
    :param callback: the provider, where the caller has it; None: it is looked for by its name.
    :raises ConfigurationError: there is no such provider here, or it lacks a library; or a setting contradicts it.
    """
    known = {_CONFIG, _METHOD, _UNSECURE}
    for key, value in values.items():
        beside = (key == _METHOD and value.lower() != "default") or (key == _UNSECURE and value.lower() == "true")
        if beside or (key.startswith(("sasl.oauthbearer.", "https.")) and key not in known):
            remedy = f"Remove one of them. What a token provider has to know is in {_CONFIG}"
            raise setting_error(key, f"stands beside {KEY}", remedy)
    name = values[KEY]
    config = values.get(_CONFIG) or cloud_tokens.config_of(name, values["bootstrap.servers"])
    with _making:
        if (name, config) not in _sources:
            _sources[name, config] = TokenSource(name, callback or provider_of(name), config, secrets)
        return _sources[name, config]


def provider_of(name: str) -> TokenCallback:
    """The function that a name means, in this Python.

    :param name: one of :data:`.cloud_tokens.PROVIDERS`, an entry point of the group :data:`GROUP`, or a dotted path.
    :raises ConfigurationError: there is none, or it lacks a library.
    """
    if name in cloud_tokens.PROVIDERS:
        return cloud_tokens.PROVIDERS[name]()
    try:
        if "." in name:
            module, _, attribute = name.rpartition(".")
            found = getattr(importlib.import_module(module), attribute)
        else:
            points = importlib.metadata.entry_points(group=GROUP)
            if name not in points.names:
                raise _unknown(name, points.names)
            found = points[name].load()
    except ConfigurationError:
        raise
    except Exception as e:  # whatever the author's module does while it is imported
        raise ConfigurationError(
            f"the token provider {name!r} ({KEY}) cannot be imported in this Python: "
            f"{type(e).__name__}: {_TOKEN_LIKE.sub('***', noted(str(e)))}",
            remedy=f"Install it on {socket.gethostname()}, and wherever else Kafka is logged in to: Airflow's hosts, "
            "the Spark driver, the executors",
        ) from None
    if not callable(found):
        raise setting_error(KEY, f"names {name!r}, which is no function", "Name a function that returns a token")
    return found  # type: ignore[no-any-return]


def _unknown(name: str, others: Iterable[str]) -> ConfigurationError:
    known = sorted({*cloud_tokens.PROVIDERS, *others})
    near = nearest(name, known)
    return setting_error(
        KEY,
        f"is {name!r}, which no installed package has in this Python",
        f"{f'Did you mean {near}? ' if near else ''}Use one of {', '.join(known)}, a dotted path, or install the "
        f"package that has it (entry point group {GROUP}), wherever Kafka is logged in to",
    )
