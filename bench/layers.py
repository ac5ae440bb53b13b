"""The inputs: real trees as gzip'd layers, made once and cached.

`debian`: a Debian root with a compiler, git and numpy: 640 MiB in 20,000 entries.
`modules`: a node_modules directory as web applications have it: 50,000 small files.
"""

import hashlib
import json
import pathlib
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass

from bench.measure import CACHE

SUITE = "bookworm"
PACKAGES = "python3,g++,git,perl,cmake,python3-numpy,openssl,curl,vim-tiny"
NPM_DEPENDENCIES = {"next": "14.2.3", "react-scripts": "5.0.1", "typescript": "4.9.5"}


@dataclass
class Layer:
    """A layer blob and what is in it."""

    name: str
    blob: pathlib.Path  # gzip'd tar
    blob_digest: str  # hex SHA-256 of `blob`
    diff_id: str  # hex SHA-256 of the tar
    tar_bytes: int
    entries: int

    def facts(self) -> dict:
        return {
            "blob_bytes": self.blob.stat().st_size,
            "tar_bytes": self.tar_bytes,
            "entries": self.entries,
            "blob_digest": f"sha256:{self.blob_digest}",
        }


DIRECTORY = CACHE / "layers"


def layer(name: str) -> Layer:
    """The layer `name`, made if the cache lacks it."""
    facts = DIRECTORY / f"{name}.json"
    if not facts.exists():
        print(f"making the layer {name} (once)", file=sys.stderr)
        # In a process of its own: a benchmark's memory is the floor of what it measures.
        subprocess.run([sys.executable, "-m", "bench.layers", name], check=True)
    return Layer(name, DIRECTORY / f"{name}.tar.gz", **json.loads(facts.read_text()))


def make(name: str) -> None:
    """Makes a layer. Its facts appear last: a killed run starts over."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    archive = DIRECTORY / f"{name}.tar"
    blob = DIRECTORY / f"{name}.tar.gz"
    MAKERS[name](archive)
    with blob.open("wb") as out:
        subprocess.run(["gzip", "-6nc", archive], stdout=out, check=True)
    facts = {
        "blob_digest": sha256(blob),
        "diff_id": sha256(archive),
        "tar_bytes": archive.stat().st_size,
        "entries": count_entries(archive),
    }
    archive.unlink()
    (DIRECTORY / f"{name}.json").write_text(json.dumps(facts))


def debian(archive: pathlib.Path) -> None:
    """A root made by mmdebstrap, from the mirrors that this machine's apt uses."""
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}", SUITE]
    subprocess.run([*command, archive, *apt_sources()], check=True)


def apt_sources() -> list[pathlib.Path]:
    """This machine's own lists of `SUITE`; none lets mmdebstrap choose Debian's mirror."""
    lists = pathlib.Path("/etc/apt")
    candidates = [*lists.glob("sources.list"), *lists.glob("sources.list.d/*.sources")]
    return [path for path in candidates if f"{SUITE}-updates" in path.read_text()]


def modules(archive: pathlib.Path) -> None:
    """What `npm install` of a few large frameworks leaves."""
    project = archive.with_suffix(".project")
    shutil.rmtree(project, ignore_errors=True)
    project.mkdir()
    manifest = {"name": "bench", "private": True, "dependencies": NPM_DEPENDENCIES}
    (project / "package.json").write_text(json.dumps(manifest))
    quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    subprocess.run(["npm", "install", *quiet], cwd=project, check=True, stdout=sys.stderr)
    plain = ["--sort=name", "--format=pax", "--owner=0", "--group=0", "--numeric-owner"]
    tree = ["-C", project, "--transform=s,^,srv/app/,", "node_modules"]
    subprocess.run(["tar", *plain, "-cf", archive, *tree], check=True)
    shutil.rmtree(project)


def modules_4x(archive: pathlib.Path) -> None:
    """The same tree four times: what memory does when a layer grows."""
    source = layer("modules").blob
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as out:
        for copy in range(4):
            with tarfile.open(source, "r|gz") as members:
                for member in members:
                    member.name = f"copy{copy}/{member.name}"
                    member.pax_headers = {}
                    if member.islnk():
                        member.linkname = f"copy{copy}/{member.linkname}"
                    out.addfile(member, members.extractfile(member) if member.isreg() else None)


MAKERS = {"debian": debian, "modules": modules, "modules-4x": modules_4x}


def sha256(path: pathlib.Path) -> str:
    """Hex SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def count_entries(archive: pathlib.Path) -> int:
    with tarfile.open(archive) as members:
        return sum(1 for _ in members)


if __name__ == "__main__":
    make(sys.argv[1])
