"""Run a throw-away certificate authority with the `openssl` command."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

DAY = 86400.0
YEAR = 365 * DAY
LONG_AGO = 946684800.0  # the year 2000

_CONFIG = """
[req]
distinguished_name = name
[name]
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[leaf]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
{alternatives}
[ca]
default_ca = this
[this]
database = {directory}/index.txt
rand_serial = yes
new_certs_dir = {directory}
default_md = sha256
copy_extensions = copy
policy = any
[any]
commonName = supplied
organizationName = optional
"""


@dataclass(frozen=True, slots=True)
class CertificatePair:
    """Hold paths of PEM files."""

    certificate: Path
    key: Path


class Authority:
    """Create its key in `directory` and issue certificates there. Raise CalledProcessError or
    FileNotFoundError without a working `openssl`.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.certificate = directory / "ca.crt"
        self.key = directory / "ca.key"
        self._issued = 0
        new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        files = ["-keyout", str(self.key), "-out", str(self.certificate)]
        self._openssl("", "req", "-x509", *new, *files, "-subj", "/CN=throw-away", "-extensions", "authority")

    def issue(
        self, common_name: str, *, organization: str = "", alternatives: str = "", expired: bool = False
    ) -> CertificatePair:
        """Issue a certificate for client and server use, valid for two days (`expired`: until the year 2001).

        `alternatives` are subject alternative names in OpenSSL's syntax: `DNS:localhost,IP:127.0.0.1`.
        """
        self._issued += 1
        place = self.directory / f"{self._issued}"
        pair = CertificatePair(place.with_suffix(".crt"), place.with_suffix(".key"))
        subject = (f"/O={organization}" if organization else "") + f"/CN={common_name}"
        request = place.with_suffix(".csr")
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        self._openssl("", "req", *key, "-keyout", str(pair.key), "-out", str(request), "-subj", subject)
        names = f"subjectAltName = {alternatives}" if alternatives else ""
        now = time.time()
        lives = (LONG_AGO, LONG_AGO + YEAR) if expired else (now, now + 2 * DAY)
        pair.certificate.write_bytes(self.sign(request.read_bytes(), *lives, extensions=names))
        return pair

    def sign(self, request: bytes, begin: float, end: float, *, extensions: str = "") -> bytes:
        """Sign a certificate request (PEM), valid from `begin` to `end` in Unix seconds, with the requested
        names.

        `extensions` adds further extensions in OpenSSL's syntax.
        """
        (self.directory / "index.txt").write_text("")
        file, signed = self.directory / "request.csr", self.directory / "signed.crt"
        file.write_bytes(request)
        when = ["-startdate", _date(begin), "-enddate", _date(end)]
        signer = [
            "-cert",
            str(self.certificate),
            "-keyfile",
            str(self.key),
            "-extensions",
            "leaf",
            "-notext",
        ]
        self._openssl(extensions, "ca", "-batch", *signer, "-in", str(file), "-out", str(signed), *when)
        return signed.read_bytes()

    def _openssl(self, alternatives: str, command: str, *arguments: str) -> None:
        config = self.directory / "openssl.cnf"
        config.write_text(_CONFIG.format(alternatives=alternatives, directory=self.directory))
        subprocess.run(
            ["openssl", command, "-config", str(config), *arguments],
            check=True,
            capture_output=True,
            timeout=60,
        )


def _date(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y%m%d%H%M%SZ}"
