"""Who the node is to the API server, from its first start on: bootstrap, then a certificate kept fresh.

As the kubelet v1.36 does: a kubeconfig that is missing or whose certificate has ended is made anew with the
bootstrap kubeconfig; with `rotateCertificates` the certificate in the directory goes before the
kubeconfig's. A certificate that has ended is asked for with the bootstrap kubeconfig while the agent runs on.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

from engine.api.errors import InvalidInput, KubengineError
from engine.cluster.bootstrap import first_certificate, write_kubeconfig
from engine.cluster.certificate_metrics import CertificateMetrics
from engine.cluster.certificate_request import Wanted, client_certificate, request_certificate
from engine.cluster.certificate_rotation import CertificateRotation, keep_signed, pauses
from engine.cluster.certificate_store import CertificateStore, read_certificates
from engine.cluster.client import ApiClient
from engine.cluster.credentials import Credentials
from engine.cluster.kubeconfig import Kubeconfig, load_kubeconfig, pem
from engine.cluster.openssl import certificate_facts, new_key
from engine.metrics import Registry

PREFIX: Final = "kubelet-client"

log = logging.getLogger("kubengine.cluster")


class NodeIdentity:
    """`config` and `credentials` are for the node's client; `ready` is set once they are good.

    `directory` is the kubelet's `--cert-dir`.
    """

    def __init__(
        self,
        kubeconfig: Path,
        bootstrap: Path | None,
        directory: Path,
        node: str,
        *,
        user_agent: str,
        rotate: bool,
        clock: Callable[[], float],
        chance: random.Random,
        registry: Registry,
    ) -> None:
        """Raises InvalidInput, naming the file, where neither kubeconfig can be used."""
        self.ready = asyncio.Event()
        self._node = node
        self._agent = user_agent
        self._directory = directory
        self._clock, self._chance = clock, chance
        self._registry = registry
        self._store = CertificateStore(directory, PREFIX)
        self._bootstrap = load_kubeconfig(bootstrap) if bootstrap is not None else None
        self.config = self._usable(kubeconfig)
        self._rotate = rotate
        self.credentials = Credentials(self.config, clock=clock, pair=self._pair)

    def _usable(self, kubeconfig: Path) -> Kubeconfig:
        try:
            return load_kubeconfig(kubeconfig)
        except InvalidInput as error:
            if self._bootstrap is None:
                raise
            log.info("%s: made with the bootstrap kubeconfig", error)
        write_kubeconfig(kubeconfig, self._bootstrap, self._store.path.absolute())
        return load_kubeconfig(kubeconfig)

    def _pair(self) -> Path | None:
        """The file that goes before the kubeconfig's certificate."""
        return self._store.current() if self._rotates else None

    @property
    def _rotates(self) -> bool:
        """Only a certificate is renewed: a user with a token or a plugin stays who it is."""
        user = self.config.user
        return self._rotate and bool(user.client_certificate or user.client_certificate_data)

    async def run(self, client: ApiClient) -> None:
        """Bootstrap where that is due, then rotation by `client`, until it is cancelled."""
        if self._bootstrap is not None and not await self._is_good():
            await self._bootstrap_until_it_works()
        self.ready.set()
        if not self._rotates:
            return

        async def sign(wanted: Wanted) -> tuple[bytes, bytes]:
            if self._bootstrap is not None and not await self._is_good():
                return await self._first()
            key = await new_key()
            return await request_certificate(client, wanted, key), key

        named = self.config.user.client_certificate
        rotation = CertificateRotation(
            self._store,
            wanted=lambda: client_certificate(self._node),
            sign=sign,
            metrics=CertificateMetrics(self._registry, "client", self._clock),
            changed=self.credentials.outdated,
            clock=self._clock,
            chance=self._chance,
            first=Path(named) if named else None,
        )
        await rotation.run()

    async def _is_good(self) -> bool:
        """Whether there is a certificate that has not ended."""
        user, path = self.config.user, self._pair()
        try:
            if path is None and user.client_certificate_data:
                text = pem(user.client_certificate_data, "client-certificate-data", str(self.config.path))
            else:
                text = read_certificates(path or Path(user.client_certificate))
            return (await certificate_facts(text)).not_after > self._clock()
        except KubengineError as error:
            log.info("there is no client certificate yet: %s", error)
            return False

    async def _bootstrap_until_it_works(self) -> None:
        for pause in pauses(self._chance):
            try:
                certificate, key = await self._first()
                await keep_signed(self._store, certificate, key, self._clock())
                self._point_to_it()
            except KubengineError as error:
                log.warning("no client certificate yet: %s", error)
            else:
                return
            await asyncio.sleep(pause)

    async def _first(self) -> tuple[bytes, bytes]:
        """With the bootstrap's credentials."""
        assert self._bootstrap is not None
        credentials = Credentials(self._bootstrap, clock=self._clock)
        client = ApiClient(self._bootstrap, credentials, user_agent=self._agent, registry=self._registry)
        try:
            return await first_certificate(client, self._node, self._directory)
        finally:
            client.close()

    def _point_to_it(self) -> None:
        """The kubeconfig names the store's file from now on."""
        assert self._bootstrap is not None
        write_kubeconfig(self.config.path, self._bootstrap, self._store.path.absolute())
        self.config = load_kubeconfig(self.config.path)
        self.credentials.use(self.config)
