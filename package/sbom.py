"""Write a bill of materials beside each artifact: `sbom.py WHEEL_OR_DEB...`, CycloneDX 1.5 as JSON.

The bill of a wheel lists its requirements, with and without the planner, in the versions of the lock files,
and GCC's OpenMP library, which a wheel for glibc contains. The bill of a Debian package lists its contents.
The same artifact gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
LOCKS = ROOT / "requirements"
NAMESPACE = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")
BUILD_ONLY = "excluded"
"""CycloneDX's word for what was needed to build an artifact and is not needed to run it."""
THREADS = {
    "type": "library",
    "bom-ref": "pkg:generic/libgomp",
    "name": "libgomp",
    "description": "GCC's thread library, part of the wheel",
    "scope": "required",
    "purl": "pkg:generic/libgomp",
    "licenses": [{"expression": "GPL-3.0-or-later WITH GCC-exception-3.1"}],
}


def write(artifact: Path) -> Path:
    """Write the bill beside an artifact and return its path."""
    planner = artifact.name.startswith("kubengine-plan_")
    debian = artifact.suffix == ".deb"
    components = list(_components(debian=debian, planner=planner))
    if not planner and "-musllinux_" not in artifact.name:
        components.append(THREADS)
    version = artifact.name.replace("_", "-").split("-")[2 if planner else 1]
    name = "kubengine-plan" if planner else "kubengine"
    own = {
        "type": "application",
        "bom-ref": "kubengine",
        "name": name,
        "version": version,
        "purl": f"pkg:{'deb/debian' if debian else 'pypi'}/{name}@{version}",
        "licenses": [{"license": {"id": "Apache-2.0"}}],
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(artifact.read_bytes()).hexdigest()}],
    }
    moment = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "315532800")), UTC)
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(NAMESPACE, own['hashes'][0]['content'])}",
        "version": 1,
        "metadata": {"timestamp": moment.isoformat().replace("+00:00", "Z"), "component": own},
        "components": components,
        "dependencies": _dependencies(components),
    }
    target = artifact.with_name(f"{artifact.name}.cdx.json")
    target.write_text(json.dumps(bill, indent=2) + "\n")
    return target


def _components(*, debian: bool, planner: bool) -> Iterator[dict[str, Any]]:
    node, plan, build = (_locked(name) for name in ("node", "plan", "build"))
    for name, (version, hashes) in plan.items():
        only_planner = name not in node
        if debian and only_planner != planner:
            continue
        only_build = name in build and name not in _required()
        if debian and only_build:
            continue
        scope = BUILD_ONLY if only_build else "optional" if only_planner and not debian else "required"
        yield {
            "type": "library",
            "bom-ref": f"pkg:pypi/{name}@{version}",
            "name": name,
            "version": version,
            "scope": scope,
            "purl": f"pkg:pypi/{name}@{version}",
            **_licenses(name),
            "properties": [{"name": "pypi:sha256", "value": each} for each in hashes],
        }


def _locked(name: str) -> dict[str, tuple[str, list[str]]]:
    """Return version and SHA-256 of the files by name, from one lock file."""
    text = (LOCKS / f"{name}.txt").read_text()
    entries = re.findall(r"^([\w.-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]+)+)", text, re.MULTILINE)
    return {entry: (version, re.findall(r"sha256:(\w+)", hashes)) for entry, version, hashes in entries}


def _required() -> set[str]:
    """Return the names of all distributions that Kubengine needs to run, spelled as in lock files."""
    found: set[str] = set()
    waiting = ["kubengine"]
    while waiting:
        for other in _requires(waiting.pop(), extras=True):
            if other not in found:
                found.add(other)
                waiting.append(other)
    return found


def _requires(name: str, *, extras: bool = False) -> list[str]:
    """Return the names that one distribution requires; with `extras`, also those of the planner."""
    try:
        lines = Distribution.from_name(name).requires or []
    except PackageNotFoundError:
        return []
    wanted = [line for line in lines if ";" not in line or (extras and re.search(r"extra == .plan.", line))]
    return [_normal(re.split(r"[\s\[<>=~!;(]", line, maxsplit=1)[0]) for line in wanted]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _licenses(name: str) -> dict[str, Any]:
    """Return the SPDX expression in the metadata of an installed distribution, or nothing."""
    try:
        said = Distribution.from_name(name).metadata.get("License-Expression")
    except PackageNotFoundError:
        said = None
    return {"licenses": [{"expression": said}]} if said else {}


def _dependencies(components: list[dict[str, Any]]) -> list[dict[str, Any]]:
    known = {component["name"]: component["bom-ref"] for component in components}
    graph = [("kubengine", "kubengine"), *((name, reference) for name, reference in known.items())]
    found = []
    for name, reference in graph:
        others = {known[other] for other in _requires(name, extras=name == "kubengine") if other in known}
        if name == "kubengine" and "libgomp" in known:
            others.add(known["libgomp"])
        found.append({"ref": reference, "dependsOn": sorted(others)})
    return found


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(write(Path(argument)))
