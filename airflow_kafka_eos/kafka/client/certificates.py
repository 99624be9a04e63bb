"""Certificates and keys that are no PEM files: a PKCS#12 keystore, and texts inside the settings.

Java's keystores and truststores, as PEM: JKS, and what PKCS#12 holds of trusted certificates.

JKS is read here: no library that is looked after does it, and calling ``keytool`` would want a Java on every host, and
most of a second of each call. Its form has not changed since 1998: entries, then SHA-1 over password, a constant and
all of it; a private key is XORed with a stream of SHA-1 digests (``sun.security.provider.KeyProtector``). The tests
read what keytool writes.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib.util
import os
import secrets
import ssl
import struct
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from airflow_kafka_eos.errors import ConfigurationError

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
        certificates, key, password = _unpacked(values)
        _load(context, certificates, key, password, "ssl.keystore.location")
    elif "ssl.certificate.pem" in values or "ssl.key.pem" in values:
        certificate = _text_of(values, "ssl.certificate")
        key = _text_of(values, "ssl.key")
        _load(context, certificate, key, values.get("ssl.key.password", ""), "ssl.key.pem")
    elif values.get("ssl.certificate.location"):
        certificate, key = _text_of(values, "ssl.certificate"), _text_of(values, "ssl.key")
        _load(context, certificate, key, values.get("ssl.key.password", ""), "ssl.key.location")
    return context


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
        raise _refuse(key, "holds no certificates that can be read") from None


def _text_of(values: Mapping[str, str], name: str) -> bytes:
    """``<name>.pem``, or the contents of ``<name>.location``."""
    if pem := values.get(f"{name}.pem"):
        return pem.encode()
    location = values.get(f"{name}.location")
    if not location:
        raise _refuse(f"{name}.pem", "is missing: key and certificate belong together")
    try:
        return Path(location).read_bytes()
    except OSError as error:
        raise _refuse(f"{name}.location", f"cannot be read ({type(error).__name__})") from None


def _unpacked(values: Mapping[str, str]) -> tuple[bytes, bytes, str]:
    """Certificates, the key in PEM form under a password made for this moment, and that password."""
    name = "ssl.keystore.location"
    if importlib.util.find_spec("cryptography") is None:
        raise _refuse(name, "needs the Python package cryptography, which is not installed")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.serialization import pkcs12

    try:
        data = Path(values[name]).read_bytes()
    except OSError as error:
        raise _refuse(name, f"cannot be read ({type(error).__name__})") from None
    given = values.get("ssl.keystore.password", "")
    try:
        key, certificate, more = pkcs12.load_key_and_certificates(data, given.encode() if given else None)
    except ValueError:
        raise _refuse(name, "is no PKCS#12 keystore, or ssl.keystore.password is not its password") from None
    if key is None or certificate is None:
        raise _refuse(name, "holds no key with its certificate")
    password = secrets.token_urlsafe(32)
    encoding = serialization.Encoding.PEM
    certificates = b"".join(c.public_bytes(encoding) for c in (certificate, *more))
    encrypted = key.private_bytes(
        encoding,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password.encode()),
    )
    return certificates, encrypted, password


def _load(context: ssl.SSLContext, certificates: bytes, key: bytes, password: str, name: str) -> None:
    # OpenSSL's Python binding reads a key from a file only: mode 0600, and gone before this returns
    handle, path = tempfile.mkstemp(prefix="airflow-kafka-eos-", suffix=".pem")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(certificates + b"\n" + key + b"\n")
        # a function, for OpenSSL would ask at the terminal when there is none
        context.load_cert_chain(path, password=lambda: password)
    except (ssl.SSLError, ValueError):
        raise _refuse(name, "and its certificate cannot be used: no match, no PEM, or a wrong password") from None
    finally:
        os.unlink(path)


def _refuse(key: str, problem: str) -> ConfigurationError:
    remedy = "Set it to readable PEM, or use ssl.ca.location, ssl.certificate.location and ssl.key.location with files"
    return ConfigurationError(f"the Kafka setting {key} {problem}", remedy=remedy)


_JKS, _JCEKS = b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce"
_WHITENER = b"Mighty Aphrodite"
_KEY, _CERTIFICATE = 1, 2
_SALT = 20


class _Entry(NamedTuple):
    key: bytes | None
    certificates: tuple[bytes, ...]


def kind_of(location: str, name: str) -> str:
    """``JKS``, ``PKCS12`` or ``PEM``, by what is in the file: Java does not go by ``ssl.*.type`` alone either.

    :param name: the setting that names the file, for the error.
    :raises ConfigurationError: it cannot be read, or is none of them.
    """
    data = _read(location, name)
    if data.startswith(_JKS):
        return "JKS"
    if b"-----BEGIN " in data:
        return "PEM"
    if data[:1] == b"\x30":
        return "PKCS12"
    what = "a JCEKS keystore" if data.startswith(_JCEKS) else "neither JKS, PKCS#12 nor PEM"
    raise ConfigurationError(
        f"the Kafka setting {name} names {what}",
        remedy=f"Make PKCS#12 of it: keytool -importkeystore -srckeystore {location} -destkeystore {location}.p12 "
        "-deststoretype PKCS12",
    )


def certificates_of(location: str, password: str, name: str) -> str:
    """The certificates of a truststore, as PEM.

    :raises ConfigurationError: it cannot be read, or not with that password.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    data = _read(location, name)
    if data.startswith(_JKS):
        found: list[Any] = [
            x509.load_der_x509_certificate(der)
            for entry in _entries(data, password, name)
            if entry.key is None
            for der in entry.certificates
        ]
    else:
        found = _trusted_by_pkcs12(data, password, name)
    if not found:
        raise _refuse_store(name, "holds no trusted certificate")
    return "".join(one.public_bytes(Encoding.PEM).decode() for one in found)


def key_of(location: str, password: str, key_password: str, name: str) -> tuple[str, str, str]:
    """The certificates and the key of a JKS keystore, as PEM; the key under a password made for this moment, the third.

    :raises ConfigurationError: it cannot be read, or not with these passwords.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    entry = next((e for e in _entries(_read(location, name), password, name) if e.key is not None), None)
    if entry is None or entry.key is None:
        raise _refuse_store(name, "holds no key")
    key = serialization.load_der_private_key(_unprotected(entry.key, key_password, name), None)
    made = secrets.token_urlsafe(32)
    pem = serialization.Encoding.PEM
    certificates = "".join(x509.load_der_x509_certificate(der).public_bytes(pem).decode() for der in entry.certificates)
    encrypted = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(made.encode())
    )
    return certificates, encrypted.decode(), made


def _trusted_by_pkcs12(data: bytes, password: str, name: str) -> list[Any]:
    from cryptography.hazmat.primitives.serialization import pkcs12

    try:
        store = pkcs12.load_pkcs12(data, password.encode() if password else None)
    except ValueError:
        raise _refuse_store(name, f"is no PKCS#12 file, or {_password_of(name)} is not its password") from None
    return [one.certificate for one in store.additional_certs]


def _entries(data: bytes, password: str, name: str) -> Iterator[_Entry]:
    body, digest = data[:-20], data[-20:]
    if password:
        expected = hashlib.sha1(password.encode("utf-16-be") + _WHITENER + body).digest()
        if not hmac.compare_digest(expected, digest):
            raise _refuse_store(name, f"is damaged, or {_password_of(name)} is not its password")
    try:
        yield from _parsed(body)
    except (struct.error, IndexError, ValueError):
        raise _refuse_store(name, "is damaged") from None


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
        octets = _octets(protected)
    except (IndexError, ValueError):
        raise _refuse_store(name, "is damaged") from None
    secret = password.encode("utf-16-be")
    salt, hidden, digest = octets[:_SALT], octets[_SALT:-20], octets[-20:]
    stream, last = b"", salt
    while len(stream) < len(hidden):
        last = hashlib.sha1(secret + last).digest()
        stream += last
    key = bytes(a ^ b for a, b in zip(hidden, stream, strict=False))
    if not hmac.compare_digest(hashlib.sha1(secret + key).digest(), digest):
        raise _refuse_store(
            name, "has a key under another password: ssl.key.password, or ssl.keystore.password without it"
        )
    return key


def _octets(der: bytes) -> bytes:
    """The second member of a DER sequence."""
    outer = _content(der, 0)[0]
    _, behind = _content(outer, 0)
    return _content(outer, behind)[0]


def _content(der: bytes, at: int) -> tuple[bytes, int]:
    """The content of the element at an offset, and the offset behind it."""
    size, start = der[at + 1], at + 2
    if size & 0x80:
        count = size & 0x7F
        size, start = int.from_bytes(der[start : start + count], "big"), start + count
    if start + size > len(der):
        raise ValueError("cut off")
    return der[start : start + size], start + size


def _read(location: str, name: str) -> bytes:
    try:
        return Path(location).read_bytes()
    except (OSError, ValueError) as e:
        raise _refuse_store(name, f"cannot be read ({type(e).__name__})") from None


def _password_of(name: str) -> str:
    return name.replace("location", "password")


def _refuse_store(name: str, problem: str) -> ConfigurationError:
    return ConfigurationError(
        f"the file that the Kafka setting {name} names {problem}",
        remedy="Check it with keytool -list -keystore FILE, or use PEM files: ssl.ca.location, "
        "ssl.certificate.location and ssl.key.location",
    )
