"""Run every harness for a bounded time: `python fuzz/run.py --seconds 60 [NAME...]`."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuzz import readers

HERE = Path(__file__).resolve().parent
HEADERS = HERE.parent / "engine" / "_fast" / "probing"
SANITIZERS = "address,undefined"


def frame(type: int, flags: int, payload: bytes = b"", stream: int = 1) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((type, flags)) + stream.to_bytes(4, "big") + payload


SEEDS: dict[str, list[bytes]] = {
    "http_response": [
        b"\7HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\nbody",
        b"\1HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nT: v\r\n\r\n",
        b"\2HTTP/1.1 100 C\r\n\r\nHTTP/1.0 302 Found\nLocation: /x\n folded\nTransfer-Encoding: gzip\n\nrest",
        b"\3HTTP/1.1 204\r\nContent-Length: 03\r\nContent-Length: 3\r\n\r\n" + b"x" * 11000,
    ],
    "http_location": [
        b"a/b?c\nhttp://h:80/../x/./y?q#f",
        b"\n//u@h/..",
        b"p\n?q",
        b"\nhttps://[::1]:443/",
        b"a/\n../../b/.",
    ],
    "hpack": [
        b"\x04\x88\x5f\x8b\x1d\x75\xd0\x62\x0d\x26\x3d\x4c\x4d\x65\x64",
        b"\x02\x20\x88\x40\x0bgrpc-status\x0212\xbe\x3f\xe1\x1f",
        b"\x01\x40\x89\x9a\xca\xc8\xb2\x12\x34\xda\x8f\x01\x30\xbe\x10\x0cgrpc-message\x03abc",
    ],
    "http2_client": [
        b"\5"
        + frame(4, 0, b"\0\3\0\0\0\x64\0\4\0\1\0\0", 0)
        + frame(6, 0, bytes(8), 0)
        + frame(1, 4, b"\x88\x5f\x8b\x1d\x75\xd0\x62\x0d\x26\x3d\x4c\x4d\x65\x64")
        + frame(0, 8, b"\1\0\0\0\0\2\x08\1z")
        + frame(0, 1, b"late", 5)
        + frame(1, 5, b"\x40\x89\x9a\xca\xc8\xb2\x12\x34\xda\x8f\x01\x30\xbe", 3),
        b"\2"
        + frame(4, 1, b"", 0)
        + frame(4, 0, b"", 0)
        + frame(8, 0, b"\0\0\xff\xff", 0)
        + frame(8, 0, b"\0\0\xff\xff", 7)
        + frame(7, 0, b"\0\0\0\3\0\0\0\0bye", 0)
        + frame(3, 0, b"\0\0\0\7", 7),
        b"\7" + frame(4, 0, b"", 0) + frame(1, 0, b"\x20\x88\x40\x0bgrpc-") + frame(9, 4, b"status\x0212"),
    ],
    "cgroup_files": [
        b"\x22usage_usec 12\nuser_usec 3\n\0\x04max 100000\n\0\x06100\n\0\x0a9223372036854775807\n",
        b"\x1a253:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n"
        b"\0\x1csome avg10=0.12 avg60=1.00 avg300=99.99 total=7\n",
        b"\x218:0 Read 1\n8:0 Write 2\n8:0 Total 3\n\0\x19cache 1\ntotal_rss -2\n\0\x07-1\n",
        b"\x02Max open files            1024                 4096                 files\n",
    ],
    "written_text": [
        b"\x0f\x03"
        + (2**63).to_bytes(8, "little")
        + (2**63 - 1).to_bytes(8, "little") * 15
        + bytes(range(60)),
        b"\x02\x12" + bytes(128) + b"\x02\x02\x00\x01\x01\x05",
    ],
    "probe_loop": [
        b"\1\377HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody",
        b"\x09\3HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n",
        b"\x20\1HTTP/1.1 100 Continue\r\n\r\n",
        b"\x12\377" + frame(4, 0, b"", 0) + frame(1, 4, b"\x88") + frame(0, 8, b"\0\0\0\0\2\x08\1"),
        b"\2\5"
        + frame(4, 0, b"\0\3\0\0\0\x64", 0)
        + frame(1, 4, b"\x88\x5f\x8b\x1d\x75\xd0\x62\x0d\x26\x3d\x4c\x4d\x65\x64")
        + frame(0, 8, b"\1\0\0\0\0\2\x08\1z")
        + frame(1, 5, b"\x40\x89\x9a\xca\xc8\xb2\x12\x34\xda\x8f\x01\x30\xbe"),
        b"\3\5"
        + frame(4, 0, b"", 0)
        + frame(1, 4, b"\x88")
        + frame(0, 8, b"\1\0\0\0\0\x12\x0a\3out\x12\4error\x25abcd\x18\7z")
        + frame(1, 5, b"\x40\x0bgrpc-status\x010"),
        b"\4\377" + frame(4, 0, b"", 0) + frame(1, 5, b"\x88"),
    ],
    "grpc_answer": [
        b"\5"
        + frame(4, 0, b"\0\3\0\0\0\x64", 0)
        + frame(6, 0, bytes(8), 0)
        + frame(1, 4, b"\x88\x5f\x8b\x1d\x75\xd0\x62\x0d\x26\x3d\x4c\x4d\x65\x64")
        + frame(0, 8, b"\1\0\0\0\0\2\x08\1z")
        + frame(1, 5, b"\x40\x89\x9a\xca\xc8\xb2\x12\x34\xda\x8f\x01\x30\xbe"),
        b"\1" + frame(4, 0, b"", 0) + frame(1, 0, b"\x20\x88\x40\x0bgrpc-") + frame(9, 5, b"status\x0212"),
        b"\2"
        + frame(4, 0, b"", 0)
        + frame(7, 0, bytes(8), 0)
        + frame(3, 0, bytes(4))
        + b"HTTP/1.1 400\r\n\r\n",
        b"\x85"
        + frame(4, 0, b"", 0)
        + frame(1, 4, b"\x88")
        + frame(0, 8, b"\1\0\0\0\0\x12\x0a\3out\x12\4error\x25abcd\x18\7z")
        + frame(1, 5, b"\x40\x0bgrpc-status\x010"),
        b"\x81"
        + frame(4, 0, b"", 0)
        + frame(1, 5, b"\x88\x40\x0bgrpc-status\x012\x40\x0cgrpc-message\x03a%2"),
    ],
}


Command = Callable[[Path, int, int], list[str]]


def c_harness(name: str) -> Command:
    """Return how to start a C harness: libFuzzer's program if clang has its library, else a plain one."""

    def command(directory: Path, seconds: int, seed: int) -> list[str]:
        program, corpus = directory / name, directory / "corpus"
        source = [str(HERE / f"fuzz_{name}.c"), "-I", str(HEADERS), "-g", "-O1", "-pthread"]
        source += ["-o", str(program)]
        strict = "-fno-sanitize-recover=all"
        coverage = ["clang", f"-fsanitize=fuzzer,{SANITIZERS}", strict, *source]
        if (
            shutil.which("clang")
            and subprocess.run(coverage, capture_output=True, check=False).returncode == 0
        ):
            return [
                str(program),
                f"-max_total_time={seconds}",
                f"-seed={seed}",
                "-max_len=16384",
                str(corpus),
            ]
        plain = [*source, str(HERE / "standalone.c")]
        subprocess.run(["cc", f"-fsanitize={SANITIZERS}", strict, *plain], check=True)
        return [str(program), str(seconds), str(seed), *map(str, sorted(corpus.iterdir()))]

    return command


def python_reader(name: str) -> Command:
    def command(directory: Path, seconds: int, seed: int) -> list[str]:
        return [sys.executable, str(HERE / "read.py"), name, str(seconds), str(seed), str(directory)]

    return command


HARNESSES = {name: (c_harness(name), seeds) for name, seeds in SEEDS.items()}
HARNESSES |= {name: (python_reader(name), readers.SEEDS[name]) for name in readers.READERS}


def run(name: str, seconds: int, seed: int) -> str:
    """Run one harness and return a description of its failure, or an empty string."""
    make, seeds = HARNESSES[name]
    with (
        tempfile.TemporaryDirectory(prefix=f"fuzz-{name}-") as work,
        tempfile.TemporaryDirectory(prefix=f"fuzz-{name}-", dir=_fast_directory()) as scratch,
    ):
        directory = Path(work)
        corpus = directory / "corpus"
        corpus.mkdir()
        for number, beginning in enumerate(seeds):
            (corpus / f"seed-{number}").write_bytes(beginning)
        for kept in (HERE / "corpus" / name).glob("*"):
            shutil.copy(kept, corpus)
        environment = os.environ | {"TMPDIR": scratch}
        done = subprocess.run(
            make(directory, seconds, seed), cwd=directory, env=environment, capture_output=True, check=False
        )
        crashes = list(directory.glob("crash*"))
        for crash in crashes:
            shutil.copy(crash, HERE / f"crash-{name}")
        output = (done.stdout + done.stderr).decode(errors="replace")
        last = output.strip().splitlines()[-1:] or [""]
        print(f"{name}: {'failed' if done.returncode else last[0]}", flush=True)
        if done.returncode == 0:
            return ""
        kept = f"\nits input, or the generator's state, is in {HERE / f'crash-{name}'}" if crashes else ""
        return f"{name} failed:\n{output[-4000:]}{kept}"


def _fast_directory() -> str | None:
    """Return where readers write a file for each input: in memory, unless TMPDIR is set."""
    return "/dev/shm" if "TMPDIR" not in os.environ and Path("/dev/shm").is_dir() else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for each harness")
    parser.add_argument("--seed", type=int, default=0, help="the same seed tries the same inputs; 0 is any")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(sorted(HARNESSES))}; all")
    arguments = parser.parse_args()
    names = arguments.names or list(HARNESSES)
    if unknown := set(names) - set(HARNESSES):
        parser.error(f"no such harness: {', '.join(sorted(unknown))}")
    seed = arguments.seed or random.randrange(1, 1 << 31)
    print(f"seed {seed}", flush=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        failures = [text for text in pool.map(lambda name: run(name, arguments.seconds, seed), names) if text]
    for text in failures:
        print(text, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
