"""Build and run every harness for a bounded time: `python fuzz/run.py --seconds 60`."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
HEADERS = HERE.parent / "engine" / "_fast" / "probing"
SANITIZERS = "address,undefined"


def frame(type: int, flags: int, payload: bytes = b"", stream: int = 1) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((type, flags)) + stream.to_bytes(4, "big") + payload


SEEDS = {
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


def build(name: str, directory: Path) -> tuple[Path, bool]:
    """The program, and whether it is libFuzzer's."""
    program = directory / name
    source = [str(HERE / f"fuzz_{name}.c"), "-I", str(HEADERS), "-g", "-O1", "-o", str(program)]
    if shutil.which("clang"):
        command = ["clang", f"-fsanitize=fuzzer,{SANITIZERS}", "-fno-sanitize-recover=all", *source]
        subprocess.run(command, check=True)
        return program, True
    command = [
        "cc",
        f"-fsanitize={SANITIZERS}",
        "-fno-sanitize-recover=all",
        *source,
        str(HERE / "standalone.c"),
    ]
    subprocess.run(command, check=True)
    return program, False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="in all, shared by the harnesses")
    seconds = max(1, parser.parse_args().seconds // len(SEEDS))
    for name, seeds in SEEDS.items():
        with tempfile.TemporaryDirectory(prefix=f"fuzz-{name}-") as work:
            directory = Path(work)
            program, coverage = build(name, directory)
            corpus = directory / "corpus"
            corpus.mkdir()
            for number, seed in enumerate(seeds):
                (corpus / str(number)).write_bytes(seed)
            arguments = (
                [f"-max_total_time={seconds}", "-max_len=16384", str(corpus)]
                if coverage
                else [str(seconds), *map(str, sorted(corpus.iterdir()))]
            )
            print(f"{name}: {seconds} s", flush=True)  # noqa: T201
            if subprocess.run([program, *arguments], cwd=directory, check=False).returncode != 0:
                kept = HERE / f"crash-{name}"
                for crash in directory.glob("crash*"):
                    shutil.copy(crash, kept)
                print(f"{name} failed; its input, or the generator's state, is in {kept}", file=sys.stderr)  # noqa: T201
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
