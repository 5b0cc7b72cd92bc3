"""Creates TLS client contexts from certificates in memory."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from engine.api.errors import InvalidInput
from engine.api.struct import PartlyShown


class ClientTLS(PartlyShown, frozen=True):
    """Hold PEM texts. Empty `authorities` means the system's; `certificate` and `key` may be in one text."""

    HIDDEN = frozenset(("authorities", "certificate", "key", "insecure"))
    authorities: bytes = b""
    certificate: bytes = b""
    key: bytes = b""
    insecure: bool = False

    def context(self, subject: str) -> ssl.SSLContext:
        """Create a context for HTTP/2. Raises InvalidInput naming `subject` for a malformed
        certificate or key.
        """
        try:
            context = self._unverified() if self.insecure else self._verified()
            # HTTP/2 requires it (RFC 9113, section 9.2).
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.set_alpn_protocols(["h2"])
            if self.certificate:
                both = (
                    self.certificate if self.key == self.certificate else self.certificate + b"\n" + self.key
                )
                with _in_memory(both) as path:
                    context.load_cert_chain(path)
        except (ssl.SSLError, UnicodeDecodeError, ValueError) as error:
            raise InvalidInput(f"not a usable certificate or key: {error}", subject=subject) from error
        return context

    def _verified(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self.authorities.decode("ascii") or None)

    def _unverified(self) -> ssl.SSLContext:
        """Create a context without verification, and without loading the system's CAs, which
        would take 5 MB.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context


@contextmanager
def _in_memory(text: bytes) -> Iterator[str]:
    """Yield a path to the text in memory: OpenSSL reads chains from files only."""
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, text)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
