"""Recorded use from a real Prometheus and from tables: values, pieces, faults of single series."""

from __future__ import annotations

import base64
import gzip
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.api.errors import InvalidInput, KubengineError, Refused, Unavailable
from engine.plan import FaultLog, synthesize
from engine.plan.history import collect
from engine.plan.history.codes import MISSING, decode, encode
from engine.plan.history.collect import Collector, ReadingBudget, aligned
from engine.plan.history.history import History, HistoryBuilder, Times
from engine.plan.history.history_file import read_history, write_history
from engine.plan.history.prometheus import Prometheus, ServerAccess
from engine.plan.history.usage_tables import history_from_tables
from engine.plan.snapshot.columnar_file import write_snapshot
from tests.plan.use import recorded
from tests.plan.use.recorded import MEMORY, SCRAPE, Recording, prometheus

END = 1_767_225_600
HOURS = 6
STEP = 300
TIMES = aligned(END, HOURS / 24, STEP)
SCRAPED = range(TIMES.start - STEP, END + 1, SCRAPE)
MI = 1 << 20
OLD_REFUSAL = b'remoteAddr: "1.2.3.4:5"; requestURI: /a?query=' + b"x" * 300 + b"; %b"
"""How VictoriaMetrics 1.79 writes a refusal."""

needs_prometheus = pytest.mark.skipif(bool(recorded.MISSING), reason=f"needs {', '.join(recorded.MISSING)}")


def read(history: History, pod: str, measure: str, container: str = "app") -> np.ndarray:
    """Return the values of one series."""
    namespace, _, name = pod.rpartition("/")
    index = history.index.to_pylist()
    wanted = {"measure": measure, "node": "", "namespace": namespace, "pod": name, "container": container}
    return history.values(np.array([index.index(wanted)]))[0]


@pytest.fixture(scope="module")
def recording() -> Recording:
    return made_up_use()


def made_up_use() -> Recording:
    """Four containers: a plain one, one with a gap of two hours, one that two jobs scrape, one killed."""
    made = Recording()
    count = len(SCRAPED)
    ramp = [100 * MI + number * 1024 for number in range(count)]
    made.container("shop/plain-0", "app", SCRAPED, ramp, [0.25] * count, node="n1", image="a")
    kept = [at for at in SCRAPED if not END - 4 * 3600 < at <= END - 2 * 3600]
    made.container("shop/gap-0", "app", kept, [50 * MI] * len(kept), [0.1] * len(kept), node="n1")
    made.container("shop/twice-0", "app", SCRAPED, [10 * MI] * count, [0.5] * count, node="n1", job="a")
    made.container("shop/twice-0", "app", SCRAPED, [20 * MI] * count, [0.5] * count, node="n1", job="b")
    made.container("shop/plain-0", "POD", SCRAPED, [MI] * count, [0.0] * count, node="n1")
    made.add("container_oom_events_total", {"namespace": "shop", "pod": "plain-0", "container": "app"},
             [(at, float(at > END - 3600)) for at in SCRAPED])  # fmt: skip
    made.node("n1", SCRAPED, [4 * 1024 * MI] * count)
    for path, amount in (("/system.slice", MI), ("/kubepods.slice", 2 * MI), ("/system.slice/ssh", 1.0)):
        made.add(MEMORY, {"id": path, "node": "n1"}, [(at, amount) for at in SCRAPED])
    return made


@pytest.fixture(scope="module")
def server(recording: Recording, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with prometheus(tmp_path_factory.mktemp("prometheus"), recording) as address:
        yield address


@needs_prometheus
def test_the_slices_of_a_node_are_read_apart(server: str) -> None:
    faults = FaultLog()
    history = collected(server, faults)
    for measure, amount in (("system-memory", MI), ("pods-memory", 2 * MI), ("node-memory", 4096 * MI)):
        (row,) = history.rows(measure)
        assert np.nanmax(history.values(np.array([row]))) == pytest.approx(amount, rel=0.001)
    # No CPU of slices was scraped, which is no fault: reserve says so.
    assert not [fault for fault in faults.kept if fault.field in ("pods-cpu", "system-cpu")]


def collected(address: str, faults: FaultLog, **options: Any) -> History:
    server = Prometheus(ServerAccess(address), timeout=60, sleep=lambda seconds: None)
    return Collector(server, TIMES, faults, **options).collect()


@needs_prometheus
def test_use_is_read_from_a_real_server(server: str) -> None:
    faults = FaultLog()
    history = collected(server, faults)
    memory, cpu = read(history, "shop/plain-0", "memory"), read(history, "shop/plain-0", "cpu")
    assert len(memory) == HOURS * 12
    # The largest value of the five minutes up to the moment: the one that was scraped at the moment.
    scraped = {at: 100 * MI + number * 1024 for number, at in enumerate(SCRAPED)}
    expected = [scraped[TIMES.start + number * STEP] for number in range(TIMES.count)]
    np.testing.assert_allclose(memory, expected, rtol=3e-4)
    np.testing.assert_allclose(cpu, 250_000, rtol=1e-3)
    # Sandboxes and slices are no containers and no nodes.
    assert {row["container"] for row in history.index.to_pylist()} == {"", "app"}
    node = [row for row in history.index.to_pylist() if row["measure"] == "node-memory"]
    assert [row["node"] for row in node] == ["n1"]
    ooms = read(history, "shop/plain-0", "ooms")
    assert (ooms > 0).sum() == 1


@needs_prometheus
@pytest.mark.parametrize("shift", [0, 20, 50])
def test_a_kill_between_the_scrapes_of_two_windows_is_counted_once(shift: int, tmp_path: Path) -> None:
    made, kills = Recording(), [END - hour * 3600 - 40 for hour in range(1, 5)]
    times = [at + shift for at in SCRAPED]
    for number in range(5):
        # Each container is killed at another place in a window.
        moments = [kill + 60 * number for kill in kills]
        amounts = [MI] * len(times), [0.1] * len(times)
        made.container(f"shop/killed-{number}", "app", times, *amounts, node="n1")
        labels = {"namespace": "shop", "pod": f"killed-{number}", "container": "app"}
        counts = [(at, float(sum(moment < at for moment in moments))) for at in times]
        made.add("container_oom_events_total", labels, counts)
    with prometheus(tmp_path, made) as address:
        history = collected(address, FaultLog())
    for number in range(5):
        assert (read(history, f"shop/killed-{number}", "ooms") > 0.5).sum() == len(kills)


@needs_prometheus
def test_a_server_without_the_older_values_is_reported(server: str) -> None:
    faults, times = FaultLog(), aligned(END, 2 * HOURS / 24, STEP)
    Collector(Prometheus(ServerAccess(server), timeout=60), times, faults).collect()
    late = [str(fault) for fault in faults.kept if "late" in str(fault)]
    assert {line.split(": ")[1] for line in late} >= {"memory", "cpu"}
    assert "memory: begins 71 of 144 moments late, at" in late[0]
    faults = FaultLog()
    collected(server, faults)
    assert not [fault for fault in faults.kept if "late" in str(fault)]


@needs_prometheus
def test_gaps_and_copies_are_reported_for_their_container_only(server: str) -> None:
    faults = FaultLog()
    history = collected(server, faults)
    said = [str(fault) for fault in faults.kept]
    gap = [line for line in said if "gaps" in line]
    assert {line.split(": ")[1] for line in gap} == {"container shop/gap-0/app"}
    assert "of 72 moments" in gap[0]
    copies = [line for line in said if "series at once" in line]
    assert {line.split(": ")[1] for line in copies} == {"container shop/twice-0/app"}
    assert 'job="a"' in copies[0]
    assert 'job="b"' in copies[0]
    np.testing.assert_allclose(read(history, "shop/twice-0", "memory"), 20 * MI, rtol=3e-4)
    missing = np.isnan(read(history, "shop/gap-0", "memory"))
    assert 20 <= missing.sum() <= 24


@needs_prometheus
def test_pieces_give_what_one_query_gives(server: str) -> None:
    whole = collected(server, FaultLog())
    pieces = collected(server, FaultLog(), budget=ReadingBudget(samples=5))
    assert whole.index.equals(pieces.index)
    rows = np.arange(len(whole))
    assert np.array_equal(whole.codes(rows), pieces.codes(rows))


@needs_prometheus
def test_a_server_that_allows_few_samples_is_asked_for_less(
    recording: Recording, server: str, tmp_path: Path
) -> None:
    with prometheus(tmp_path, recording, "--query.max-samples=200") as strict:
        faults = FaultLog()
        history = collected(strict, faults)
        whole = collected(server, FaultLog())
    assert np.array_equal(history.codes(np.arange(len(history))), whole.codes(np.arange(len(whole))))
    assert "a piece is left out" not in faults.counts


@needs_prometheus
def test_when_the_time_is_up_the_newest_values_are_there(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "TURN", 3600)
    moments = iter(range(1000))
    faults = FaultLog()
    budget = ReadingBudget(samples=48, seconds=12.0)
    history = collected(server, faults, budget=budget, clock=lambda: float(next(moments)))
    memory = read(history, "shop/plain-0", "memory")
    assert not np.isnan(memory[-1])
    assert np.isnan(memory[0])
    assert not np.isnan(read(history, "shop/plain-0", "cpu")[-1])
    assert any("memory" in str(fault) and "the time was up" in str(fault) for fault in faults.kept)
    assert history.meta["incomplete"]["memory"] > 0


@needs_prometheus
def test_matchers_select_and_a_selection_of_nothing_says_so(server: str) -> None:
    history = collected(server, FaultLog(), matchers='pod="plain-0"')
    assert {row["pod"] for row in history.index.to_pylist()} == {"plain-0"}
    with pytest.raises(InvalidInput, match=r"has no series of container_memory.* that match"):
        collected(server, FaultLog(), matchers='pod="nobody"')
    with pytest.raises(Refused, match="parse error"):
        collected(server, FaultLog(), matchers='pod="')


@needs_prometheus
def test_the_command_writes_a_file_and_lists_faults(
    server: str, run_plan: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "use.arrow"
    done = run_plan("history", "--prometheus", server, "--days", "0.25", "--until", str(END), "-o", str(file))
    assert done.returncode == 0, done.stderr
    assert b"72 moments" in done.stderr
    assert b"has several series" in done.stderr
    assert read_history(file).times == TIMES
    done = run_plan("history", "--prometheus", server, "--strict", "--until", str(END), "-o", str(file))
    assert done.returncode != 0


Answer = tuple[int, dict[str, str], bytes]


@contextmanager
def fake(answer: Callable[[str, dict[str, str]], Answer]) -> Iterator[str]:
    """Serve made-up answers that no real server gives on request."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, headers, body = answer(self.path, dict(self.headers))
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def date_time_string(self, timestamp: float | None = None) -> str:
            return "Wed, 21 Oct 2015 07:28:00 GMT"

        def log_message(self, format: str, *args: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def result(series: list[dict[str, Any]]) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": series}}).encode()


def one_container(values: list[list[Any]]) -> bytes:
    return result([{"metric": {"namespace": "a", "pod": "b", "container": "c"}, "values": values}])


def test_credentials_and_headers_are_sent(tmp_path: Path) -> None:
    seen: list[dict[str, str]] = []

    def answer(path: str, headers: dict[str, str]) -> Answer:
        seen.append({name.lower(): value for name, value in headers.items()})
        return 200, {"Content-Encoding": "gzip"}, gzip.compress(result([]))

    token, password = tmp_path / "token", tmp_path / "password"
    token.write_text("abc\n")
    password.write_text("secret\n")
    with fake(answer) as address:
        accesses = [
            ServerAccess(address, bearer_token_file=str(token), headers={"X-Scope-OrgID": "team"}),
            ServerAccess(address, username="u", password_file=str(password)),
            ServerAccess(address.replace("//", "//user:pa%40ss@")),
        ]
        for access in accesses:
            Prometheus(access, timeout=10).number("up", END)
    sent = [headers["authorization"] for headers in seen]
    assert sent[0] == "Bearer abc"
    assert [base64.b64decode(text.split()[1]) for text in sent[1:]] == [b"u:secret", b"user:pa@ss"]
    assert seen[0]["x-scope-orgid"] == "team"


def test_the_address_in_messages_has_no_password() -> None:
    assert Prometheus(ServerAccess("https://u:p@host/select/0/prometheus/"), timeout=1).address == (
        "https://host/select/0/prometheus"
    )


@pytest.mark.parametrize(
    ("code", "body", "kind", "said"),
    [
        (401, b"no", Refused, "401 Unauthorized: no; give --bearer-token-file"),
        (404, b"", Refused, "has no query API at /"),
        (200, b"<html>", Refused, "does not answer as Prometheus does"),
        (400, b'{"error":"parse error"}', Refused, "parse error"),
        (503, b'{"error":"warming up"}', Unavailable, "warming up"),
        (400, OLD_REFUSAL % b"unsupported path requested", Refused, "has no query API at /"),
        (400, OLD_REFUSAL % b"no such tenant", Refused, ": no such tenant"),
        (200, b'{"status":"error","error":"nothing"}', Refused, "nothing"),
    ],
)  # fmt: skip
def test_refusals_are_said_with_the_address(code: int, body: bytes, kind: type[Exception], said: str) -> None:
    with fake(lambda path, headers: (code, {}, body)) as address:
        server = Prometheus(ServerAccess(address), timeout=10, sleep=lambda seconds: None)
        with pytest.raises(kind, match=r"127\.0\.0\.1") as caught:
            server.number("up", END)
    assert said in str(caught.value)


def test_a_server_that_nobody_runs_is_unavailable() -> None:
    server = Prometheus(ServerAccess("http://127.0.0.1:1"), timeout=5, sleep=lambda seconds: None)
    with pytest.raises(Unavailable, match="cannot be reached"):
        server.number("up", END)


def test_odd_values_and_a_far_clock_are_reported_and_the_rest_is_kept() -> None:
    values = [[TIMES.start, "5"], [TIMES.start + STEP, "NaN"], [TIMES.start + 2 * STEP, "+Inf"],
              [TIMES.start + 3 * STEP, "-1"], [TIMES.start + 4 * STEP, "1e6"]]  # fmt: skip
    with fake(lambda path, headers: (200, {}, one_container(values))) as address:
        faults = FaultLog()
        history = collected(address, faults)
    found = history.values(history.rows("memory"))[0]
    np.testing.assert_allclose(found[[0, 4]], [5, 1e6], rtol=3e-4)
    assert np.isnan(np.delete(found, [0, 4])).all()
    said = [str(fault) for fault in faults.kept]
    assert any("container a/b/c: memory: has values that are not amounts" in line for line in said)
    assert any("its clock is" in line and "behind" in line for line in said)
    # One answer serves all queries here; for those of nodes it names no node.
    assert any("names no pod or node" in line for line in said)


ODD_TIMES = [1e300, -1e300, 2**63, 0]


def test_odd_moments_are_left_out() -> None:
    values = [[at, "1"] for at in ODD_TIMES] + [[TIMES.start, "5"]]
    with fake(lambda path, headers: (200, {}, one_container(values))) as address:
        history = collected(address, FaultLog())
    found = history.values(history.rows("memory"))[0]
    assert found[0] == pytest.approx(5, rel=3e-4)
    assert np.isnan(found[1:]).all()


def test_a_series_without_its_container_is_a_fault() -> None:
    series = [{"metric": {"namespace": "a", "pod": "b"}, "values": [[TIMES.start, "5"]]}]
    faults = FaultLog()
    with (
        fake(lambda path, headers: (200, {}, result(series))) as address,
        pytest.raises(InvalidInput, match="has no series of"),
    ):
        collected(address, faults)
    assert any("names no pod or node" in str(fault) for fault in faults.kept)


@pytest.mark.parametrize("count", ["NaN", "+Inf", "-Inf", "-5"])
def test_a_count_of_series_that_is_no_amount_is_none(count: str) -> None:
    body = result([{"metric": {}, "value": [END, count]}])
    with fake(lambda path, headers: (200, {}, body)) as address:
        server = Prometheus(ServerAccess(address), timeout=10)
        assert server.number("up", END) == 0


@pytest.mark.parametrize(
    "date", ["Mon, 01 Jan 99999999999999999999 00:00:00 GMT", "Mon, 01 Jan 0001 00:00:00 +9999999", "x"]
)
def test_an_odd_date_is_no_clock(date: str) -> None:
    server = Prometheus(ServerAccess("http://h"), timeout=10)
    server._note_clock(date)
    assert server.clock_offset == 0


@pytest.mark.parametrize("code", [200, 503])
def test_an_answer_that_breaks_off_is_unavailable(code: int) -> None:
    bodies = [
        ({"Content-Encoding": "gzip"}, gzip.compress(result([]))[:-9]),
        ({"Transfer-Encoding": "chunked"}, b"5\r\nab"),
        ({"Content-Length": "1000"}, b"{"),
    ]
    for headers, body in bodies:
        with fake(lambda path, seen, given=headers, body=body: (code, given, body)) as address:
            server = Prometheus(ServerAccess(address), timeout=10, sleep=lambda seconds: None)
            with pytest.raises(Unavailable, match=r"127\.0\.0\.1"):
                server.number("up", END)


def test_credentials_are_not_sent_along_to_another_server(tmp_path: Path) -> None:
    """urllib follows redirects with all headers of the first request."""
    token = tmp_path / "token"
    token.write_text("secret")
    seen: list[str] = []

    def other(path: str, headers: dict[str, str]) -> Answer:
        seen.append(headers.get("Authorization", ""))
        return 200, {}, result([])

    with (
        fake(other) as thief,
        fake(lambda path, headers: (302, {"Location": f"{thief}{path}"}, b"")) as address,
    ):
        access = ServerAccess(address, bearer_token_file=str(token))
        with pytest.raises(Refused, match=f"redirects to another server, {thief}"):
            Prometheus(access, timeout=10).number("up", END)
    assert seen == []


def test_a_redirect_on_the_same_server_is_followed() -> None:
    def answer(path: str, headers: dict[str, str]) -> Answer:
        if path.startswith("/api"):
            return 302, {"Location": f"/prom{path}"}, b""
        return 200, {}, result([{"metric": {}, "value": [END, "3"]}])

    with fake(answer) as address:
        assert Prometheus(ServerAccess(address), timeout=10).number("up", END) == 3


def test_more_series_than_allowed_are_refused_before_they_are_read() -> None:
    body = json.dumps(
        {
            "status": "success",
            "data": {"resultType": "vector", "result": [{"metric": {}, "value": [END, "900"]}]},
        }
    ).encode()
    with (
        fake(lambda path, headers: (200, {}, body)) as address,
        pytest.raises(InvalidInput, match="900 series of container_memory"),
    ):
        collected(address, FaultLog(), budget=ReadingBudget(series=100))


def test_codes_keep_order_and_are_near() -> None:
    values = np.concatenate([[0.0], np.geomspace(1, 2.0**47, 5000)])
    codes = encode(values)
    assert (np.diff(codes.astype(int)) >= 0).all()
    np.testing.assert_allclose(decode(codes), values, rtol=2.6e-4)
    assert encode(np.array([np.nan]))[0] == MISSING
    assert np.isnan(decode(np.array([MISSING], np.uint16)))[0]


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    builder = HistoryBuilder(Times(END, 60, 7))
    for number in range(20_000):
        at = np.arange(number % 7 + 1)
        builder.add(("memory", "", f"ns{number % 3}", f"pod-{number}", "c"), at, encode(at + float(number)))
    history = builder.history({"sources": ["x"]})
    write_history(history, tmp_path / "use.arrow")
    again = read_history(tmp_path / "use.arrow")
    assert again.times == history.times
    assert again.meta == {"sources": ["x"]}
    assert again.index.equals(history.index)
    rows = np.arange(len(history))
    assert np.array_equal(again.codes(rows), history.codes(rows))
    some = np.array([19_999, 3, 8192, 8191])
    assert np.array_equal(again.codes(some), history.codes(some))


@pytest.mark.parametrize("keep", [0, 10, 400, -9])
def test_a_broken_file_is_named(keep: int, tmp_path: Path) -> None:
    builder = HistoryBuilder(Times(END, 60, 7))
    builder.row(("memory", "", "a", "b", "c"))
    write_history(builder.history({}), tmp_path / "use.arrow")
    broken = tmp_path / "broken.arrow"
    broken.write_bytes((tmp_path / "use.arrow").read_bytes()[:keep])
    with pytest.raises(InvalidInput, match=r"broken\.arrow"):
        read_history(broken)
    with pa.ipc.new_file(broken, pa.schema([("a", pa.int64())])) as writer:
        writer.write_table(pa.table({"a": [1]}))
    with pytest.raises(InvalidInput, match="is not a history"):
        read_history(broken)


def test_a_table_of_use(tmp_path: Path) -> None:
    file = tmp_path / "use.csv"
    file.write_text(
        "time,node,namespace,pod,container,memory,cpu\n"
        f"{END},,shop,a,app,1000,0.5\n{END + 20},,shop,a,app,3000,0.7\n{END - 90},,shop,a,app,2000,-1\n"
        f"{END},n1,,,,9000,2\n{END},,shop,a,,5,5\n"
    )
    faults = FaultLog()
    history = history_from_tables([str(file)], 60, faults)
    assert history.times == Times(END - 60, 60, 3)
    np.testing.assert_allclose(read(history, "shop/a", "memory"), [2000, 1000, 3000], rtol=3e-4)
    np.testing.assert_allclose(read(history, "shop/a", "cpu"), [np.nan, 5e5, 7e5], rtol=3e-4)
    assert sum(row["node"] == "n1" for row in history.index.to_pylist()) == 2
    said = [str(fault) for fault in faults.kept]
    assert any("row 5: names no container and no node" in line for line in said)
    assert any("container shop/a/app: cpu: has values that are not amounts" in line for line in said)


def test_single_values_of_a_table_that_cannot_be_read_cost_no_others(tmp_path: Path) -> None:
    file = tmp_path / "use.csv"
    stamp = datetime.fromtimestamp(END + 60, UTC).isoformat()
    file.write_text(
        "time,namespace,pod,container,memory,cpu\n"
        f"{END},shop,a,app,1000,0.5\n{stamp},shop,a,app,many,0.7\nyesterday,shop,a,app,1,1\n"
        f",shop,a,app,1,1\n{END},shop,b,app,5000,0.1\n{END + 60},shop,b,app,NaN,\n"
    )
    faults = FaultLog()
    history = history_from_tables([str(file)], 60, faults)
    np.testing.assert_allclose(read(history, "shop/a", "memory"), [1000, np.nan], rtol=3e-4)
    np.testing.assert_allclose(read(history, "shop/a", "cpu"), [5e5, 7e5], rtol=3e-4)
    np.testing.assert_allclose(read(history, "shop/b", "memory"), [5000, np.nan], rtol=3e-4)
    said = [str(fault) for fault in faults.kept]
    assert len(said) == 2
    assert said[0].endswith(
        "row 3: time: expected Unix seconds or timestamps, got 'yesterday'; rows left out for this: 2"
    )
    assert "container shop/a/app: memory: has values that are not amounts" in said[1]


def test_a_missing_history_says_which_command_writes_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no such file; `kubengine plan history` writes one"):
        read_history(tmp_path / "use.arrow")


def test_a_parquet_table_with_timestamps(tmp_path: Path) -> None:
    file = tmp_path / "use.parquet"
    stamps = pa.array([END * 10**6, (END + 60) * 10**6], pa.timestamp("us", "UTC"))
    texts = {name: ["a", "a"] for name in ("namespace", "pod", "container")}
    pq.write_table(pa.table({"time": stamps, **texts, "memory": [1, 2]}), file)
    history = history_from_tables([str(file)], 60, FaultLog())
    assert history.times == Times(END, 60, 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\n1\n", "has no column 'time'"),
        ("time\n1\n", "has neither a column 'memory' nor a column 'cpu'"),
        ("time,cpu\n1,1\n", "has no columns 'namespace', 'pod' and 'container'"),
        ("time,node,cpu\n", "has no rows"),
        ("time,node,cpu\n-5,a,1\n", "time: expected Unix seconds or timestamps, got '-5'"),
        (f"time,node,cpu\n{END},a,500m\n", "cpu: expected cores, got '500m'"),
    ],
)
def test_a_table_that_cannot_be_used_is_named(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "use.csv"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=r"use\.csv") as caught:
        history_from_tables([str(file)], 60, FaultLog())
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name a server with --prometheus, or files with --table"),
        (("--prometheus", "http://h"), "--output: name the file to write"),
        (("--prometheus", "h:9090", "-o", "x"), "expected http://HOST:PORT"),
        (("--prometheus", "http://h", "-o", "x", "--step", "90"), "--step: '90' is not a duration"),
        (("--prometheus", "http://h", "-o", "x", "--until", "soon"), "--until: expected Unix seconds"),
        (("--prometheus", "http://h", "-o", "x", "--header", "a"), "--header: expected KEY=VALUE"),
        (
            ("--prometheus", "http://h", "-o", "x", "--bearer-token-file", "/nowhere"),
            "/nowhere: cannot be read",
        ),
    ],
)
def test_the_command_names_what_is_wrong(
    arguments: tuple[str, ...], said: str, run_plan: Callable[..., Any]
) -> None:
    done = run_plan("history", *arguments)
    assert done.returncode != 0
    assert said in done.stderr.decode()


def test_errors_of_the_server_are_the_packages_own() -> None:
    assert issubclass(Refused, KubengineError)


def test_a_file_that_is_no_history_is_described(tmp_path: Path) -> None:
    """Tell a file without its end from one that never was a history."""
    builder = HistoryBuilder(TIMES)
    builder.add(("memory", "", "shop", "a", "app"), np.arange(3), encode(np.arange(3.0)))
    write_history(builder.history({}), tmp_path / "whole.arrow")
    (tmp_path / "cut.arrow").write_bytes((tmp_path / "whole.arrow").read_bytes()[:-100])
    write_snapshot(synthesize(2, 2, 1), tmp_path / "cluster.kes")
    (tmp_path / "notes").write_text("nothing" * 20)
    for name, words in {
        "cut.arrow": "begins as one, but its end is missing",
        "cluster.kes": "it is a snapshot",
        "notes": "Not an Arrow file",
        ".": "not a readable history",
    }.items():
        with pytest.raises(InvalidInput, match=words) as caught:
            read_history(tmp_path / name)
        assert caught.value.subject == str(tmp_path / name)


def test_days_must_be_a_number(run_plan: Callable[..., Any], tmp_path: Path) -> None:
    done = run_plan(
        "history", "--prometheus", "http://127.0.0.1:1", "--days", "nan", "-o", str(tmp_path / "x")
    )
    assert done.returncode == 2
    assert b"--days: expected a number, got nan" in done.stderr
