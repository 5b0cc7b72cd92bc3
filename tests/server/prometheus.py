"""Debian's Prometheus on a free port, with targets and rules that a test gives it."""

from __future__ import annotations

import asyncio
import json
import shutil
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.waiting import PATIENCE, eventually

INTERVAL = "500ms"

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="needs prometheus and promtool on the PATH (Debian's package prometheus)",
)


@dataclass(frozen=True)
class Target:
    """Describe a page of 127.0.0.1:`number` that Prometheus reads as a cluster's monitoring does."""

    number: int
    page: str
    tls: Mapping[str, str]
    token: str = ""

    def job(self) -> dict[str, Any]:
        return {
            "job_name": self.page,
            "scheme": "https",
            "metrics_path": self.page,
            "tls_config": dict(self.tls),
            **({"authorization": {"credentials": self.token}} if self.token else {}),
            "static_configs": [{"targets": [f"127.0.0.1:{self.number}"]}],
            "relabel_configs": [
                {"source_labels": ["__metrics_path__"], "target_label": "metrics_path"},
                {"target_label": "job", "replacement": "kubelet"},
            ],
        }


@dataclass
class Prometheus:
    """Represent a running Prometheus server on port `number`, whose log is a file."""

    number: int
    log: Path

    @classmethod
    @asynccontextmanager
    async def started(
        cls, directory: Path, targets: Iterable[Target], rules: Iterable[Path]
    ) -> AsyncIterator[Prometheus]:
        settings = {"scrape_interval": INTERVAL, "scrape_timeout": INTERVAL, "evaluation_interval": INTERVAL}
        config = directory / "prometheus.json"
        config.write_text(
            json.dumps(
                {
                    "global": settings,
                    "scrape_configs": [target.job() for target in targets],
                    "rule_files": [str(path) for path in rules],
                }
            )
        )
        own = cls(free_port(), directory / "prometheus.log")
        with own.log.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                "prometheus", f"--config.file={config}", f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{own.number}", stdout=log, stderr=log,
            )  # fmt: skip
        try:
            yield own
        finally:
            process.kill()
            await process.wait()

    async def ask(self, path: str, **query: str) -> Any:
        """Return the data of an answer of the Prometheus API, or None while it does not answer yet."""
        url = f"http://127.0.0.1:{self.number}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        return await asyncio.to_thread(self._ask, url)

    def _ask(self, url: str) -> Any:
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise AssertionError(f"{url}: {error.read().decode()}") from error
        except OSError:
            pass
        return None

    async def all_have_results(self, expressions: Iterable[str]) -> None:
        """Wait until each rule has a result that is a number; a division of zero by zero has none."""
        missing = set(expressions)

        async def none_missing() -> bool:
            for expression in sorted(missing):
                found = await self.ask("query", query=expression) or {"result": []}
                if any(sample["value"][1] != "NaN" for sample in found["result"]):
                    missing.discard(expression)
            return not missing

        try:
            await eventually(none_missing, PATIENCE / 2, every=0.2)
        except AssertionError:
            log = self.log.read_text()[-2000:]
            pytest.fail("no results:\n" + "\n".join(sorted(missing)) + "\n" + log, pytrace=False)


async def promtool(*arguments: str, stdin: bytes = b"") -> tuple[int, str]:
    """Run promtool with `stdin` as its input; return its exit code and its output, errors included."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        "promtool", *arguments, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.STDOUT
    )
    async with asyncio.timeout(PATIENCE):
        output, _ = await process.communicate(stdin)
    assert process.returncode is not None
    return process.returncode, output.decode()
