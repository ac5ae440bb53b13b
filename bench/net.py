"""What a sandbox's network costs its host, a gigabyte down and a gigabyte up.

    python3 -m bench.net [--before CHECKOUT]

`bench/net_timer` is a network in a process of its own; its guest is a network namespace with
this machine's kernel, as in the crate's tests. Callgrind counts the instructions of that
process, so that the machine's noise is not in them; how long its thread was on a processor has
the copies in system calls as well. `--before` is a checkout of an older version, to be measured
beside this one; without it the last one stays in the table.
"""

import argparse
import pathlib
import re
import shutil
import socket
import statistics
import subprocess
import sys
import threading

from bench import measure, report
from bench.measure import REPOSITORY

GUEST = REPOSITORY / "crates" / "net" / "tests" / "net" / "guest" / "guest.py"
TIMER = pathlib.Path("bench", "net_timer")
MIB = 1 << 20
GIB = 1 << 30
# Callgrind is slow; a frame costs the same in a short transfer.
COUNTED = 128 * MIB
# Short, so that both versions have the same of the machine's load.
TIMED = 256 * MIB
ROUNDS = 25
CLIENT = """
import socket, sys
way, port, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
stream = socket.create_connection(("10.213.9.1", port))
stream.sendall(way.encode() + size.to_bytes(8, "big"))
piece = bytearray(1 << 20)
while size:
    size -= stream.recv_into(piece) if way == "d" else len(piece)
    if way == "u": stream.sendall(piece)
stream.recv(1) if way == "u" else stream.sendall(b"k")
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m bench.net")
    parser.add_argument("--before", type=pathlib.Path, help="a checkout of an older version")
    arguments = parser.parse_args()
    host = measure.machine()
    port = serve()
    timers = {"after": built(REPOSITORY)}
    if arguments.before:
        shutil.copytree(REPOSITORY / TIMER, arguments.before / TIMER, dirs_exist_ok=True)
        timers["before"] = built(arguments.before)
    result = costs(timers, port)
    if not arguments.before and (last := measure.load("net")):
        result["before"] = last.get("before")
    measure.save("net", host, result)
    report.write()


def built(tree: pathlib.Path) -> pathlib.Path:
    """The timer with that version's network."""
    target = tree.resolve() / "target" / "bench"
    command = ["cargo", "build", "--release", "--target-dir", target]
    if "pub header:" in (tree / "crates" / "net" / "src" / "lib.rs").read_text():
        command += ["--features", "header"]
    subprocess.run(command, cwd=tree / TIMER, check=True)
    return target / "release" / "net-timer"


def serve() -> int:
    """The port of a server that sends, or takes, as much as it is asked to."""
    listener = socket.create_server(("127.0.0.1", 0))

    def talk(stream: socket.socket) -> None:
        way, size = stream.recv(1), int.from_bytes(stream.recv(8), "big")
        piece = bytearray(MIB)
        while size:
            size -= stream.recv_into(piece) if way == b"u" else len(piece)
            if way == b"d":
                stream.sendall(piece)
        if way == b"u":
            stream.sendall(b"k")
        stream.recv(1)
        stream.close()

    def accept() -> None:
        while True:
            stream, _ = listener.accept()
            threading.Thread(target=talk, args=(stream,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener.getsockname()[1]


def costs(timers: dict[str, pathlib.Path], port: int) -> dict:
    """Instructions and nanoseconds a GiB, each way, of each version."""
    found = {version: {} for version in timers}
    for way in "du":
        times = {version: [] for version in timers}
        for _ in range(ROUNDS):
            for version, timer in timers.items():
                times[version].append(int(transfer(timer, way, port, TIMED).split()[-1]))
        for version, timer in timers.items():
            # Without what a process takes to start and end.
            counted = count(timer, way, port, COUNTED) - count(timer, way, port, 0)
            found[version][way] = {
                "instructions": counted * GIB // COUNTED,
                "nanoseconds": round(statistics.median(times[version])) * GIB // TIMED,
            }
    return found


def transfer(timer: pathlib.Path, way: str, port: int, size: int, *counter: str) -> str:
    """What a network says of `size` bytes that went `d`own or `u`p."""
    client = [sys.executable, "-c", CLIENT, way, str(port), str(size)]
    return output([*counter, timer, GUEST, *client])


def count(timer: pathlib.Path, way: str, port: int, size: int) -> int:
    """Instructions of such a transfer."""
    counter = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    text = transfer(timer, way, port, size, *counter)
    return int(re.search(r"Collected : (\d+)", text)[1])


def output(command: list[str | pathlib.Path]) -> str:
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.run(command, check=True, text=True, **both).stdout


if __name__ == "__main__":
    main()
