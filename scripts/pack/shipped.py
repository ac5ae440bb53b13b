"""What packages are made of: files by their place, and archives of them that are the same each time."""

import gzip
import io
import os
import pathlib
import re
import subprocess
import tarfile

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
GUEST = ["vmlinux", "initrd.cpio"]

Files = dict[str, bytes]


def names() -> list[str]:
    """The programs."""
    return subprocess.check_output([REPOSITORY / "scripts/static", "--names"], text=True).split()


def time() -> int:
    """The time of all files, in seconds since 1970: that of the commit, as scripts/release sets it."""
    return int(os.environ.get("SOURCE_DATE_EPOCH", "1735689600"))


def version() -> str:
    """The version of all that is shipped."""
    text = (REPOSITORY / "Cargo.toml").read_text()
    found = re.search(r'^\[workspace.package\]\nversion = "(.*)"$', text, re.MULTILINE)
    assert found, "Cargo.toml has no version"
    return found[1]


def programs(directory: pathlib.Path) -> Files:
    """The programs, by name."""
    return {name: (directory / name).read_bytes() for name in names()}


def guest(directory: pathlib.Path) -> Files:
    """The guest's files, by name."""
    return {name: (directory / name).read_bytes() for name in GUEST}


def manual(program: pathlib.Path, work: pathlib.Path) -> Files:
    """Man pages and completions, by place below `share`, which `mica-manual` writes."""
    subprocess.run([program, work], check=True)
    # What `mica serve` and `mica mcp` execute.
    return tree(work) | {"man/man1/mica-server.1": b".so man1/mica-serve.1\n"}


def tree(directory: pathlib.Path) -> Files:
    """All files below a directory, by place."""
    paths = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


def notices() -> Files:
    """The licence, and what makes the kernel of its sources: its licence asks for that."""
    kernel = REPOSITORY / "kernel"
    patches = {f"kernel/patches/{path}": data for path, data in tree(kernel / "patches").items()}
    own = {name: (REPOSITORY / name).read_bytes() for name in ("LICENSE", "CHANGELOG.md")}
    made = {
        f"kernel/{name}": (kernel / name).read_bytes() for name in ("README.md", "build", "config")
    }
    return own | made | patches | {"NOTICE": notice().encode()}


def notice() -> str:
    """Says whose the parts are that are not ours."""
    return (
        "Micabox is Apache-2.0 (LICENSE). `vmlinux` is the Linux kernel, GPL-2.0-only WITH\n"
        f"Linux-syscall-note: the sources of Debian's package {kernel_source()},\n"
        "with the configuration and the patches of `kernel` in Micabox's repository.\n"
        "What the programs are linked with is listed, with licences, in the SBOM of the release.\n"
    )


def kernel_source() -> str:
    """The package of Debian's that the kernel is made from, with its version."""
    built = subprocess.check_output([REPOSITORY / "kernel" / "build"], text=True).strip()
    lines = (pathlib.Path(built) / "build.txt").read_text().splitlines()
    source = next(line for line in lines if line.startswith("source")).split()[1]
    name, _, version = source.partition("-6.12-")
    return f"{name}-6.12 {version}"


def mode(place: str) -> int:
    """The permissions of a file: what is in a `bin` is a program."""
    return 0o755 if "bin" in pathlib.PurePath(place).parts[:-1] else 0o644


def archive(files: Files) -> bytes:
    """An archive as gzip(1) packs it: sorted, root's, and of one time."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        directories: set[str] = set()
        for place, data in sorted(files.items()):
            for parent in reversed(pathlib.PurePath(place).parents[:-1]):
                if str(parent) not in directories:
                    directories.add(str(parent))
                    tar.addfile(_member(f"{parent}", tarfile.DIRTYPE, 0o755))
            member = _member(place, tarfile.REGTYPE, mode(place))
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return gzip.compress(raw.getvalue(), compresslevel=9, mtime=0)


def _member(name: str, kind: bytes, permissions: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.mtime = kind, permissions, time()
    member.uname = member.gname = "root"
    return member
