"""Read a cluster through its API server: lists page by page, then the documents of each node.

To spare the API server, lists are read one after another in pages, and the documents of nodes at a bounded
rate, a few at a time. Objects that the user may not read are reported once and left out; answers that need
them say so.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Iterator

import msgspec

from engine.api.errors import KubengineError, Refused
from engine.api.token_bucket import TokenBucket
from engine.cluster.client import ApiClient, ApiError
from engine.cluster.credentials import Credentials
from engine.cluster.kubeconfig import Kubeconfig
from engine.plan.reading.progress import Step, silent
from engine.plan.reading.reader import SnapshotReader
from engine.plan.reading.sources import in_memory
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.faults import NOT_LISTED, FaultLog

PAGE = 500
"""Objects in a page; kubectl asks for as many."""
MOST_PAGES = 20_000
"""Pages of a list, of ten million objects: a server that gives page tokens without end is refused."""
MOST_EMPTY_PAGES = 10
"""Pages in a row that hold nothing, although a token says that more follows."""
MOST_EXPIRIES = 2
"""How often a list starts over because its page token has expired (by default after five minutes)."""
NODE_SECONDS = 10.0
"""The deadline of a node's document: the API server itself waits up to 30 s for a node that is down."""

LISTS: tuple[tuple[str, str], ...] = (
    ("Node", "/api/v1/nodes"),
    ("Pod", "/api/v1/pods"),
    ("PriorityClass", "/apis/scheduling.k8s.io/v1/priorityclasses"),
    ("PodDisruptionBudget", "/apis/policy/v1/poddisruptionbudgets"),
    ("PersistentVolumeClaim", "/api/v1/persistentvolumeclaims"),
    ("PersistentVolume", "/api/v1/persistentvolumes"),
    ("StorageClass", "/apis/storage.k8s.io/v1/storageclasses"),
    ("CSINode", "/apis/storage.k8s.io/v1/csinodes"),
    ("DeviceClass", "/apis/resource.k8s.io/v1/deviceclasses"),
    ("ResourceClaim", "/apis/resource.k8s.io/v1/resourceclaims"),
    ("ResourceClaimTemplate", "/apis/resource.k8s.io/v1/resourceclaimtemplates"),
    ("ResourceSlice", "/apis/resource.k8s.io/v1/resourceslices"),
)
"""Kinds that a snapshot keeps, and their lists. Only nodes and pods are required."""
REQUIRED = ("Node", "Pod")
NODE_DOCUMENTS = ("configz", "stats/summary")


class _ListMeta(msgspec.Struct):
    token: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct):
    metadata: _ListMeta = msgspec.field(default_factory=_ListMeta)
    items: list[msgspec.Raw] | None = None


class _ObjectMeta(msgspec.Struct):
    name: str
    namespace: str = ""


class _Object(msgspec.Struct):
    metadata: _ObjectMeta


_named = msgspec.json.Decoder(_Object)


def read_cluster(
    config: Kubeconfig,
    faults: FaultLog,
    *,
    node_documents: bool = True,
    qps: int = 50,
    parallel: int = 16,
    step: Step = silent,
) -> Snapshot:
    """Read the cluster of a kubeconfig's context into a snapshot.

    `node_documents` also reads the configuration and the statistics of each node, at most `qps` documents a
    second and `parallel` at a time. `step` receives the fraction of the work done by each step; the fractions
    add up to 1.0. Raise `ApiError` if nodes or pods cannot be listed, `Unavailable` if the server cannot be
    reached.
    """
    return asyncio.run(_read(config, faults, node_documents, qps, parallel, step))


async def _read(
    config: Kubeconfig, faults: FaultLog, node_documents: bool, qps: int, parallel: int, step: Step
) -> Snapshot:
    client = ApiClient(config, Credentials(config, clock=time.time), user_agent="kubengine-plan")
    try:
        reader = ClusterReader(client, faults)
        share = 0.5 if node_documents else 1.0
        for kind, path in LISTS:
            await reader.read_list(kind, path)
            step(share / len(LISTS))
        if node_documents:
            await reader.read_nodes(qps, parallel, lambda done: step(done * (1.0 - share)))
        return reader.snapshot()
    finally:
        client.close()


class ClusterReader:
    """Pass what an API server answers to a `SnapshotReader`; faults name the server and the object."""

    def __init__(self, client: ApiClient, faults: FaultLog) -> None:
        self._client = client
        self._faults = faults
        self._reader = SnapshotReader(faults)
        self._digest = hashlib.sha256()
        self._nodes: list[str] = []
        self._unreadable: set[str] = set()

    def snapshot(self) -> Snapshot:
        return self._reader.snapshot(self._digest, [f"https://{self._client.peer}"])

    async def read_list(self, kind: str, path: str) -> None:
        """Read a list page by page. Raise `ApiError` if it is refused and a snapshot needs it."""
        known: set[tuple[str, str]] = set()
        expired = 0
        while True:
            try:
                await self._read_pages(kind, path, known)
            except ApiError as error:
                if error.code == 410 and expired < MOST_EXPIRIES:
                    expired += 1
                    continue
                if kind in REQUIRED or error.code == 410:
                    raise
                # 404: the server does not serve this version of the API, and so has no such objects.
                if error.code != 404:
                    self._faults.add(self._client.peer, path, "", error.message, kind=f"{NOT_LISTED}{kind}")
            return

    async def _read_pages(self, kind: str, path: str, known: set[tuple[str, str]]) -> None:
        """Pass on the objects that are not `known` from an earlier attempt, by namespace and name."""
        token, empty = "", 0
        for _ in range(MOST_PAGES):
            params = {"limit": str(PAGE)} | ({"continue": token} if token else {})
            page = await self._client.get(path, _Page, params)
            self._feed(f"{self._client.peer}{path}", b"\n".join(self._new(kind, page.items or [], known)))
            empty = 0 if page.items else empty + 1
            if not page.metadata.token:
                return
            if page.metadata.token == token or empty > MOST_EMPTY_PAGES:
                break
            token = page.metadata.token
        where = f"{self._client.peer}{path}"
        raise Refused("the list does not end: its page tokens lead no further", subject=where)

    def _new(self, kind: str, items: list[msgspec.Raw], known: set[tuple[str, str]]) -> Iterator[bytes]:
        for item in items:
            try:
                meta = _named.decode(item).metadata
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                if bytes(item).startswith(b"{") and bytes(item)[1:].lstrip() != b"}":
                    yield _with_kind(kind, item)  # the snapshot's reader reports it
                else:
                    self._faults.add(self._client.peer, kind, "", "is not an object", kind="is not an object")
                continue
            key = (meta.namespace, meta.name)
            if key not in known:
                known.add(key)
                if kind == "Node":
                    self._nodes.append(meta.name)
                yield _with_kind(kind, item)

    async def read_nodes(self, qps: int, parallel: int, step: Step) -> None:
        """Read the documents of each node through the server's proxy. A node that fails is a fault."""
        rate, slots = TokenBucket(qps, parallel), asyncio.Semaphore(parallel)

        async def read(node: str) -> None:
            async with slots:
                for document in NODE_DOCUMENTS:
                    if document not in self._unreadable:
                        await asyncio.sleep(rate.wait(time.monotonic()))
                        await self._read_node(node, document)
            step(1.0 / len(self._nodes))

        async with asyncio.TaskGroup() as group:
            for node in self._nodes:
                group.create_task(read(node))

    async def _read_node(self, node: str, document: str) -> None:
        path = f"/api/v1/nodes/{node}/proxy/{document}"
        try:
            async with asyncio.timeout(NODE_SECONDS):
                data = await self._client.get(path, msgspec.Raw)
        except TimeoutError:
            self._fault(node, document, f"no answer within {NODE_SECONDS:g} s")
        except KubengineError as error:
            if isinstance(error, ApiError) and error.code in (401, 403):
                self._forbidden(document, error.message)
            else:
                self._fault(node, document, error.message)
        else:
            # The reader takes the name of the node from the path, as in a support bundle.
            self._feed(f"nodes/{node}/{document.replace('/', '-')}.json", bytes(data))

    def _fault(self, node: str, document: str, problem: str) -> None:
        self._faults.add(
            self._client.peer, f"Node {node}", document, problem, kind=f"{document} is not available"
        )

    def _forbidden(self, document: str, problem: str) -> None:
        """Report a missing permission once, and make no further call: it is the same for all nodes."""
        if document not in self._unreadable:
            self._unreadable.add(document)
            self._faults.add(
                self._client.peer,
                f"/api/v1/nodes/*/proxy/{document}",
                "",
                f"not permitted (needs `get` on `nodes/proxy`): {problem}",
                kind=f"not permitted to read {document} of nodes",
            )

    def _feed(self, origin: str, data: bytes) -> None:
        self._digest.update(data)
        self._reader.read(in_memory(origin, data))


def _with_kind(kind: str, item: msgspec.Raw) -> bytes:
    """Return the object with its kind, which the items of a typed list lack."""
    return b'{"kind":"%s",%s' % (kind.encode(), bytes(item)[1:])
