"""Certificates and keys for TLS, whatever they are kept in: PEM in files or settings, PKCS#12, Java's JKS.

JKS is read here: no library that is looked after does it, and calling ``keytool`` would want a Java on every host, and
most of a second of each call. Its form has not changed since 1998: entries, then SHA-1 over password, a constant and
all of it; a private key is XORed with a stream of SHA-1 digests (``sun.security.provider.KeyProtector``). The tests
read what keytool writes.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import ssl
import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from airflow_kafka_eos.errors import ConfigurationError, setting_error
from airflow_kafka_eos.extras import needed

#: librdkafka's keys that kafka-python has no argument for; all of TLS then goes through a context of ours.
IN_CONTEXT = frozenset(
    {"ssl.ca.pem", "ssl.certificate.pem", "ssl.key.pem", "ssl.keystore.location", "ssl.keystore.password"}
)


def context_of(values: Mapping[str, str]) -> ssl.SSLContext:
    """A client's TLS context from librdkafka's ``ssl.*`` keys; what is verified is what kafka-python would verify.

    :raises ConfigurationError: naming the key whose file or text cannot be used, without showing it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = values.get("ssl.endpoint.identification.algorithm", "https").lower() == "https"
    _trust(context, values)
    if values.get("ssl.keystore.location"):
        _load(context, _identity_in_pkcs12(values), "ssl.keystore.location")
        return context
    in_text = "ssl.certificate.pem" in values or "ssl.key.pem" in values
    if in_text or values.get("ssl.certificate.location"):
        certificates, key = _text_of(values, "ssl.certificate"), _text_of(values, "ssl.key")
        name = "ssl.key.pem" if in_text else "ssl.key.location"
        _load(context, Identity(certificates, key, values.get("ssl.key.password", "")), name)
    return context


class Identity(NamedTuple):
    """Who a client is. Both as PEM, the key under the password."""

    certificates: bytes
    key: bytes
    password: str


def _trust(context: ssl.SSLContext, values: Mapping[str, str]) -> None:
    location, pem = values.get("ssl.ca.location") or None, values.get("ssl.ca.pem") or None
    try:
        if location or pem:
            context.load_verify_locations(cafile=location, cadata=pem)
        else:
            context.load_default_certs()
        if revoked := values.get("ssl.crl.location"):
            context.load_verify_locations(cafile=revoked)
            context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
    except (OSError, ValueError):
        key = "ssl.ca.pem" if pem and not location else "ssl.ca.location"
        raise _unusable(key, "holds no certificates that can be read") from None


def _text_of(values: Mapping[str, str], name: str) -> bytes:
    """``<name>.pem``, or the contents of ``<name>.location``."""
    if pem := values.get(f"{name}.pem"):
        return pem.encode()
    if location := values.get(f"{name}.location"):
        return _read(location, f"{name}.location")
    raise _unusable(f"{name}.pem", "is missing: key and certificate belong together")


def _identity_in_pkcs12(values: Mapping[str, str]) -> Identity:
    name = "ssl.keystore.location"
    with needed(name):
        from cryptography.hazmat.primitives.serialization import pkcs12

    data, given = _read(values[name], name), values.get("ssl.keystore.password", "")
    try:
        key, certificate, more = pkcs12.load_key_and_certificates(data, given.encode() if given else None)
    except ValueError:
        raise _unusable(name, "is no PKCS#12 keystore, or ssl.keystore.password is not its password") from None
    if key is None or certificate is None:
        raise _unusable(name, "holds no key with its certificate")
    return _identity([certificate, *more], key)


def _identity(certificates: Iterable[Any], key: Any) -> Identity:
    """Under a password that is made for this moment."""
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

    password = secrets.token_urlsafe(32)
    encryption = BestAvailableEncryption(password.encode())
    pem = b"".join(one.public_bytes(Encoding.PEM) for one in certificates)
    return Identity(pem, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption), password)


def _load(context: ssl.SSLContext, identity: Identity, name: str) -> None:
    # OpenSSL's Python binding reads a key from a file only: mode 0600, and gone before this returns
    handle, path = tempfile.mkstemp(prefix="airflow-kafka-eos-", suffix=".pem")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(identity.certificates + b"\n" + identity.key + b"\n")
        # a function, for OpenSSL would ask at the terminal when there is none
        context.load_cert_chain(path, password=lambda: identity.password)
    except (ssl.SSLError, ValueError):
        raise _unusable(name, "and its certificate cannot be used: no match, no PEM, or a wrong password") from None
    finally:
        os.unlink(path)


def _read(location: str, name: str, *, is_store: bool = False) -> bytes:
    try:
        return Path(location).read_bytes()
    except (OSError, ValueError) as e:
        raise (_damaged if is_store else _unusable)(name, f"cannot be read ({type(e).__name__})") from None


def _unusable(key: str, problem: str) -> ConfigurationError:
    remedy = "Set it to readable PEM, or use ssl.ca.location, ssl.certificate.location and ssl.key.location with files"
    return setting_error(key, problem, remedy)


# -- Java's stores -----------------------------------------------------------------------------------------------------

_JKS, _JCEKS = b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce"
_WHITENER = b"Mighty Aphrodite"
_KEY, _CERTIFICATE = 1, 2
_SALT = _DIGEST = 20


def kind_of(location: str, name: str) -> str:
    """``JKS``, ``PKCS12`` or ``PEM``, by what is in the file: Java does not go by ``ssl.*.type`` alone either.

    :param name: the setting that names the file, for the error.
    :raises ConfigurationError: it cannot be read, or is none of them.
    """
    data = _read(location, name, is_store=True)
    if data.startswith(_JKS):
        return "JKS"
    if b"-----BEGIN " in data:
        return "PEM"
    if data[:1] == b"\x30":
        return "PKCS12"
    what = "a JCEKS keystore" if data.startswith(_JCEKS) else "neither JKS, PKCS#12 nor PEM"
    raise setting_error(
        name,
        f"names {what}",
        f"Make PKCS#12 of it: keytool -importkeystore -srckeystore {location} -destkeystore {location}.p12 "
        "-deststoretype PKCS12",
    )


def trusted_in(location: str, password: str, name: str) -> str:
    """The certificates of a truststore, JKS or PKCS#12, as PEM.

    :raises ConfigurationError: it cannot be read, or not with that password.
    """
    with needed(name):
        from cryptography.hazmat.primitives.serialization import Encoding, pkcs12

    data = _read(location, name, is_store=True)
    if data.startswith(_JKS):
        found = [c for entry in _entries(data, password, name) if entry.key is None for c in _x509(entry)]
    else:
        try:
            store = pkcs12.load_pkcs12(data, password.encode() if password else None)
        except ValueError:
            raise _damaged(name, f"is no PKCS#12 file, or {_password_of(name)} is not its password") from None
        found = [one.certificate for one in store.additional_certs]
    if not found:
        raise _damaged(name, "holds no trusted certificate")
    return "".join(one.public_bytes(Encoding.PEM).decode() for one in found)


def identity_in_jks(location: str, password: str, key_password: str, name: str) -> Identity:
    """The certificates and the key of a JKS keystore.

    :raises ConfigurationError: it cannot be read, or not with these passwords.
    """
    with needed(name):
        from cryptography.hazmat.primitives.serialization import load_der_private_key

    for entry in _entries(_read(location, name, is_store=True), password, name):
        if entry.key is not None:
            return _identity(_x509(entry), load_der_private_key(_unprotected(entry.key, key_password, name), None))
    raise _damaged(name, "holds no key")


class _Entry(NamedTuple):
    key: bytes | None
    certificates: tuple[bytes, ...]


def _x509(entry: _Entry) -> list[Any]:
    from cryptography.x509 import load_der_x509_certificate

    return [load_der_x509_certificate(der) for der in entry.certificates]


def _entries(data: bytes, password: str, name: str) -> Iterator[_Entry]:
    body, digest = data[:-_DIGEST], data[-_DIGEST:]
    if password:
        expected = hashlib.sha1(password.encode("utf-16-be") + _WHITENER + body).digest()
        if not hmac.compare_digest(expected, digest):
            raise _damaged(name, f"is damaged, or {_password_of(name)} is not its password")
    try:
        yield from _parsed(body)
    except (struct.error, IndexError, ValueError):
        raise _damaged(name, "is damaged") from None


def _parsed(body: bytes) -> Iterator[_Entry]:
    at = 0

    def number(form: str) -> int:
        nonlocal at
        (value,) = struct.unpack_from(form, body, at)
        at += struct.calcsize(form)
        return int(value)

    def block(form: str) -> bytes:
        nonlocal at
        size = number(form)
        if size > len(body) - at:
            raise ValueError("cut off")
        at += size
        return body[at - size : at]

    def certificate() -> bytes:
        if version == 2:
            block(">H")  # its type, X.509
        return block(">I")

    number(">I")
    version = number(">I")
    if version not in (1, 2):
        raise ValueError("of another version")
    for _ in range(number(">I")):
        tag = number(">I")
        block(">H")  # its alias
        number(">Q")  # when it was made
        if tag == _KEY:
            key = block(">I")
            yield _Entry(key, tuple(certificate() for _ in range(number(">I"))))
        elif tag == _CERTIFICATE:
            yield _Entry(None, (certificate(),))
        else:
            raise ValueError("of another kind")


def _unprotected(protected: bytes, password: str, name: str) -> bytes:
    """The key in PKCS#8 form: EncryptedPrivateKeyInfo's octets are salt, key XOR stream, digest."""
    try:
        outer, _ = _der(protected, 0)
        _, behind_the_algorithm = _der(outer, 0)
        octets, _ = _der(outer, behind_the_algorithm)
    except (IndexError, ValueError):
        raise _damaged(name, "is damaged") from None
    secret = password.encode("utf-16-be")
    last, hidden, digest = octets[:_SALT], octets[_SALT:-_DIGEST], octets[-_DIGEST:]
    stream = b""
    while len(stream) < len(hidden):
        last = hashlib.sha1(secret + last).digest()
        stream += last
    key = bytes(a ^ b for a, b in zip(hidden, stream, strict=False))
    if not hmac.compare_digest(hashlib.sha1(secret + key).digest(), digest):
        raise _damaged(name, "has a key under another password: ssl.key.password, or ssl.keystore.password without it")
    return key


def _der(der: bytes, at: int) -> tuple[bytes, int]:
    """The content of the DER element at an offset, and the offset behind it."""
    size, start = der[at + 1], at + 2
    if size & 0x80:
        count = size & 0x7F
        size, start = int.from_bytes(der[start : start + count], "big"), start + count
    if start + size > len(der):
        raise ValueError("cut off")
    return der[start : start + size], start + size


def _password_of(name: str) -> str:
    return name.replace("location", "password")


def _damaged(name: str, problem: str) -> ConfigurationError:
    return ConfigurationError(
        f"the file that the Kafka setting {name} names {problem}",
        remedy="Check it with keytool -list -keystore FILE, or use PEM files: ssl.ca.location, "
        "ssl.certificate.location and ssl.key.location",
    )
