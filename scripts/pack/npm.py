"""Lays out the npm packages: the SDK for TypeScript, and the platform's with programs and guest.

    python3 scripts/pack/npm.py PROGRAMS GUEST DIRECTORY

Prints their directories, for `npm pack`. The SDK is compiled before (`npm run build`).
"""

import json
import pathlib
import sys
from typing import Any

import shipped

PACKAGE = shipped.REPOSITORY / "sdk" / "typescript"
PLATFORM = "@micabox/linux-x64"


def main(programs: str, guest: str, out: str) -> None:
    """Writes the packages' files and prints their directories."""
    described = json.loads((PACKAGE / "package.json").read_text())
    for name, files in (
        ("micabox", sdk(described)),
        ("linux-x64", platform(described, pathlib.Path(programs), pathlib.Path(guest))),
    ):
        place = pathlib.Path(out, name)
        for path, data in files.items():
            file = place / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            file.chmod(shipped.mode(path))
        print(place)


def sdk(described: dict[str, Any]) -> shipped.Files:
    """The SDK, which asks for the platform's package where that can be installed."""
    kept = {key: described[key] for key in described if key not in ("scripts", "devDependencies")}
    kept["optionalDependencies"] = {PLATFORM: described["version"]}
    compiled = {f"dist/{place}": data for place, data in shipped.tree(PACKAGE / "dist").items()}
    assert "dist/index.js" in compiled, "sdk/typescript is not compiled"
    return compiled | {
        "package.json": text(kept),
        "README.md": (PACKAGE / "README.md").read_bytes(),
        "LICENSE": (shipped.REPOSITORY / "LICENSE").read_bytes(),
    }


def platform(
    described: dict[str, Any], programs: pathlib.Path, guest: pathlib.Path
) -> shipped.Files:
    """The programs, and the guest's files where `mica` looks for them."""
    package = {
        "name": PLATFORM,
        "version": described["version"],
        "description": "Programs and guest of Micabox, for Linux on x86-64",
        "license": "Apache-2.0 AND GPL-2.0-only",
        "os": ["linux"],
        "cpu": ["x64"],
        "preferUnplugged": True,
        "bin": {name: f"bin/{name}" for name in shipped.names()},
    }
    return {
        "package.json": text(package),
        "README.md": b"Programs and guest of the package `micabox`.\n",
        "LICENSE": (shipped.REPOSITORY / "LICENSE").read_bytes(),
        "NOTICE": shipped.notice().encode(),
        **{f"bin/{name}": data for name, data in shipped.programs(programs).items()},
        **{f"lib/micabox/{name}": data for name, data in shipped.guest(guest).items()},
    }


def text(package: dict[str, Any]) -> bytes:
    """A package.json."""
    return (json.dumps(package, indent=2) + "\n").encode()


if __name__ == "__main__":
    main(*sys.argv[1:])
