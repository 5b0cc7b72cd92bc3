"""Creates keys, certificate requests and self-signed certificates with the `openssl` command.

Each call runs a child process, so that memory for key operations is released when it exits. Keys and
certificates are PEM; a key never appears in an argument or a temporary file.
"""

from __future__ import annotations

import calendar
import ipaddress
import os
import re
from collections.abc import Sequence
from time import strptime

import msgspec

from engine.api.errors import InvalidInput, Refused
from engine.host.child import run_child

SECONDS = 30.0
MOST = 1 << 20
_PLAIN = re.compile(r"[A-Za-z0-9:@._*-]+")
_REQUEST = "[req]\ndistinguished_name = subject\nprompt = no\n{more}[subject]\n{subject}\n"
_SELF_SIGNED = "x509_extensions = self\n"
_SELF = """[self]
basicConstraints = critical, CA:TRUE
keyUsage = critical, digitalSignature, keyEncipherment, keyCertSign
extendedKeyUsage = serverAuth
subjectAltName = {names}
"""
_ALTERNATIVES = "[alternatives]\nsubjectAltName = {names}\n"


KEY_TYPES: dict[str, tuple[tuple[str, ...], str]] = {
    "RSA3072": (("RSA", "rsa_keygen_bits:3072"), "-sha256"),
    "RSA4096": (("RSA", "rsa_keygen_bits:4096"), "-sha256"),
    "ECDSAP256": (("EC", "ec_paramgen_curve:P-256"), "-sha256"),
    "ECDSAP384": (("EC", "ec_paramgen_curve:P-384"), "-sha384"),
    "ECDSAP521": (("EC", "ec_paramgen_curve:P-521"), "-sha512"),
    "ED25519": (("ED25519",), ""),
}
"""The types of keys of pod certificates: algorithm and options, and the hash of a signature by default."""


class CertificateFacts(msgspec.Struct, frozen=True):
    """Hold the facts of a certificate: times in Unix seconds, and subject alternative names with IP addresses
    in short form.
    """

    not_before: float
    not_after: float
    names: frozenset[str]


async def new_key(key_type: str = "ECDSAP256") -> bytes:
    """Create a key as PKCS #8. Raises InvalidInput for a type that is not in `KEY_TYPES`."""
    (algorithm, *options), _ = _of_type(key_type)
    chosen = [word for option in options for word in ("-pkeyopt", option)]
    return await _openssl("genpkey", "-algorithm", algorithm, *chosen)


async def public_key(key: bytes) -> bytes:
    """Return the public key as DER. Raises Refused for text that is not a key."""
    return await _openssl("pkey", "-pubout", "-outform", "DER", stdin=key)


async def certificate_request(
    key: bytes, common_name: str, organization: str, names: Sequence[str] = ()
) -> bytes:
    """Create a request signed by `key`; `names` are DNS names and IP addresses."""
    subject = f"O = {_plain(organization)}\nCN = {_plain(common_name)}"
    more = "req_extensions = alternatives\n" if names else ""
    config = _REQUEST.format(more=more, subject=subject)
    if names:
        config += _ALTERNATIVES.format(names=_alternatives(names))
    return await _openssl("req", "-new", "-key", "/dev/stdin", stdin=key, config=config)


async def stub_request(key: bytes, key_type: str) -> bytes:
    """Create a request (DER) that names nothing: its signature proves possession of the key."""
    _, digest_option = _of_type(key_type)
    config = _REQUEST.format(more="", subject="")
    digests = [digest_option] if digest_option else []
    asked = ("req", "-new", "-subj", "/", "-outform", "DER", *digests, "-key", "/dev/stdin")
    return await _openssl(*asked, stdin=key, config=config)


async def self_signed(key: bytes, common_name: str, names: Sequence[str], days: int) -> bytes:
    """Create a self-signed server certificate."""
    subject = f"CN = {_plain(common_name)}"
    config = _REQUEST.format(more=_SELF_SIGNED, subject=subject) + _SELF.format(names=_alternatives(names))
    command = ("req", "-new", "-x509", "-key", "/dev/stdin", "-days", str(days))
    return await _openssl(*command, stdin=key, config=config)


async def certificate_facts(certificate: bytes) -> CertificateFacts:
    """Read the first certificate in the text. Raises Refused if there is none."""
    out = await _openssl(
        "x509", "-noout", "-startdate", "-enddate", "-ext", "subjectAltName", stdin=certificate
    )
    text = out.decode("utf-8", "replace")
    dates = dict(re.findall(r"^(notBefore|notAfter)=(.+)$", text, re.MULTILINE))
    names = re.findall(r"(?:^|[\s,])(DNS|IP Address):([^,\s]+)", text)
    return CertificateFacts(
        _seconds(dates["notBefore"]),
        _seconds(dates["notAfter"]),
        frozenset(shortest(name) for _, name in names),
    )


async def fits(certificate: bytes, key: bytes) -> bool:
    """Tell whether the first certificate belongs to this key."""
    of_certificate = await _openssl("x509", "-noout", "-pubkey", stdin=certificate)
    of_key = await _openssl("pkey", "-pubout", stdin=key)
    return of_certificate.strip() == of_key.strip()


def shortest(name: str) -> str:
    """Normalize a name for comparison: IP addresses get their short form."""
    return str(ipaddress.ip_address(name)) if is_ip(name) else name


def digest(data: bytes) -> bytes:
    """Compute SHA-512/256, from which the name of a request is derived."""
    import hashlib  # imported here because it loads OpenSSL, which most agents never need

    return hashlib.new("sha512_256", data).digest()


def _of_type(key_type: str) -> tuple[tuple[str, ...], str]:
    try:
        return KEY_TYPES[key_type]
    except KeyError:
        raise InvalidInput(f'unknown key type "{key_type}"') from None


def _plain(name: str) -> str:
    if not _PLAIN.fullmatch(name):
        raise InvalidInput("not allowed in a certificate", subject=repr(name))
    return name


def _alternatives(names: Sequence[str]) -> str:
    return ", ".join(f"{'IP' if is_ip(name) else 'DNS'}:{_plain(name)}" for name in names)


def is_ip(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _seconds(date: str) -> float:
    return float(calendar.timegm(strptime(date, "%b %d %H:%M:%S %Y GMT")))


async def _openssl(command: str, *arguments: str, stdin: bytes = b"", config: str = "") -> bytes:
    """Run `openssl` and return its output. Raises Refused with its error text, Unavailable if it is slow or
    missing.
    """
    subject = f"openssl {command}"
    descriptor = os.memfd_create("openssl.cnf", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, config.encode())
        named = ["-config", f"/proc/self/fd/{descriptor}"] if config else []
        printed = await run_child(
            ["openssl", command, *named, *arguments],
            stdin=stdin,
            descriptors=[descriptor],
            seconds=SECONDS,
            most=MOST,
            subject=subject,
        )
    finally:
        os.close(descriptor)
    if printed.code:
        raise Refused(printed.errors[-300:], subject=subject)
    return printed.out
