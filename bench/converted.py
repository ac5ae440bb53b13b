"""An image's second form in registries, EROFS images: what it takes to make, to keep and to pull.

    python3 -m bench.converted [--rounds N]

The sample image. Made: `mica convert`, which makes every EROFS image with its hash tree, index and digests, beside
`zstd` and `sha256sum` over the same images, and `mica convert --verify` of what a registry on loopback has. Pulled
from there, into an empty store each time: the archives, as they were compressed and in gzip, and the EROFS images.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import tempfile
import urllib.request

from bench import measure, mica, report, sample
from bench.measure import CACHE, REPOSITORY, Cost

IMAGE = "bench/converted"
EROFS = "linux(+erofs)/amd64"


def output(*words: str) -> str:
    """What `mica` prints."""
    command = [mica.binary(), *words]
    return subprocess.check_output(command, text=True, env=mica.environment())


def images() -> list[pathlib.Path]:
    """The EROFS images of the sample image's layers, each once."""
    found = json.loads(output("inspect", sample.NAME))[0]["image"]
    layers = mica.STORE / "layers" / "sha256"
    digests = {layer["diff_id"].removeprefix("sha256:") for layer in found["layers"]}
    return [layers / digest[:2] / f"{digest}.erofs" for digest in sorted(digests)]


def compress(files: list[pathlib.Path]) -> Cost:
    """What `zstd` and `sha256sum` take for the same bytes."""
    script = 'for file; do zstd -3 --single-thread -q -c "$file" | sha256sum; done'
    words = ["sh", "-c", script, "sh", *files]
    return measure.run(words, stdout=subprocess.DEVNULL)


def pull(name: str, *options: str) -> Cost:
    """Pulls into an empty store."""
    work = pathlib.Path(tempfile.mkdtemp(dir=CACHE))
    try:
        command = [mica.binary(), "pull", "-q", *options, name]
        environment = mica.environment(work / "store")
        return measure.run(command, env=environment, stdout=subprocess.DEVNULL)
    finally:
        shutil.rmtree(work)


def verify(name: str) -> Cost:
    command = [mica.binary(), "convert", "-q", "--verify", name]
    return measure.run(command, env=mica.environment(), stdout=subprocess.DEVNULL)


def blobs(host: str, reference: str, of_erofs: bool) -> int:
    """Bytes of the layers of one form in the registry, each once."""

    def document(name: str) -> dict:
        kinds = ["index", "manifest"]
        accept = ", ".join(f"application/vnd.oci.image.{kind}.v1+json" for kind in kinds)
        url = f"http://{host}/v2/{reference.partition(':')[0]}/manifests/{name}"
        request = urllib.request.Request(url, headers={"Accept": accept})
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)

    index = document(reference.partition(":")[2])
    manifest = document(index["manifests"][int(of_erofs)]["digest"])
    return sum({layer["digest"]: layer["size"] for layer in manifest["layers"]}.values())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m bench.converted")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    host = measure.machine()
    CACHE.mkdir(parents=True, exist_ok=True)
    sample.load()
    files = images()
    script = REPOSITORY / "scripts" / "registry"
    registry = subprocess.check_output([script, "start"], text=True).strip()
    try:
        names = {}
        for compression in ("zstd", "gzip"):
            names[compression] = f"{registry}/{IMAGE}:{compression}"
            form = ["--erofs", "--compression", compression]
            output("push", "-q", *form, sample.NAME, names[compression])
        makes = {
            "convert": lambda: measure.run(
                [mica.binary(), "convert", "-q", sample.NAME],
                env=mica.environment(),
                stdout=subprocess.DEVNULL,
            ),
            "zstd": lambda: compress(files),
            "verify": lambda: verify(names["zstd"]),
        }
        pulls = {
            "erofs": lambda: pull(names["zstd"], "--platform", EROFS),
            "zstd": lambda: pull(names["zstd"]),
            "gzip": lambda: pull(names["gzip"]),
        }
        made = measure.interleave(makes, arguments.rounds)
        pulled = measure.interleave(pulls, arguments.rounds)
        sizes = {
            "erofs": blobs(registry, f"{IMAGE}:zstd", of_erofs=True),
            "zstd": blobs(registry, f"{IMAGE}:zstd", of_erofs=False),
            "gzip": blobs(registry, f"{IMAGE}:gzip", of_erofs=False),
        }
    finally:
        subprocess.run([script, "stop"], check=True)
    result = {
        "rounds": arguments.rounds,
        "made": {who: measure.summary(runs) for who, runs in made.items()},
        "pulled": {who: measure.summary(runs) for who, runs in pulled.items()},
        "sizes": sizes,
    }
    measure.save("converted", host, result)
    report.write()


if __name__ == "__main__":
    main()
