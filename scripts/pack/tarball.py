"""Packs the programs, the guest's files, the manual and completions for any Linux.

    python3 scripts/pack/tarball.py PROGRAMS GUEST DIRECTORY

`tar -C ~/.local --strip-components 1 -xf` installs it.
"""

import pathlib
import sys
import tempfile

import shipped


def main(programs: str, guest: str, out: str) -> None:
    """Writes the archive and prints its path and size."""
    name = f"micabox-{shipped.version()}-linux-x86_64"
    path = pathlib.Path(out, f"{name}.tar.gz")
    files = {f"{name}/{place}": data for place, data in tree(programs, guest).items()}
    path.write_bytes(shipped.archive(files))
    print(path, path.stat().st_size)


def tree(programs: str, guest: str) -> shipped.Files:
    """All files, by place below the prefix."""
    directory = pathlib.Path(programs)
    files = {f"bin/{name}": data for name, data in shipped.programs(directory).items()}
    for name, data in shipped.guest(pathlib.Path(guest)).items():
        files[f"lib/micabox/{name}"] = data
    with tempfile.TemporaryDirectory() as work:
        manual = shipped.manual(directory / "mica-manual", pathlib.Path(work))
    for place, data in manual.items():
        # Where zsh looks for what no distribution has packed.
        files["share/" + place.replace("vendor-completions", "site-functions")] = data
    for place, data in shipped.notices().items():
        files[f"share/doc/micabox/{place}"] = data
    return files


if __name__ == "__main__":
    main(*sys.argv[1:])
