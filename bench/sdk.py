"""What the SDKs take: a command's round trip, looks for a file and sandboxes a second, copies, a gigabyte in and out.

    python3 -m bench.sdk [--rounds N] [--quick] [--backends host,kvm]

Each client is a process of its own that is connected to one sandbox, and they take turns: Python's SDK,
TypeScript's, E2B's Python client at a `mica serve --e2b`, microsandbox's package, and `mica exec`. On this machine's own
kernel; what needs KVM (fork, microsandbox) on our monitor, in an emulated machine if there is no other. A peer that can't
run is left out, with a line that says why. Needs root.
"""

import argparse
import contextlib
import json
import os
import pathlib
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from bench import inside, measure, mica, microsandbox, report
from bench.measure import REPOSITORY
from bench.sandboxes import IMAGE, Home, adopt_orphans, share

CLIENTS = REPOSITORY / "bench" / "sdk_clients"
PYTHON = REPOSITORY / "sdk" / "python"
TYPESCRIPT = REPOSITORY / "sdk" / "typescript"
A_ROUND = 50  # commands
LOOKS = 500  # for a file, a round
COPIES = 8
MIB = 128  # of a machine's memory
PATIENCE = 1200  # seconds for an answer
# A container's memory needs a control group, which not every machine hands down.
LIMITS = {"kvm": ["-m", f"{MIB}m"], "host": []}


class Client:
    """A process that answers a line of JSON with a line of JSON."""

    def __init__(self, words: list, environment: dict[str, str]):
        self.process = subprocess.Popen(
            [*map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def ask(self, **request):
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], PATIENCE)[0]:
            self.process.kill()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.process.args} ended at {request}")
        return json.loads(answer)

    def end(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(30)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m bench.sdk")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="3 rounds, 64 MiB")
    parser.add_argument("--backends", default="host,kvm")
    parser.add_argument("--only", choices=["kvm"], help=argparse.SUPPRESS)
    parser.add_argument("--files", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    rounds = 3 if arguments.quick else arguments.rounds
    mib = 64 if arguments.quick else 1024
    if arguments.only:
        print(json.dumps(measured(arguments.files, "kvm", rounds, 0)))
        return
    if os.geteuid():
        sys.exit("bench.sdk: needs root, which --backend host does")
    host = measure.machine()
    backends = {}
    with tempfile.TemporaryDirectory() as scratch:
        files = inside.inputs(pathlib.Path(scratch))
        server = mica.binary().with_name("mica-server")
        subprocess.run(["strip", "-o", files / "now" / server.name, server], check=True)
        if "host" in arguments.backends:
            backends["host"] = measured(files, "host", rounds, mib)
        if "kvm" in arguments.backends:
            shutil.copytree(PYTHON / "micabox", files / "sdk" / "micabox")
            shutil.copytree(CLIENTS, files / "clients")
            if packages := e2b_packages(files):
                shutil.copytree(packages, files / "e2b")
            if package := microsandbox.package():
                shutil.copytree(package, files / "microsandbox")
            backends["kvm"] = inside.result("bench.sdk", files, "--rounds", "3")
    measure.save_backends("sdk", host, backends, is_partial=arguments.quick)
    report.write()


def measured(files: pathlib.Path, backend: str, rounds: int, mib: int) -> dict:
    """All of one backend; without the gigabyte if `mib` is 0."""
    adopt_orphans()
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(Home(files, "now", backend))
        name = "measured"
        home.start(name, "--net", "none", *LIMITS[backend])
        python = stack.enter_context(connected(python_client(files, home, name)))
        clients = {"Python": lambda: python.ask(do="rounds", count=A_ROUND)}
        if node := node_program():
            words = [node, CLIENTS / "with_micabox.mjs", TYPESCRIPT / "dist" / "index.js", name]
            environment = {**home.environment, "MICABOX_MICA": str(home.program)}
            typescript = stack.enter_context(connected(Client(words, environment)))
            clients["TypeScript"] = lambda: typescript.ask(do="rounds", count=A_ROUND)
        lives = {"Python": python}
        lookers = {"Python": python}
        if node:
            lookers["TypeScript"] = typescript
        for who, begin in (("E2B's client", e2b_client), ("microsandbox", microsandbox_client)):
            if peer := begun(stack, who, lambda begin=begin: begin(stack, files, home)):
                lives[who] = peer
                clients[who] = lambda peer=peer: peer.ask(do="rounds", count=A_ROUND)
                if who == "E2B's client":
                    lookers[who] = peer
        clients["mica exec"] = lambda: [
            timed(home.command("exec", name, "true"), home.environment) for _ in range(A_ROUND)
        ]
        runs = measure.interleave({who: quiet(ask) for who, ask in clients.items()}, rounds)
        result: dict = {"rounds": rounds, "commands": A_ROUND, "copies": COPIES}
        result["round trip"] = {
            who: spread([took for one in of for took in one.times]) for who, of in runs.items()
        }
        count = 10 if backend == "kvm" else 80
        looks = {
            who: quiet(lambda peer=peer: peer.ask(do="looks", count=LOOKS))
            for who, peer in lookers.items()
        }
        result["looks"] = {
            who: spread([took for one in of for took in one.times])
            for who, of in measure.interleave(looks, rounds).items()
        }
        result["lives"] = {
            who: {str(threads): rate(who, client, count, threads) for threads in (1, 8)}
            for who, client in lives.items()
        }
        if backend == "kvm":
            forks = [python.ask(do="fork", count=COPIES) for _ in range(rounds)]
            result["fork"] = {"median": statistics.median(forks), "runs": forks}
        if mib:
            result |= {"mib": mib, "bytes": transfers(python, mib, max(3, rounds // 4))}
    return result


def rate(who: str, client: Client, count: int, threads: int) -> float | None:
    """Sandboxes a second, so many at once; None if a peer fails at that."""
    try:
        return count / client.ask(do="lives", count=count, threads=threads)
    except RuntimeError as error:
        if who == "Python":
            raise
        print(f"bench.sdk: {who} fails with {threads} at once: {error}", file=sys.stderr)
        return None


class Times:
    """Seconds of a round's commands, shown as their median."""

    def __init__(self, times: list[float]):
        self.times = times

    def __str__(self) -> str:
        return f"{statistics.median(self.times) * 1e3:.2f} ms"


def quiet(ask):
    return lambda: Times(ask())


def spread(times: list[float]) -> dict[str, float]:
    return {"p50": statistics.median(times), "p99": share(times, 0.99), "count": len(times)}


def transfers(python: Client, mib: int, rounds: int) -> dict:
    """Seconds of a file's way into a sandbox's memory and out of it, and of cp(1) on a tmpfs."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        local, back = pathlib.Path(memory) / "file", pathlib.Path(memory) / "back"
        piece = os.urandom(1 << 20)
        with local.open("wb") as file:
            for _ in range(mib):
                file.write(piece)

        def copy() -> float:
            seconds = timed(["cp", local, back], dict(os.environ))
            back.unlink()
            return seconds

        def out() -> float:
            seconds = python.ask(do="read", path="/tmp/file", local=str(back))
            assert back.stat().st_size == mib << 20
            back.unlink()
            return seconds

        contenders = {
            "cp": copy,
            "files.write": lambda: python.ask(do="write", path="/tmp/file", local=str(local)),
            "files.read": out,
        }
        # Reading needs what was written.
        contenders["files.write"]()
        runs = measure.interleave(contenders, rounds)
    return {who: {"median": statistics.median(of), "runs": of} for who, of in runs.items()}


def programs(files: pathlib.Path) -> pathlib.Path:
    """Where the clients are: packed for a machine of their own, or here."""
    packed = files / "clients"
    return packed if packed.exists() else CLIENTS


def python_client(files: pathlib.Path, home: Home, name: str) -> Client:
    packed = files / "sdk"
    environment = {
        **home.environment,
        "MICABOX_MICA": str(home.program),
        "PYTHONPATH": str(packed if packed.exists() else PYTHON),
    }
    words = [sys.executable, programs(files) / "with_micabox.py", IMAGE, home.backend, name]
    return Client(words, environment)


def begun(stack: contextlib.ExitStack, who: str, begin) -> Client | None:
    """A peer's client, once it has run a command; None where it can't."""
    client = None
    try:
        client = begin()
        client.ask(do="rounds", count=1)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        print(f"bench.sdk: without {who}: {error}", file=sys.stderr)
        if client:
            client.process.kill()
            client.process.wait()
        return None
    stack.enter_context(connected(client))
    return client


def e2b_packages(files: pathlib.Path) -> pathlib.Path | None:
    """The directory of E2B's Python packages, fetched as for the tests; None where they can't be had."""
    packed = files / "e2b"
    if packed.exists():
        return packed
    fetch = [REPOSITORY / "scripts" / "e2b" / "packages"]
    done = subprocess.run(fetch, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return None
    return next(pathlib.Path(done.stdout.strip()).glob("venv/lib/python*/site-packages"))


def e2b_client(stack: contextlib.ExitStack, files: pathlib.Path, home: Home) -> Client:
    packages = e2b_packages(files)
    if not packages:
        raise RuntimeError("its packages can't be fetched")
    memory = [f"--with=memory={MIB}m"] if home.backend == "kvm" else []
    flags = ["--listen=127.0.0.1:0", f"--with=backend={home.backend}", "--with=pull=never"]
    server = subprocess.Popen(
        home.command("serve", "--e2b", *flags, *memory),
        stdout=subprocess.PIPE,
        env=home.environment,
        text=True,
    )
    stack.callback(server.wait)
    stack.callback(server.terminate)
    assert server.stdout
    said = [server.stdout.readline().removeprefix("export ").strip() for _ in range(3)]
    if not all(said):
        raise RuntimeError("mica serve --e2b does not begin")
    variables = dict(line.split("=", 1) for line in said)
    environment = {**os.environ, **variables, "PYTHONPATH": str(packages)}
    return Client([sys.executable, programs(files) / "with_e2b.py", IMAGE], environment)


def microsandbox_client(stack: contextlib.ExitStack, files: pathlib.Path, home: Home) -> Client:
    if home.backend != "kvm":
        raise RuntimeError("it needs a KVM, which the other backend is measured with")
    package = files / "microsandbox"
    if not package.exists():
        raise RuntimeError("its package can't be fetched")
    state = stack.enter_context(tempfile.TemporaryDirectory())
    environment = {**os.environ, "HOME": state, "PYTHONPATH": str(package)}
    load = [package / microsandbox.BUNDLED / "bin" / "msb", "load", "--input", files / "box.tar"]
    subprocess.run(load, check=True, env=environment, stdout=subprocess.DEVNULL)
    words = [sys.executable, programs(files) / "with_microsandbox.py", IMAGE, MIB]
    return Client(words, environment)


def node_program() -> pathlib.Path | None:
    """Node, where the tests have it and the SDK is built."""
    if not (TYPESCRIPT / "dist" / "index.js").exists():
        print("bench.sdk: without TypeScript: scripts/test-typescript builds it", file=sys.stderr)
        return None
    tool = [REPOSITORY / "scripts" / "tool", "npm"]
    npm = subprocess.run(tool, check=True, capture_output=True, text=True).stdout.strip()
    return pathlib.Path(npm).with_name("node")


@contextlib.contextmanager
def connected(client: Client):
    try:
        yield client
    finally:
        client.end()


def timed(command: list[str | pathlib.Path], environment: dict[str, str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, env=environment, stdin=subprocess.DEVNULL)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
