"""Layers on their way: one large layer from a registry that limits each connection.

    python3 -m bench.travel [--size GB] [--rounds N] [--quick]

A server on loopback sends each connection so many bytes a second and no more. What eight of its connections carry
together is what eight `curl` of a range each take, to nowhere. `mica pull` fetches, verifies, converts and publishes the
layer in an empty store; containerd unpacks it with its EROFS differ, with ranges in parallel as well.
"""

import argparse
import hashlib
import http.server
import itertools
import json
import os
import pathlib
import re
import shlex
import shutil
import socketserver
import subprocess
import tarfile
import tempfile
import threading
import time
from functools import partial

from bench import containerd, layout, measure, mica, report
from bench.measure import CACHE, Cost

CONNECTIONS = 8
NAME = "bench/travel"
# Bytes a second of a connection: one that the conversion can keep up with, and one that it can't.
RATES = (10_000_000, 100_000_000)


class Limited(http.server.BaseHTTPRequestHandler):
    """A registry of one layout, with ranges, that limits each connection."""

    protocol_version = "HTTP/1.1"
    place: pathlib.Path
    rate: int

    def log_message(self, *_) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(has_body=False)

    def do_GET(self) -> None:
        self.answer(has_body=True)

    def answer(self, *, has_body: bool) -> None:
        if self.path.rstrip("/") == "/v2":
            return self.head(200, 0, {})
        name = self.path.split("?")[0].rsplit("/", 1)[-1].removeprefix("sha256:")
        if not re.fullmatch("[0-9a-f]{64}", name):
            name = self.manifest
        path = self.place / "blobs" / "sha256" / name
        if not path.exists():
            return self.head(404, 0, {})
        total = path.stat().st_size
        headers = {"Docker-Content-Digest": f"sha256:{name}", "Accept-Ranges": "bytes"}
        if name == self.manifest:
            headers["Content-Type"] = layout.MANIFEST
        first, last, status = 0, total - 1, 200
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted:
            first, last, status = int(wanted[1]), min(int(wanted[2] or last), last), 206
            headers["Content-Range"] = f"bytes {first}-{last}/{total}"
        self.head(status, last + 1 - first, headers)
        if has_body:
            self.send(path, first, last + 1)

    def head(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()

    def send(self, path: pathlib.Path, first: int, end: int) -> None:
        """Sends bytes of a file at the connection's rate, its earlier requests included."""
        self.wfile.flush()
        piece = max(self.rate // 100, 64 << 10)
        with path.open("rb") as file:
            while first < end:
                self.due = max(getattr(self, "due", 0), time.monotonic() - 0.02)
                time.sleep(max(0, self.due - time.monotonic()))
                sent = os.sendfile(
                    self.connection.fileno(), file.fileno(), first, min(piece, end - first)
                )
                first += sent
                self.due += sent / self.rate


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True

    def handle_error(self, *_) -> None:
        """Clients hang up."""


def serve(place: pathlib.Path, rate: int) -> Server:
    manifest = json.loads((place / "index.json").read_text())["manifests"][0]["digest"]
    values = {"place": place, "rate": rate, "manifest": manifest.removeprefix("sha256:")}
    server = Server(("127.0.0.1", 0), type("Handler", (Limited,), values))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def layer(size: int) -> layout.Blob:
    """A layer of `size` bytes, of files that don't compress; so it is not compressed."""
    path = CACHE / f"travel-{size}.tar"
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with (
            tarfile.open(path.with_suffix(".new"), "w") as archive,
            open("/dev/urandom", "rb") as noise,
        ):
            file = 64 << 20
            for number in range(size // file):
                entry = tarfile.TarInfo(f"file-{number}")
                entry.size = file
                archive.addfile(entry, noise)
        path.with_suffix(".new").rename(path)
    with path.open("rb") as blob:
        digest = hashlib.file_digest(blob, "sha256").hexdigest()
    return layout.Blob(path, digest, digest, layout.LAYER)


def curl(connections: int, host: str, blob: layout.Blob, _: pathlib.Path) -> Cost:
    """Receives the layer on so many connections, and drops it."""
    size = blob.path.stat().st_size
    url = f"http://{host}/v2/{NAME}/blobs/sha256:{blob.digest}"
    bounds = [size * number // connections for number in range(connections + 1)]
    ranges = [f"{first}-{end - 1}" for first, end in itertools.pairwise(bounds)]
    each = [f"curl -sS -o /dev/null -r {span} {shlex.quote(url)} &" for span in ranges]
    return measure.run(["sh", "-c", " ".join([*each, "wait"])])


def pull(connections: int, host: str, _: layout.Blob, work: pathlib.Path) -> Cost:
    settings = work / "config.toml"
    settings.write_text(f"[transfer]\nconnections = {connections}\n")
    environment = {**mica.environment(work / "store"), "MICABOX_CONFIG": str(settings)}
    command = [mica.binary(), "pull", f"{host}/{NAME}:latest"]
    return measure.run(command, env=environment, stderr=subprocess.DEVNULL)


def load(_: str, blob: layout.Blob, work: pathlib.Path) -> Cost:
    """Imports the layer from a file: what a pull can't do without."""
    source = work / "layout"
    layout.write(source, [blob])
    command = [mica.binary(), "load", source, "--name", "bench:latest"]
    return measure.run(command, env=mica.environment(work / "store"), stderr=subprocess.DEVNULL)


def by_containerd(host: str, _: layout.Blob, work: pathlib.Path) -> Cost:
    return containerd.pull(f"{host}/{NAME}:latest", "erofs", work)


CONTENDERS = {
    "curl, 8 connections": partial(curl, CONNECTIONS),
    "curl, one connection": partial(curl, 1),
    "mica pull": partial(pull, CONNECTIONS),
    "mica pull, one connection": partial(pull, 1),
    "mica load": load,
    "containerd, EROFS": by_containerd,
}


def in_scratch(contender, host: str, blob: layout.Blob) -> Cost:
    work = pathlib.Path(tempfile.mkdtemp(dir=CACHE))
    try:
        return contender(host, blob, work)
    finally:
        shutil.rmtree(work)


def ranges(size: int, rounds: int, contenders: dict) -> dict:
    """What each contender took of one layer, at each rate of a connection."""
    blob = layer(size)
    place = CACHE / "travel"
    layout.write(place, [blob])
    rates = {}
    for rate in RATES:
        server = serve(place, rate)
        host = f"127.0.0.1:{server.server_address[1]}"
        runs = measure.interleave(
            {who: partial(in_scratch, run, host, blob) for who, run in contenders.items()}, rounds
        )
        server.shutdown()
        rates[str(rate)] = {who: measure.summary(costs) for who, costs in runs.items()}
    return {"bytes": blob.path.stat().st_size, "rates": rates}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m bench.travel")
    parser.add_argument("--size", type=float, default=4, help="of the layer, GB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round of 1 GB")
    arguments = parser.parse_args()
    size = 1 if arguments.quick else arguments.size
    host = measure.machine()
    result = ranges(int(size * 1e9), 1 if arguments.quick else arguments.rounds, CONTENDERS)
    measure.save("travel", host, {"ranges": result}, is_partial=arguments.quick)
    report.write()


if __name__ == "__main__":
    main()
