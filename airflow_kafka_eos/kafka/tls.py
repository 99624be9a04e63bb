"""Certificates and keys that are no PEM files: a PKCS#12 keystore, and texts inside the settings."""

from __future__ import annotations

import importlib.util
import os
import secrets
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path

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
        raise _refuse(f"{name}.pem", "is missing beside its other half")
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
