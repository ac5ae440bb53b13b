"""Packs the Python SDK as a wheel, with `mica` and the guest's files inside.

    python3 scripts/wheel.py MICA GUEST DIRECTORY
    python3 scripts/wheel.py --metadata DIRECTORY     only what the package says of itself, for tests

The same files give the same bytes. The platform's tag says what glibc `mica` needs, as its symbol versions
say (PEP 600); a static one needs none, and gets the oldest tag.
"""

import base64
import hashlib
import lzma
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = pathlib.Path(__file__).resolve().parents[1] / "sdk" / "python"
GUEST = ["vmlinux", "initrd.cpio"]
# PEP 600 has no older one that installers still know.
OLDEST = (2, 17)
TIME = (2025, 1, 1, 0, 0, 0)


def main(mica: str, guest: str, out: str) -> None:
    """Writes the wheel and prints its path and size."""
    project = table("project")
    tag = f"py3-none-manylinux_{'_'.join(map(str, glibc(mica)))}_x86_64"
    name = f"{project['name']}-{project['version']}"
    info = f"{name}.dist-info"
    members = sources() | {
        "micabox/files/mica": stripped(mica),
        **packed_guest(pathlib.Path(guest)),
        **described(info),
        f"{info}/WHEEL": wheel(tag).encode(),
        f"{info}/licenses/LICENSE": (PACKAGE.parents[1] / "LICENSE").read_bytes(),
    }
    members[f"{info}/RECORD"] = record(members, f"{info}/RECORD").encode()
    path = pathlib.Path(out) / f"{name}-{tag}.whl"
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, members)
    print(path, path.stat().st_size)


def table(name: str) -> dict[str, str]:
    """What a table of pyproject.toml says, in one line each. Python 3.10 has no reader of TOML."""
    text = (PACKAGE / "pyproject.toml").read_text().split(f"[{name}]\n")[1].split("\n[")[0]
    return dict(re.findall(r'^([a-z-]+) = \[?"(.*)"\]?$', text, re.MULTILINE))


def described(info: str) -> dict[str, bytes]:
    """What the package says of itself in the directory `info`: METADATA and entry points."""
    points = {"console_scripts": {"mica": "micabox.program:run"}}
    points["inspect_ai"] = table("project.entry-points.inspect_ai")
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in point.items())
        for group, point in points.items()
    ]
    return {
        f"{info}/METADATA": metadata(table("project")).encode(),
        f"{info}/entry_points.txt": "\n".join(groups).encode(),
    }


def glibc(program: str) -> tuple[int, ...]:
    """The version of glibc that a program needs."""
    command = ["readelf", "--version-info", "--wide", program]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    needed = re.findall(r"Name: GLIBC_(\d+)\.(\d+)", said)
    return max([(int(major), int(minor)) for major, minor in needed], default=OLDEST)


def stripped(program: str) -> bytes:
    """A program without symbols."""
    with tempfile.NamedTemporaryFile() as file:
        subprocess.run(["strip", "-o", file.name, program], check=True)
        return pathlib.Path(file.name).read_bytes()


def sources() -> dict[str, bytes]:
    """The package's own files, by path."""
    paths = [*(PACKAGE / "micabox").rglob("*.py"), PACKAGE / "micabox" / "py.typed"]
    return {str(path.relative_to(PACKAGE)): path.read_bytes() for path in paths}


def packed_guest(guest: pathlib.Path) -> dict[str, bytes]:
    """The guest's files, compressed, and their digests."""
    members, sums = {}, ""
    for name in GUEST:
        data = (guest / name).read_bytes()
        members[f"micabox/files/{name}.xz"] = lzma.compress(data, preset=1)
        sums += f"{hashlib.sha256(data).hexdigest()}  {name}\n"
    members["micabox/files/guest.sha256"] = sums.encode()
    return members


def metadata(project: dict[str, str]) -> str:
    """The wheel's METADATA."""
    fields = {
        "Metadata-Version": "2.4",
        "Name": project["name"],
        "Version": project["version"],
        "Summary": project["description"],
        "Requires-Python": project["requires-python"],
        "License-Expression": project["license"],
        "License-File": "LICENSE",
        "Description-Content-Type": "text/markdown",
    }
    head = "".join(f"{name}: {value}\n" for name, value in fields.items())
    for extra, needed in table("project.optional-dependencies").items():
        head += f'Provides-Extra: {extra}\nRequires-Dist: {needed}; extra == "{extra}"\n'
    return head + "\n" + (PACKAGE / project["readme"]).read_text()


def wheel(tag: str) -> str:
    """The wheel's WHEEL."""
    lines = ["Wheel-Version: 1.0", "Generator: micabox", "Root-Is-Purelib: false", f"Tag: {tag}"]
    return "\n".join(lines) + "\n"


def record(members: dict[str, bytes], itself: str) -> str:
    """The wheel's RECORD."""
    lines = []
    for path, data in sorted(members.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(data)}\n")
    return "".join(lines) + f"{itself},,\n"


def write(path: pathlib.Path, members: dict[str, bytes]) -> None:
    """Writes an archive."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in sorted(members.items()):
            member = zipfile.ZipInfo(name, TIME)
            mode = 0o755 if name == "micabox/files/mica" else 0o644
            member.external_attr = (0o100000 | mode) << 16
            is_packed = name.endswith(".xz")
            member.compress_type = zipfile.ZIP_STORED if is_packed else zipfile.ZIP_DEFLATED
            archive.writestr(member, data, compresslevel=9)


def write_metadata(out: str) -> None:
    """Writes what an installed package says of itself."""
    project = table("project")
    for name, data in described(f"{project['name']}-{project['version']}.dist-info").items():
        path = pathlib.Path(out, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


if __name__ == "__main__":
    if sys.argv[1] == "--metadata":
        write_metadata(sys.argv[2])
    else:
        main(*sys.argv[1:])
