"""An image from a machine beside this one: `mica store serve`, and a registry that keeps its blobs.

    python3 -m bench.replica [--rounds N]

The sample image is pulled over loopback, into an empty store each time: from `mica store serve` over a store that has
it, and from Debian's docker-registry that has it as it was compressed, and not compressed. `curl` receives the largest
layer and drops it, which is what the servers take alone. The processor time of a server is that of its process.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from bench import layout, measure, mica, report, sample
from bench.measure import CACHE, REPOSITORY, Cost

IMAGE = "bench/sample"
TICKS = os.sysconf("SC_CLK_TCK")


class Server:
    """A registry on loopback, and the name of the image there."""

    def __init__(self, process: int, host: str, repository: str):
        self.process = process
        self.host = host
        self.repository = repository

    def seconds(self) -> float:
        """Processor time so far."""
        fields = pathlib.Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def pull(self) -> tuple[Cost, float]:
        """Pulls the image into an empty store. Also returns the server's processor time."""
        work = pathlib.Path(tempfile.mkdtemp(dir=CACHE))
        try:
            command = [mica.binary(), "pull", f"{self.host}/{self.repository}:latest"]
            return self.during(command, env=mica.environment(work / "store"))
        finally:
            shutil.rmtree(work)

    def receive(self, digest: str) -> tuple[Cost, float]:
        url = f"http://{self.host}/v2/{self.repository}/blobs/{digest}"
        return self.during(["curl", "-fsS", "-o", "/dev/null", url])

    def during(self, command: list, **options) -> tuple[Cost, float]:
        before = self.seconds()
        cost = measure.run(command, stderr=subprocess.DEVNULL, **options)
        return cost, self.seconds() - before


@contextmanager
def replica() -> Iterator[Server]:
    sample.load()
    command = [mica.binary(), "store", "serve", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        command, env=mica.environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        host = process.stdout.readline().strip().removeprefix("http://")
        try:
            yield Server(process.pid, host, "bench.local/sample")
        finally:
            process.terminate()


@contextmanager
def registries() -> Iterator[tuple[Server, Server]]:
    """Debian's registry, with the image as it was compressed and as it is served by ours."""
    script = REPOSITORY / "scripts" / "registry"

    def registry(*words: str) -> str:
        return subprocess.check_output([script, *words], text=True).strip()

    host = registry("start")
    state = CACHE.parent / "registry"
    try:
        registry("push", str(sample.directory()), f"{IMAGE}:latest")
        to = f"{host}/{IMAGE}-plain:latest"
        command = [mica.binary(), "push", "--quiet", "--compression", "none", sample.NAME, to]
        subprocess.run(command, check=True, env=mica.environment(), stdout=subprocess.DEVNULL)
        process = int((state / "pid").read_text())
        yield Server(process, host, IMAGE), Server(process, host, f"{IMAGE}-plain")
    finally:
        registry("stop")


def summary(runs: list[tuple[Cost, float]]) -> dict:
    servers = sorted(seconds for _, seconds in runs)
    return {**measure.summary([cost for cost, _ in runs]), "server": servers[len(servers) // 2]}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m bench.replica")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    host = measure.machine()
    CACHE.mkdir(parents=True, exist_ok=True)
    blobs = layout.blobs(sample.directory())
    largest = max(blobs, key=lambda blob: blob.path.stat().st_size)
    with replica() as ours, registries() as (compressed, plain):
        pulls = {"mica store serve": ours.pull, "registry": compressed.pull, "plain": plain.pull}
        archive, blob = f"sha256:{largest.diff_id}", f"sha256:{largest.digest}"
        receives = {
            "mica store serve": partial(ours.receive, archive),
            "registry": partial(compressed.receive, blob),
            "plain": partial(plain.receive, archive),
        }
        pulled = measure.interleave(pulls, arguments.rounds)
        received = measure.interleave(receives, arguments.rounds)
    result = {
        "rounds": arguments.rounds,
        "docker_registry": measure.package("docker-registry"),
        "pull": {who: summary(runs) for who, runs in pulled.items()},
        "curl": {who: summary(runs) for who, runs in received.items()},
    }
    measure.save("replica", host, result)
    report.write()


if __name__ == "__main__":
    main()
