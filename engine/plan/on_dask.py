"""Distribute node shards over an existing Dask cluster: the same answer, bit for bit, even if workers fail.

Shards travel as bytes (no shared disk is needed), and only a bounded number at a time. A worker that dies
loses nothing, because its shards are computed again elsewhere.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pyarrow as pa

from engine.api.encoding.json_text import encode_json
from engine.api.errors import InvalidInput, Unavailable
from engine.plan.answers.answer import Answer, joined
from engine.plan.questions import QUESTIONS
from engine.plan.snapshot.columnar_file import TABLES
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.lazy_table import whole

CONNECT_TIMEOUT = 15.0
SHARDS_PER_WORKER = 2
RETRIES = 10

Packed = dict[str, Any]


def pack(snapshot: Snapshot) -> Packed:
    """Serialize a shard to plain bytes that hold only its own rows."""
    packed: Packed = {"meta": snapshot.meta}
    for name in TABLES:
        packed[name] = _to_bytes(whole(getattr(snapshot, name)))
    return packed


def unpack(packed: Packed) -> Snapshot:
    tables = {name: _from_bytes(packed[name]) for name in TABLES}
    return Snapshot(meta=packed["meta"], **tables)


def _to_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _from_bytes(data: bytes) -> pa.Table:
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all().combine_chunks()


def answer_shard(name: str, parameters: bytes, packed: Packed) -> tuple[bytes, dict[str, int]]:
    """Answer one shard, on a worker."""
    question = QUESTIONS[name]
    decoded = msgspec.json.decode(parameters, type=question.parameters)
    answer = question.ask(unpack(packed), decoded)
    return _to_bytes(answer.table), dict(answer.notes)


def ask_on_dask(
    scheduler: str,
    name: str,
    parameters: msgspec.Struct,
    shards: Iterator[Snapshot],
    answered: Callable[[int], None],
) -> Answer:
    """Ask a question on a Dask cluster. `answered` receives the number of pods of each finished shard.

    Raise `Unavailable` if the scheduler cannot be reached, `InvalidInput` as the question does.
    """
    try:
        from distributed import Client
    except ImportError:
        raise InvalidInput("needs Dask: pip install 'kubengine[dask]'", subject="--dask") from None
    try:
        client = Client(scheduler, timeout=CONNECT_TIMEOUT, set_as_default=False)
    except (OSError, ValueError) as error:
        raise Unavailable(f"no Dask scheduler answers: {error}", subject=scheduler) from None
    with client, warnings.catch_warnings():
        # Shards travel with the task because workers share no disk with this process.
        warnings.filterwarnings("ignore", "Sending large graph", UserWarning)
        return joined(_in_order(client, name, encode_json(parameters), shards, answered))


def _in_order(
    client: Any,
    name: str,
    parameters: bytes,
    shards: Iterator[Snapshot],
    answered: Callable[[int], None],
) -> Iterator[Answer]:
    """Yield answers in the order of shards, with a bounded number in flight."""
    waiting: deque[Any] = deque()

    def first() -> Answer:
        future, pods = waiting.popleft()
        answer = _result(future)
        answered(pods)
        return answer

    for shard in shards:
        window = max(len(client.scheduler_info(n_workers=-1)["workers"]), 1) * SHARDS_PER_WORKER
        while len(waiting) >= window:
            yield first()
        future = client.submit(answer_shard, name, parameters, pack(shard), pure=False, retries=RETRIES)
        waiting.append((future, shard.placed))
    while waiting:
        yield first()


def _result(future: Any) -> Answer:
    table, notes = future.result()
    return Answer(_from_bytes(table), notes)
