"""A file of client settings: Kafka's own ``client.properties``, or librdkafka's names; either becomes the latter.

A file with one of the names that only Kafka's Java clients have is read as Java reads it
(:class:`java.util.Properties`: escapes, continued lines), and its names are translated. Any other is read line by line,
and nothing in a value is special. What guards a connection, and has no counterpart here, is refused; what only Java's
clients do with themselves is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from airflow_kafka_eos.errors import ConfigurationError, setting_error
from airflow_kafka_eos.kafka.client.certificates import identity_in_jks, kind_of, trusted_in

_OPTION = "--command-config"
_LOGIN_HANDLER = "sasl.login.callback.handler.class"
_ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
#: whoever writes one of these writes for Java
_JAVAS = re.compile(
    r"sasl\.jaas\.config|sasl\.login\..*|sasl\.client\.callback\.handler\.class|ssl\.truststore\..*|ssl\.protocol"
    r"|ssl\.keystore\.(type|key|certificate\.chain)|ssl\.enabled\.protocols|ssl\.(key|trust)manager\.algorithm"
    r"|.*\.(de)?serializer|ssl\.provider|security\.providers|ssl\.engine\.factory\.class"
    r"|ssl\.secure\.random\.implementation|config\.providers.*|bootstrap\.controllers"
)
#: timing of logins, measuring, buffers, and what a producer does with its records: nothing here goes by it
_LEFT_OUT = re.compile(
    r"sasl\.login\.(connect|read|refresh|retry)\..*|sasl\.kerberos\.(kinit\.cmd|min\.time\..*|ticket\..*)"
    r"|sasl\.oauthbearer\.(jwks|clock|expected|header|scope\.claim|sub\.claim|jwt)\..*"
    r"|metrics?\..*|auto\.include\.jmx\.reporter|enable\.metrics\.push|interceptor\.classes|.*\.(de)?serializer"
    r"|default\.api\.timeout\.ms|metadata\.recovery\..*|client\.dns\.lookup|socket\.connection\.setup\.timeout\.max\.ms"
    r"|acks|retries|batch\.size|linger\.ms|buffer\.memory|max\.request\.size|max\.block\.ms|partitioner\..*"
    r"|compression\..*|enable\.idempotence|delivery\.timeout\.ms|max\.in\.flight\.requests\.per\.connection"
    r"|transactional\.id|transaction\..*|request\.timeout\.ms|retry\.backoff\..*|max\.poll\.records|exclude\..*"
    r"|(send|receive)\.buffer\.bytes|allow\.auto\.create\.topics"
)
#: Amazon MSK's own mechanism and classes (aws-msk-iam-auth): brokers that have it take the tokens of oauth_cb=msk, too
_IAM = "AWS_MSK_IAM"
_IAM_CLASSES = "software.amazon.msk.auth.iam."
_IAM_MODULE = f"{_IAM_CLASSES}IAMLoginModule"
_IAM_TOKENS = f"{_IAM_CLASSES}IAMOAuthBearerLoginCallbackHandler"
#: options of its login module that do not say who logs in
_IAM_ASIDE = {"awsDebugCreds", "awsMaxRetries", "awsMaxBackOffTimeMs"}
#: what these say is what is done anyway; anything else is refused
_ONLY_AS = {
    "ssl.protocol": {"TLS", "TLSv1.2", "TLSv1.3"},
    "ssl.trustmanager.algorithm": {"PKIX", "SunX509"},
    "ssl.keymanager.algorithm": {"SunX509", "PKIX"},
    "sasl.login.class": {""},
    "sasl.client.callback.handler.class": {"", f"{_IAM_CLASSES}IAMClientCallbackHandler", _IAM_TOKENS},
    "ssl.provider": {""},
    "security.providers": {""},
    "ssl.engine.factory.class": {"", "org.apache.kafka.common.security.ssl.DefaultSslEngineFactory"},
    "ssl.secure.random.implementation": {""},
    "config.providers": {""},
    "bootstrap.controllers": {""},
}
_OAUTH_HANDLERS = re.compile(r"org\.apache\.kafka\.[\w.]*\.OAuthBearer(Unsecured)?LoginCallbackHandler")
_NAMED = {"username": "sasl.username", "password": "sasl.password"}
#: JAAS options -> librdkafka's names, by login module
_MODULES = {
    "org.apache.kafka.common.security.plain.PlainLoginModule": _NAMED,
    "org.apache.kafka.common.security.scram.ScramLoginModule": _NAMED,
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule": {
        "clientId": "sasl.oauthbearer.client.id",
        "clientSecret": "sasl.oauthbearer.client.secret",
        "scope": "sasl.oauthbearer.scope",
    },
    "com.sun.security.auth.module.Krb5LoginModule": {
        "serviceName": "sasl.kerberos.service.name",
        "keyTab": "sasl.kerberos.keytab",
        "principal": "sasl.kerberos.principal",
    },
    _IAM_MODULE: {},
}
_TOKEN = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/|(?P<quoted>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|(?P<mark>[=;])"""
    r"""|(?P<word>[^\s"'=;/]+)""",
    re.DOTALL,
)
#: what a letter behind a backslash stands for
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_client_properties(path: Path) -> dict[str, str]:
    """The settings in a file, in librdkafka's names.

    :raises ConfigurationError: it cannot be read, a line is none, or a setting cannot be followed. No value is shown
        that may be a secret.
    """
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as e:
        reason = e.strerror if isinstance(e, OSError) else "its name is none"
        raise ConfigurationError(f"{_OPTION} {path} cannot be read: {reason}", remedy="Name a readable file") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")  # Java's own reading of every file
    try:
        javas = dict(_as_java(text))
    except ValueError:
        javas = {}
    if any(map(_JAVAS.fullmatch, javas)):
        return translated(javas)
    ours = dict(_line_by_line(text, path))
    return _without_empty_keystore(ours | _keystore(ours))


def _line_by_line(text: str, path: Path) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if not line or line.startswith(("#", "!")):
            continue
        key, equals, value = line.partition("=")
        if not equals or not key.strip():
            raise ConfigurationError(
                f"line {number} of {_OPTION} {path} is not key=value",
                remedy="Write one setting a line, in the names of Kafka's client.properties or in librdkafka's",
            )
        yield key.strip(), value.strip()


def _as_java(text: str) -> Iterator[tuple[str, str]]:
    """What :class:`java.util.Properties` reads.

    :raises ValueError: a Unicode escape that is none.
    """
    lines = iter(re.split(r"\r\n|\r|\n", text))
    for line in lines:
        line = line.lstrip(" \t\f")
        if not line or line[0] in "#!":
            continue
        while _is_continued(line):
            line = line[:-1] + next(lines, "").lstrip(" \t\f")
        key = re.match(r"(?:[^\\=: \t\f]|\\.)*", line, re.DOTALL)
        assert key is not None  # an empty text matches
        value = re.sub(r"^[ \t\f]*[=:]?[ \t\f]*", "", line[key.end() :])
        yield _unescaped(key[0]), _unescaped(value)


def _is_continued(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescaped(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        if match[1] is not None:
            return chr(int(match[1], 16))
        if match[2] == "u":
            raise ValueError("not four hexadecimal digits")
        return _LETTERS.get(match[2], match[2])

    made = re.sub(r"\\(?:u([0-9a-fA-F]{4})|(.))", one, text, flags=re.DOTALL)
    return made.encode("utf-16", "surrogatepass").decode("utf-16")  # two escapes may be one character


def translated(java: Mapping[str, str]) -> dict[str, str]:
    """Kafka's own names and values in librdkafka's.

    :raises ConfigurationError: naming the setting that cannot be followed.
    """
    made = {}
    for key, value in java.items():
        if key in _ONLY_AS:
            if value.strip() not in _ONLY_AS[key]:
                raise setting_error(key, f"is {value.strip()!r}, which Python's Kafka clients do not have", "Remove it")
        elif not _LEFT_OUT.fullmatch(key):
            made[key] = value.strip() if not key.endswith("password") else value
    _check_versions(made.pop("ssl.enabled.protocols", ""))
    if not made.get("ssl.endpoint.identification.algorithm", "https"):
        made["ssl.endpoint.identification.algorithm"] = "none"
    made |= _login(made)
    made |= _truststore(made)
    made |= _keystore(made)
    for key in [k for k in made if k.startswith("ssl.truststore.") or k in (
        "ssl.keystore.type", "ssl.keystore.key", "ssl.keystore.certificate.chain", "sasl.jaas.config", _LOGIN_HANDLER,
    )]:  # fmt: skip
        del made[key]
    return _without_empty_keystore(made)


def _without_empty_keystore(settings: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in settings.items() if value or not key.startswith("ssl.keystore.")}


def _check_versions(listed: str) -> None:
    versions = {version.strip() for version in listed.split(",") if version.strip()}
    if versions and "TLSv1.2" not in versions:
        remedy = "Remove it, or name TLSv1.2 too: 1.2 and 1.3 are offered"
        raise setting_error("ssl.enabled.protocols", f"is {listed!r}", remedy)


def _login(java: Mapping[str, str]) -> dict[str, str]:
    if not java.get("security.protocol", "").upper().startswith("SASL"):
        return {}
    made = {} if java.get("sasl.mechanism") else {"sasl.mechanism": "GSSAPI"}  # Java's default
    handler = java.get(_LOGIN_HANDLER, "")
    by_iam = java.get("sasl.mechanism") == _IAM or handler == _IAM_TOKENS
    if handler and handler != _IAM_TOKENS and not _OAUTH_HANDLERS.fullmatch(handler):
        raise setting_error(_LOGIN_HANDLER, f"is {handler!r}, which only Java can run", "Use a login that needs none")
    if "sasl.jaas.config" in java:
        module, options = _jaas(java["sasl.jaas.config"])
        made |= _of_module(module, options)
        if by_iam:
            _check_iam(options)
    if by_iam:
        made |= {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": java.get("oauth_cb", "msk")}
    if _ENDPOINT in java:
        made["sasl.oauthbearer.method"] = "oidc"
    return made


def _of_module(module: str, options: Mapping[str, str]) -> dict[str, str]:
    known = _MODULES.get(module)
    if known is None:
        raise setting_error(
            "sasl.jaas.config", f"names {module}, which only Java can run", f"Use one of {', '.join(_MODULES)}"
        )
    made = {ours: options[theirs] for theirs, ours in known.items() if theirs in options}
    if module.endswith(".OAuthBearerLoginModule"):
        extensions = [f"{k.removeprefix('extension_')}={v}" for k, v in options.items() if k.startswith("extension_")]
        if extensions:
            made["sasl.oauthbearer.extensions"] = ",".join(extensions)
        if subject := options.get("unsecuredLoginStringClaim_sub"):
            made |= {
                "enable.sasl.oauthbearer.unsecure.jwt": "true",
                "sasl.oauthbearer.config": f"principal={subject}",
            }
    return made


def _check_iam(options: Mapping[str, str]) -> None:
    if others := sorted(options.keys() - _IAM_ASIDE):
        raise setting_error(
            "sasl.jaas.config",
            f"has {', '.join(others)}, and tokens for MSK are signed by whom boto3 finds on this host",
            "Remove it, and name a profile by AWS_PROFILE, one with role_arn where a role is to be assumed",
        )


def _jaas(text: str) -> tuple[str, dict[str, str]]:
    """The login module of a JAAS entry, and its options: ``Module required username="…" password="…";``."""
    tokens = list(_tokens(text))
    shape = setting_error(
        "sasl.jaas.config",
        "is no entry of JAAS",
        'Write it on one line: org.apache.kafka.common.security.scram.ScramLoginModule required username="…" '
        'password="…";',
    )
    if len(tokens) < 3 or tokens[-1] != ("mark", ";") or ("mark", ";") in tokens[:-1]:
        raise shape
    (_, module), _flag, *rest = tokens[:-1]
    options = {}
    while rest:
        if len(rest) < 3 or rest[1] != ("mark", "=") or "mark" in (rest[0][0], rest[2][0]):
            raise shape
        options[rest[0][1]] = rest[2][1]
        rest = rest[3:]
    return module, options


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            yield "mark", text[at]
            return
        at = match.end()
        if match["quoted"]:
            yield "word", re.sub(r"\\(.)", lambda m: _LETTERS.get(m[1], m[1]), match["quoted"][1:-1], flags=re.DOTALL)
        elif kind := match.lastgroup:
            yield kind, match[0]


def _truststore(java: Mapping[str, str]) -> dict[str, str]:
    if certificates := java.get("ssl.truststore.certificates"):
        return {"ssl.ca.pem": _pem(certificates)}
    if not (location := java.get("ssl.truststore.location")):
        return {}
    name = "ssl.truststore.location"
    if kind_of(location, name) == "PEM":
        return {"ssl.ca.location": location}
    return {"ssl.ca.pem": trusted_in(location, java.get("ssl.truststore.password", ""), name)}


def _keystore(given: Mapping[str, str]) -> dict[str, str]:
    """What stands for a keystore that is no PKCS#12 file, which :mod:`.certificates` reads itself."""
    if given.get("ssl.keystore.key"):
        return {
            "ssl.key.pem": _pem(given["ssl.keystore.key"]),
            "ssl.certificate.pem": _pem(given.get("ssl.keystore.certificate.chain", "")),
        }
    location, name = given.get("ssl.keystore.location"), "ssl.keystore.location"
    if not location or (kind := kind_of(location, name)) == "PKCS12":
        return {}
    gone = {name: "", "ssl.keystore.password": ""}
    if kind == "PEM":
        return gone | {"ssl.certificate.location": location, "ssl.key.location": location}
    store = given.get("ssl.keystore.password", "")
    found = identity_in_jks(location, store, given.get("ssl.key.password") or store, name)
    certificates, key = found.certificates.decode(), found.key.decode()
    return gone | {"ssl.certificate.pem": certificates, "ssl.key.pem": key, "ssl.key.password": found.password}


def _pem(text: str) -> str:
    """With lines of PEM's own: a properties file has it in one, or Java's continued lines make one of it."""

    def block(match: re.Match[str]) -> str:
        body = "".join(match[2].split())
        lines = "\n".join(body[at : at + 64] for at in range(0, len(body), 64))
        return f"-----BEGIN {match[1]}-----\n{lines}\n-----END {match[1]}-----\n"

    return re.sub(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----\s*", block, text, flags=re.DOTALL)
