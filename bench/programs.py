"""git, npm and cargo in a sandbox: in a folder of the host, and on the sandbox's own ext4 disk.

Their inputs are made once, on this machine: a repository of 50,000 files, an npm cache with what a
small web server depends on, a crate with its dependencies vendored. Nothing is fetched in a sandbox.
"""

import itertools
import json
import pathlib
import shutil
import subprocess
import sys

from bench import layers, layout, measure, mica
from bench.measure import CACHE

NAME = "bench.local/tools:latest"
PACKAGES = "git,npm,cargo"
DIRECTORY = CACHE / "programs"
ROUNDS = 3
LIMIT = 900.0  # seconds for one sandbox
DISK = ["--upper", "disk:4g", "--memory", "2g"]

# Where the work is done, and whether that is a share: else it is the sandbox's own disk.
PLACES = {"ext4": False, "mica": True}

NPM_DEPENDENCIES = {"express": "4.18.2", "lodash": "4.17.21"}
# What Debian 12's compiler takes.
CRATES = {"itoa": "1.0.6", "ryu": "1.0.13", "memchr": "2.5.0", "base64": "0.13.1"}
MAIN = """
fn main() {
    let name = base64::encode(ryu::Buffer::new().format(1.5));
    println!("{} {:?}", itoa::Buffer::new().format(7), memchr::memchr(b'M', name.as_bytes()));
}
"""

# Each prints its seconds on a line. What they need first, they do untimed.
TIMED = 'timed() { a=$(date +%s%N); "$@" >/dev/null; b=$(date +%s%N); echo $((b - a)); }; '
SCRIPTS = {
    "git status": "git config --global safe.directory '*'; git status >/dev/null; "
    + "timed git status; " * ROUNDS,
    "npm ci": "cp -a cache /root/npm; "
    + "timed npm ci --offline --ignore-scripts --no-audit --no-fund --cache /root/npm",
    "cargo build": "timed cargo build --offline --quiet",
}


def image() -> str:
    """Loads a Debian with the programs, and returns its name."""
    place = CACHE / "tools"
    if not (place / "index.json").exists():
        archive = DIRECTORY / "tools.tar"
        options = ["--quiet", "--variant=minbase", f"--include={PACKAGES}"]
        options += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man")]
        words = ["mmdebstrap", *options, layers.SUITE, archive, *layers.apt_sources()]
        subprocess.run(words, check=True)
        digest = layers.sha256(archive)
        layout.write(place, [layout.Blob(archive, digest, digest, layout.LAYER)])
        archive.unlink()
    mica.load(place, NAME)
    return NAME


def quietly(*words: str | pathlib.Path, at: pathlib.Path) -> None:
    subprocess.run(words, cwd=at, check=True, stdout=sys.stderr)


def repository(place: pathlib.Path) -> None:
    """500 directories of 100 files, committed."""
    for number in range(500):
        directory = place / f"package{number // 50}" / f"module{number}"
        directory.mkdir(parents=True)
        for file in range(100):
            (directory / f"source{file}.txt").write_text(f"{number} {file}\n")
    # Git's own collection goes on behind a commit, beside the one below.
    options = ["-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0"]
    quietly("git", "init", "--quiet", at=place)
    quietly("git", "add", ".", at=place)
    quietly("git", *options, "commit", "--quiet", "-m", "files", at=place)
    quietly("git", "gc", "--quiet", at=place)


def server(place: pathlib.Path) -> None:
    """A package.json, its lock, and a cache that has everything."""
    manifest = {"name": "bench", "private": True, "dependencies": NPM_DEPENDENCIES}
    (place / "package.json").write_text(json.dumps(manifest))
    quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    # With addresses in the lock nothing but the cache's tarballs is needed.
    quiet.append("--omit-lockfile-registry-resolved=false")
    quietly("npm", "install", *quiet, "--cache", place / "cache", at=place)
    shutil.rmtree(place / "node_modules")


def crate(place: pathlib.Path) -> None:
    """A program and the sources of what it uses."""
    lines = ["[package]", 'name = "bench"', 'version = "0.1.0"', 'edition = "2018"']
    lines += ["[dependencies]", *(f'{name} = "={version}"' for name, version in CRATES.items())]
    (place / "Cargo.toml").write_text("\n".join([*lines, "[workspace]", ""]))
    (place / "src").mkdir()
    (place / "src" / "main.rs").write_text(MAIN)
    quietly("cargo", "vendor", "--quiet", at=place)
    # The lock's format is newer than Debian's cargo, which makes its own from the vendored sources.
    (place / "Cargo.lock").unlink()
    (place / ".cargo").mkdir()
    replaced = '[source.crates-io]\nreplace-with = "vendored"\n'
    (place / ".cargo" / "config.toml").write_text(
        replaced + '[source.vendored]\ndirectory = "vendor"\n'
    )


INPUTS = {"git status": repository, "npm ci": server, "cargo build": crate}


def source(name: str) -> pathlib.Path:
    """The inputs of a program, made once."""
    place = DIRECTORY / name.replace(" ", "-")
    if not place.exists():
        part = place.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        INPUTS[name](part)
        part.rename(place)
    return place


def seconds(tools: str, name: str, is_shared: bool) -> list[float]:
    """Runs a program in a fresh sandbox, in a copy of its inputs."""
    inputs, copy = source(name), DIRECTORY / "work"
    script = f"set -e; cd /work; {TIMED}{SCRIPTS[name]}"
    words = [str(mica.binary()), "run", "--rm", "-i", "--pull", "never", *DISK]
    if name == "npm ci":
        # The cache has its entries by address.
        registry = subprocess.check_output(["npm", "config", "get", "registry"], text=True)
        words += ["--env", f"npm_config_registry={registry.strip()}"]
    shutil.rmtree(copy, ignore_errors=True)
    archive = None
    if not is_shared:
        script = f"mkdir /work; tar xf - -C /work; sync; {script}"
        archive = subprocess.Popen(["tar", "c", "-C", inputs, "."], stdout=subprocess.PIPE)
    else:
        subprocess.run(["cp", "-a", inputs, copy], check=True)
        words += ["--volume", f"{copy}:/work"]
    done = subprocess.run(
        [*words, tools, "sh", "-c", script],
        stdin=archive.stdout if archive else subprocess.DEVNULL,
        capture_output=True,
        env=mica.environment(),
        timeout=LIMIT,
        text=True,
        check=False,
    )
    if archive:
        archive.communicate()
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stdout[-1000:]}{done.stderr[-2000:]}")
    return [int(line) / 1e9 for line in done.stdout.split()]


def run() -> dict:
    """Name of a program → where it works → its seconds."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    tools = image()
    results = {}
    for name in SCRIPTS:
        rounds = 1 if name == "git status" else ROUNDS
        contenders = {
            place: lambda is_shared=is_shared, name=name: seconds(tools, name, is_shared)
            for place, is_shared in PLACES.items()
        }
        found = measure.interleave(contenders, rounds)
        results[name] = {place: [*itertools.chain(*times)] for place, times in found.items()}
    return results
