"""The page of the node: one document that receives changes, and costs nothing while nobody reads it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.api.errors import Unavailable
from engine.api.meta import ObjectMeta
from engine.api.pod import Container, Pod, PodSpec
from engine.api.status import ContainerStatus, PodStatus
from engine.cli.agent.client import AgentClient
from engine.server.page.rows import differences, pod_rows
from engine.testing.device_plugin import SampleDevicePlugin
from tests.ports import free_port
from tests.server.browser import PROGRAM, Browser
from tests.server.served import Served, View
from tests.waiting import eventually, wait_until

PAGE = Path(__file__).parents[2] / "engine/server/page"
PHONE, DESK = (390, 844), (1400, 1000)


def pod(name: str, phase: str = "Running") -> Pod:
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default", uid=f"uid-{name}"),
        spec=PodSpec(containers=[Container(name="c", image="busybox")]),
        status=PodStatus(phase=phase, qos_class="BestEffort"),
    )


def status(name: str, restarts: int = 0) -> ContainerStatus:
    return ContainerStatus(name=name, ready=True, restart_count=restarts, image="x", image_id="x")


def test_sidecars_are_counted_as_kubectl_counts_them() -> None:
    one = pod("web")
    one.spec.init_containers = [
        Container(name="prepare", image="x"),
        Container(name="tailer", image="x", restart_policy="Always"),
    ]
    one.status.container_statuses = [status("c")]
    one.status.init_container_statuses = [
        status("prepare", restarts=1),
        status("tailer"),
    ]
    (row,) = pod_rows([one]).values()
    assert (row["ready"], row["of"], row["restarts"]) == (2, 2, 1)
    one.status.init_container_statuses[1].ready = False
    (row,) = pod_rows([one]).values()
    assert (row["ready"], row["of"]) == (1, 2)


class Devices:
    """Count the calls of `describe`, and fail while `fails` is set."""

    def __init__(self) -> None:
        self.asked = 0
        self.fails = False

    def describe(self) -> dict[str, Any]:
        self.asked += 1
        if self.fails:
            raise Unavailable("the plugin is away")
        return {"resources": []}


async def test_it_is_one_document_that_a_browser_runs_and_nothing_else(serve: Any) -> None:
    served: Served = await serve(View())
    answer = await served.get("/")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    text = answer.body.decode()
    assert re.findall(r"(?:src|href)=[\"'](?!#|data:)", text) == []
    assert "@import" not in text
    assert "url(" not in text
    for kind, tag in (("style", "style"), ("script", "script")):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        allowed = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{allowed}'" in answer.headers["content-security-policy"]
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_names_are_never_interpreted_as_html() -> None:
    script = (PAGE / "page.js").read_text()
    assert (
        re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", script)
        == []
    )


@asynccontextmanager
async def reading(served: Served) -> AsyncIterator[AsyncIterator[tuple[str, Any]]]:
    """Read the stream of `/live`, and yield an iterator over its events as (name, data)."""
    reader, writer = await served.connect()
    writer.write(b"GET /live HTTP/1.1\r\nHost: node\r\n\r\n")
    assert b"text/event-stream" in await reader.readuntil(b"\r\n\r\n")

    async def events() -> AsyncIterator[tuple[str, Any]]:
        text = ""
        while True:
            size = int(await reader.readline(), 16)
            text += (await reader.readexactly(size + 2))[:-2].decode()
            *whole, text = text.split("\n\n")
            for block in whole:
                found = re.search(r"^event: (\w+)\ndata: (.*)$", block, re.MULTILINE)
                if found:
                    yield found[1], json.loads(found[2])

    try:
        yield events()
    finally:
        writer.close()


async def next_of(events: AsyncIterator[tuple[str, Any]], wanted: str) -> Any:
    async with asyncio.timeout(240):
        while True:
            name, data = await anext(events)
            if name == wanted:
                return data


async def test_a_reader_gets_everything_first_and_then_the_changes(serve: Any) -> None:
    view = View(known=[pod("web"), pod("db")])
    async with reading(await serve(view)) as events:
        assert await anext(events) == ("begin", {})
        event = await next_of(events, "pods")
        assert {key: row["name"] for key, row in event["rows"].items()} == {
            "uid-web": "default/web",
            "uid-db": "default/db",
        }
        view.known = [pod("web", "Failed"), pod("db")]
        event = await next_of(events, "pods")
        assert list(event["rows"]) == ["uid-web"]
        assert event["rows"]["uid-web"]["phase"] == "Failed"
        view.known = [pod("db")]
        assert await next_of(events, "pods") == {"rows": {}, "gone": ["uid-web"]}


async def test_parts_are_read_once_for_all_readers_and_not_without_one(serve: Any) -> None:
    devices = Devices()
    view = View(components={"devices": devices})
    served: Served = await serve(view)
    async with reading(served) as first, reading(served) as second:
        await next_of(first, "devices")
        await next_of(second, "devices")
        assert [task.get_name() for task in asyncio.all_tasks()].count("page: devices") == 1
        watch = served.server._routes._page_watch
        tasks = list(watch._tasks)
        assert tasks
    await eventually(lambda: all(task.done() for task in tasks))
    assert watch._tasks == []
    assert not any(task.get_name().startswith("page: ") for task in asyncio.all_tasks())
    assert devices.asked > 0


async def test_a_failing_part_names_its_reason_and_the_others_continue(serve: Any) -> None:
    devices = Devices()
    devices.fails = True
    async with reading(await serve(View(components={"devices": devices}, known=[pod("web")]))) as events:
        assert await next_of(events, "failure") == {"part": "devices", "error": "the plugin is away"}
        devices.fails = False
        assert await next_of(events, "failure") == {"part": "devices", "error": ""}


def test_applying_the_differences_gives_the_other_set() -> None:
    before, now = {"a": b"1", "b": b"2"}, {"a": b"1", "c": b'{"x":"}"}'}
    assert json.loads(b"".join(differences(before, now))) == {"rows": {"c": {"x": "}"}}, "gone": ["b"]}
    assert list(differences(now, dict(now))) == []


MANIFEST = """
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      image: example.com/{name}:1
      imagePullPolicy: IfNotPresent
      resources:
        limits: {{cpu: 100m, memory: 16Mi{device}}}
      livenessProbe: {{periodSeconds: 1, exec: {{command: ["true"]}}}}
"""


def answers(url: str) -> bool:
    with contextlib.suppress(Unavailable):
        return bool(AgentClient(url).get("/healthz"))
    return False


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[str]:
    """Run an agent of one pod with a probe, which requests a device; yield its address."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    manifests = tmp_path / "pods"
    manifests.mkdir()
    (manifests / "web.yaml").write_text(MANIFEST.format(name="web", device=""))
    config = tmp_path / "config.yaml"
    config.write_text(
        f"kind: KubeletConfiguration\nreadOnlyPort: {port}\nhealthzPort: 0\nresolvConf: ''\n"
        f"podLogsDir: {tmp_path}/logs\ncgroupsPerQOS: false\nenforceNodeAllocatable: []\n"
    )
    command = [sys.executable, "-m", "engine.cli", "run", "--config", str(config), "--runtime", "hollow"]
    places = ["--root-dir", str(tmp_path / "r"), "--manifests", str(manifests), "--node-name", "n1"]
    with subprocess.Popen([*command, *places], stderr=subprocess.PIPE, text=True) as running:
        try:
            wait_until(lambda: answers(url) or running.poll() is not None)
            yield f"{url}/"
        finally:
            running.send_signal(signal.SIGTERM)
            _, errors = running.communicate(timeout=240)
    assert running.returncode == 0, errors
    assert "Traceback" not in errors


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="needs chromium on the PATH (Debian: chromium)")
async def test_the_page_in_a_browser(agent: str, tmp_path: Path) -> None:
    directory = tmp_path / "r/device-plugins"
    await eventually((directory / "kubelet.sock").exists)
    plugin = SampleDevicePlugin("example.com/gpu", directory / "gpu.sock", count=8, numa=2)
    await plugin.start()
    try:
        await plugin.register(directory)
        await asyncio.to_thread(look, agent, tmp_path)
    finally:
        await plugin.stop()


def look(url: str, directory: Path) -> None:
    with Browser(directory / "profile") as browser:
        browser.size(*DESK)
        browser.prefer("light")
        browser.open(url)
        browser.until("document.querySelector('#pods tbody')?.innerText.includes('default/web-n1')")
        assert browser.value("document.querySelectorAll('tr.new').length") == 0, (
            "rows of the first load are not new"
        )
        browser.until("document.title === 'n1 · Kubengine'")
        browser.until("document.getElementById('state').className === 'live'")
        browser.until("document.querySelector('#devices li') !== null")
        it_follows_what_changes(browser, directory / "pods")
        keys_do_what_the_page_says(browser)
        it_is_light_and_dark(browser)
        it_fits(browser)
        assert browser.complaints == []


def it_follows_what_changes(browser: Browser, manifests: Path) -> None:
    (manifests / ".new").write_text(MANIFEST.format(name="trainer", device=", example.com/gpu: 3"))
    (manifests / ".new").rename(manifests / "trainer.yaml")
    browser.until("document.querySelector('#pods tbody').innerText.includes('trainer')")
    browser.until("document.querySelectorAll('#devices .held').length === 3")
    assert browser.value("document.querySelectorAll('#devices .numa > div').length") == 2
    for part, words in {
        "eviction": "memory.available",
        "probes": "default/web-n1/main",
        "images": "in use by a container",
        "decisions": "admitted",
        "cgroups": "keeps no cgroups",
        "cpus": "policy none",
    }.items():
        browser.until(f"document.getElementById('{part}').innerText.includes('{words}')")
    (manifests / "trainer.yaml").unlink()
    browser.until("!document.querySelector('#pods tbody').innerText.includes('trainer')")
    browser.until("document.querySelectorAll('#devices .held').length === 0")


def keys_do_what_the_page_says(browser: Browser) -> None:
    focused = "document.activeElement.closest('section')?.id"
    browser.press("6")
    assert browser.value(focused) == "probes"
    browser.press("1")
    assert browser.value(focused) == "pods"
    browser.press("Enter")
    assert "example.com/web:1" in browser.value("document.querySelector('#pods tr.more').innerText")
    browser.press("Enter")
    assert browser.value("document.querySelector('#pods tr.more')") is None
    browser.press("/")
    assert browser.value("document.activeElement.id") == "find"
    browser.do("Input.insertText", text="nobody")
    browser.until("document.querySelectorAll('#pods tbody tr').length === 0")
    browser.press("Escape")
    browser.until("document.querySelectorAll('#pods tbody tr').length === 1")
    browser.press("?")
    assert browser.value("document.getElementById('keys').open")
    browser.value("document.getElementById('keys').close()")
    browser.press("p")
    assert browser.value("document.getElementById('state').innerText") == "paused"
    browser.press("p")
    browser.until("document.getElementById('state').className === 'live'")


def it_is_light_and_dark(browser: Browser) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    light = browser.value(paper)
    browser.prefer("dark")
    dark = browser.value(paper)
    assert light != dark
    browser.press("t")
    assert browser.value(paper) == light
    browser.press("t")
    browser.prefer("light")
    assert browser.value(paper) == dark
    browser.press("t")
    assert browser.value(paper) == light


def it_fits(browser: Browser) -> None:
    """Nothing is wider than the screen."""
    for name, (width, height) in {"desk": DESK, "tablet": (900, 1000), "phone": PHONE}.items():
        browser.size(width, height, phone=name == "phone")
        browser.until(f"innerWidth === {width}")
        assert browser.value("document.documentElement.scrollWidth") <= width
