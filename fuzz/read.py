"""Feed one reader: `python fuzz/read.py NAME SECONDS SEED DIRECTORY`; a failing input is left in DIRECTORY.

With atheris installed the run is guided by coverage; without, the seeds are mutated at random.
"""

from __future__ import annotations

import random
import sys
import time
import traceback
from pathlib import Path

MOST = 8192
TOKENS = [
    *(token.encode() for token in ("{}", "[", "]", "null", "true", "1e400", "-1", "99999999999999999999")),
    *(
        token.encode()
        for token in ('"', ":", ",", "\\u0000", "\\ud800", "&a", "*a", "!!", "---\\n", "\\t", "..")
    ),
    *(bytes([value]) * count for value in (0, 0x7F, 0x80, 0xFF) for count in (1, 4)),
]


def mutated(seeds: list[bytes], chance: random.Random) -> bytes:
    """Return one of the seeds after one to eight random changes."""
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.randint(1, 8)):
        at = chance.randint(0, len(data))
        match chance.randrange(6):
            case 0 if at < len(data):
                data[at] = chance.randrange(256)
            case 1 if at < len(data):
                data[at] ^= 1 << chance.randrange(8)
            case 2:
                del data[at : at + chance.choice((1, 1, 4, 64))]
            case 3:
                data[at:at] = chance.choice(TOKENS)
            case 4:
                other = chance.choice(seeds)
                begin = chance.randint(0, len(other))
                data[at:at] = other[begin : begin + chance.randint(0, 64)]
            case 5:
                piece = bytes(data[at : at + chance.choice((1, 8, 32))])
                data[at:at] = piece * chance.choice((1, 2, 100))
    return bytes(data[:MOST])


def main() -> int:
    name, seconds, seed, directory = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    try:
        import atheris
    except ImportError:
        atheris = None
    if atheris is not None:
        with atheris.instrument_imports(include=["engine"]):
            from fuzz import readers

            read = readers.READERS[name]()
        corpus = directory / "corpus"
        arguments = [sys.argv[0], f"-max_total_time={seconds}", f"-seed={seed}", f"-max_len={MOST}"]
        atheris.Setup(
            [*arguments, "-rss_limit_mb=4096", f"-artifact_prefix={directory}/crash-", str(corpus)], read
        )
        atheris.Fuzz()
        return 0
    from fuzz import readers

    read = readers.READERS[name]()
    chance, end, runs = random.Random(seed), time.monotonic() + seconds, 0
    seeds = [path.read_bytes() for path in sorted((directory / "corpus").iterdir())]
    while time.monotonic() < end:
        data = mutated(seeds, chance)
        try:
            read(data)
        except BaseException:
            (directory / "crash-input").write_bytes(data)
            traceback.print_exc()
            return 1
        runs += 1
    print(f"{runs} runs from seed {seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
