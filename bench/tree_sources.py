"""Git repositories to clone: made-up files, a directory, or a program's sources from Debian.

Sources are what Debian's source package has from upstream, in the release that this machine's apt
lists name, committed as they are. All are made once and cached.
"""

import hashlib
import os
import pathlib
import random
import shutil
import subprocess
from dataclasses import dataclass

from bench import measure
from bench.layers import SUITE

FILES = 4000
DIRECTORY = measure.CACHE / "trees"


@dataclass(frozen=True)
class Project:
    """A program, and how it is built from a fresh clone, in its directory, by sh."""

    package: str  # Debian's source package
    configure: str
    build: str  # its main programs
    made: str  # a file that is there afterwards


PROJECTS = {
    "redis": Project("redis", "true", "make MALLOC=libc", "src/redis-server"),
    "postgres": Project(
        "postgresql-15",
        "./configure --without-readline --without-zlib",
        # Its directories make the same links side by side otherwise.
        "make -j1 -C src/backend generated-headers && make -C src/backend",
        "src/backend/postgres",
    ),
    "nginx": Project("nginx", "./configure", "make", "objs/nginx"),
    "httpd": Project("apache2", "./configure --with-pcre=/usr/bin/pcre2-config", "make", "httpd"),
    "ruby": Project("ruby3.1", "./configure --disable-install-doc", "make ruby", "ruby"),
    "python": Project("python3.11", "./configure", "make python", "python"),
}


def of_project(name: str) -> pathlib.Path:
    """The repository of a project."""
    project = PROJECTS[name]
    archive = original(project.package)
    repository = DIRECTORY / archive.name.partition(".orig")[0]
    if is_complete(repository):
        return repository
    shutil.rmtree(repository, ignore_errors=True)
    repository.mkdir(parents=True)
    subprocess.run(["tar", "-xf", archive, "-C", repository, "--strip-components=1"], check=True)
    return commit(repository)


def of_directory(sources: pathlib.Path | None) -> pathlib.Path:
    """A repository of a directory, or of made-up files."""
    name = hashlib.sha256(str(sources).encode()).hexdigest()[:12]
    repository = DIRECTORY / name
    if is_complete(repository):
        return repository
    shutil.rmtree(repository, ignore_errors=True)
    if sources:
        shutil.copytree(sources, repository, symlinks=True, ignore=shutil.ignore_patterns(".git"))
    else:
        make_up(repository)
    return commit(repository)


def is_complete(repository: pathlib.Path) -> bool:
    """Whether it was packed, which is done last."""
    return (repository / ".git" / "packed-refs").exists()


def commit(repository: pathlib.Path) -> pathlib.Path:
    git = ["git", "-C", repository, "-c", "user.name=bench", "-c", "user.email=bench@localhost"]
    # As they are, also what a program's own rules say is not to be kept.
    git += ["-c", "gc.auto=0", "-c", "core.autocrlf=false", "-c", "core.safecrlf=false"]
    for words in (["init", "-q"], ["add", "-Af"], ["commit", "-qm", "sources"], ["gc", "-q"]):
        subprocess.run([*git, *words], check=True)
    return repository


def original(package: str) -> pathlib.Path:
    """Upstream's archive in a source package, fetched if it is not there."""
    directory = DIRECTORY / "archives" / package
    if found := [path for path in directory.glob("*.orig.tar.*") if path.suffix != ".asc"]:
        return found[0]
    shutil.rmtree(directory, ignore_errors=True)
    # Beside it until it is complete: apt checks it at the end.
    part = directory.with_name(f"{package}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    environment = {**os.environ, "APT_CONFIG": str(apt_configuration())}
    for words in (
        ["apt-get", "update", "-q"],
        ["apt-get", "source", "-q", "--download-only", "--tar-only", package],
    ):
        subprocess.run(words, cwd=part, env=environment, check=True, stdout=subprocess.DEVNULL)
    part.rename(directory)
    return original(package)


def apt_configuration() -> pathlib.Path:
    """A configuration for sources, with the mirrors of this machine's own, which stays as it is."""
    directory = DIRECTORY / "apt"
    for name in ("lists/partial", "cache/archives/partial"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    fields = "$(REPO_URI) $(RELEASE) $(COMPONENT)"
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", fields, "Created-By: Packages"],
        check=True,
        capture_output=True,
        text=True,
    )
    lines = (line.split() for line in listed.stdout.splitlines())
    # Without updates: their sources are often gone from a mirror before its list says so.
    sources = {f"deb-src {uri} {SUITE} {part}" for uri, suite, part in lines if suite == SUITE}
    if not sources:
        raise SystemExit(f"no list of apt's names {SUITE}, whose sources are needed")
    (directory / "sources.list").write_text("\n".join(sorted(sources)) + "\n")
    configuration = directory / "apt.conf"
    configuration.write_text(
        f'Dir::Etc::sourcelist "{directory}/sources.list";\n'
        'Dir::Etc::sourceparts "/dev/null";\n'
        f'Dir::State::lists "{directory}/lists";\n'
        f'Dir::Cache "{directory}/cache";\n'
        # It fetches to a directory that may be its user's alone.
        'APT::Sandbox::User "";\n'
    )
    return configuration


def make_up(directory: pathlib.Path) -> None:
    """Files of the sizes that sources have, which compress about as well."""
    chance = random.Random(11)
    words = [f"{chance.getrandbits(40):x}" for _ in range(5000)]
    for number in range(FILES):
        path = directory / f"d{number % 200 // 20}" / f"e{number % 200}" / f"file{number}.c"
        path.parent.mkdir(parents=True, exist_ok=True)
        size = int(chance.lognormvariate(8.8, 1.2))
        lines = " ".join(chance.choices(words, k=size // 10 + 1))
        path.write_text(lines[:size] + "\n")
