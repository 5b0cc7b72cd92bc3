"""Obtains the node's identity at the API server by bootstrap if it has none, and then renews it.

Follows the kubelet v1.36. The bootstrap kubeconfig is read only when the kubeconfig is missing, cannot be
read or has no certificate that is still valid: kubeadm names the file at every start and deletes it after the
first. With `rotateCertificates`, the certificate in the directory takes precedence over the kubeconfig's, and
a certificate in the kubeconfig (on a kubeadm control plane) is copied to the directory. When a certificate
expires while the agent runs, another is requested with the bootstrap kubeconfig.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

from engine.api.errors import InvalidInput, KubengineError, Unavailable
from engine.cluster.certificates.bootstrap import first_certificate, write_kubeconfig
from engine.cluster.certificates.metrics import CertificateMetrics
from engine.cluster.certificates.openssl import certificate_facts, new_key
from engine.cluster.certificates.request import Wanted, client_certificate, request_certificate
from engine.cluster.certificates.rotation import CertificateRotation, RotationTiming, pauses, store_signed
from engine.cluster.certificates.store import CertificateStore, read_certificates
from engine.cluster.client import ApiClient
from engine.cluster.credentials import Credentials, client_pair
from engine.cluster.kubeconfig import Kubeconfig, load_kubeconfig
from engine.host.node_context import NodeContext

PREFIX: Final = "kubelet-client"

log = logging.getLogger("kubengine.cluster")


class NodeIdentity:
    """Obtain and renew the node's identity. `config` and `credentials` are for its client; `ready` is set
    once they are valid.

    `bootstrap` is the path of a bootstrap kubeconfig, which need not exist; `directory` is the kubelet's
    `--cert-dir`.
    """

    def __init__(
        self,
        context: NodeContext,
        kubeconfig: Path,
        bootstrap: Path | None,
        directory: Path,
        *,
        user_agent: str,
        chance: random.Random,
    ) -> None:
        """Raise InvalidInput naming the file if neither kubeconfig is usable."""
        self.ready = asyncio.Event()
        self._node = context.name
        self._agent = user_agent
        self._directory = directory
        self._clock, self._chance = context.clock, chance
        self._registry = context.registry
        self._store = CertificateStore(directory, PREFIX)
        self._bootstrap = bootstrap
        self.config = self._usable(kubeconfig)
        self._rotate = context.config.rotate_certificates
        self.credentials = Credentials(self.config, clock=context.clock, pair=self._pair)

    def _usable(self, kubeconfig: Path) -> Kubeconfig:
        try:
            return load_kubeconfig(kubeconfig)
        except InvalidInput as error:
            if self._bootstrap is None:
                raise
            unusable = error
        try:
            bootstrap = load_kubeconfig(self._bootstrap)
        except InvalidInput as error:
            message = f"{error.message}; it is needed because of this: {unusable}"
            raise InvalidInput(message, subject=error.subject) from error
        log.info("%s: writing it from the bootstrap kubeconfig %s", unusable, self._bootstrap)
        write_kubeconfig(kubeconfig, bootstrap, self._store.path.absolute())
        return load_kubeconfig(kubeconfig)

    def _pair(self) -> Path | None:
        """Return the file that takes precedence over the kubeconfig's certificate."""
        return self._store.current() if self._rotates else None

    @property
    def _rotates(self) -> bool:
        """Return whether the identity is a certificate, which is renewed; tokens and plugins are not."""
        user = self.config.user
        return self._rotate and bool(user.client_certificate or user.client_certificate_data)

    async def run(self, client: ApiClient) -> None:
        """Bootstrap if there is no valid certificate, then renew by `client` until cancelled."""
        if self._rotates:  # registered early, so that the series exist before the first certificate
            self._metrics = CertificateMetrics(self._registry, "client", self._clock)
        adopted = self._rotates and await self._adopt()
        if self._bootstrap is not None and not await self._is_good():
            await self._bootstrap_until_it_works()
        self.ready.set()
        if not self._rotates:
            return

        async def sign(wanted: Wanted) -> tuple[bytes, bytes]:
            if self._bootstrap is not None and not await self._is_good():
                return await self._first(load_kubeconfig(self._bootstrap))
            key = await new_key()
            return await request_certificate(client, wanted, key), key

        rotation = CertificateRotation(
            self._store,
            wanted=lambda: client_certificate(self._node),
            sign=sign,
            metrics=self._metrics,
            changed=self.credentials.outdated,
            timing=RotationTiming(self._clock, self._chance),
            at_once=adopted,
        )
        await rotation.run()

    async def _adopt(self) -> bool:
        """Copy the kubeconfig's certificate to the directory if none there is valid; return whether it was
        copied.

        The kubelet does so for kubeadm, which expects `kubelet-client-current.pem` there. It then requests
        another certificate at once, because the first may have more rights than a node needs.
        """
        current = self._store.current()
        if current is not None and await self._is_valid(lambda: read_certificates(current)):
            return False
        try:
            certificate, key = client_pair(self.config)
            if not (certificate and key):
                return False
            await store_signed(self._store, certificate, key, self._clock())
        except KubengineError as error:
            log.info("%s: ignoring its client certificate: %s", self.config.path, error)
            return False
        self.credentials.outdated()
        return True

    async def _is_good(self) -> bool:
        """Return whether the certificate in use is still valid."""
        path = self._pair()
        return await self._is_valid(
            lambda: read_certificates(path) if path is not None else client_pair(self.config)[0]
        )

    async def _is_valid(self, read: Callable[[], bytes]) -> bool:
        try:
            certificate = read()
            return bool(certificate) and (await certificate_facts(certificate)).not_after > self._clock()
        except Unavailable as error:  # a busy machine, which says nothing about the certificate
            log.warning("the client certificate cannot be checked and stays in use: %s", error)
            return True
        except KubengineError as error:
            log.info("there is no valid client certificate yet: %s", error)
            return False

    async def _bootstrap_until_it_works(self) -> None:
        assert self._bootstrap is not None
        for pause in pauses(self._chance):
            try:
                bootstrap = load_kubeconfig(self._bootstrap)
                certificate, key = await self._first(bootstrap)
                await store_signed(self._store, certificate, key, self._clock())
                self._point_to_it(bootstrap)
            except KubengineError as error:
                log.warning(
                    "%s has no valid client certificate, and none was obtained: %s", self.config.path, error
                )
            else:
                return
            await asyncio.sleep(pause)

    async def _first(self, bootstrap: Kubeconfig) -> tuple[bytes, bytes]:
        """Request a certificate with the bootstrap's credentials; returns it and its key."""
        credentials = Credentials(bootstrap, clock=self._clock)
        client = ApiClient(bootstrap, credentials, user_agent=self._agent, registry=self._registry)
        try:
            return await first_certificate(client, self._node, self._directory)
        finally:
            client.close()

    def _point_to_it(self, bootstrap: Kubeconfig) -> None:
        """Write a kubeconfig that refers to the directory's certificate, and use it."""
        write_kubeconfig(self.config.path, bootstrap, self._store.path.absolute())
        self.config = load_kubeconfig(self.config.path)
        self.credentials.use(self.config)
