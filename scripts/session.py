"""Where commands of `mica` run as one types them: a home of their own, and images under the names that pages have."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))
from bench import layout

# Layers of the sample image, which stand in for images, as tests fetch nothing: userland, Python on it, an application.
LAYERS = {
    "debian:12": slice(1),
    "python:3.12-slim": slice(2),
    "registry.example.com/team/app:1": slice(2, 3),
}

# What a sandbox, and a snapshot of one moment, has as its ID.
ID = re.compile(r"\b[0-9a-f]{32}\b")

ELSEWHERE = ("DOCKER_CONFIG", "MICABOX_CONFIG", "MICABOX_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")


def environment(mica: Path, home: Path) -> dict[str, str]:
    """The variables of one whose home directory is `home`, and who has `mica` and the SDK for Python."""
    (home / "bin").mkdir()
    (home / "bin" / "mica").symlink_to(mica)
    ours = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}
    return (
        {"MICABOX_GUEST": str(REPOSITORY / "target" / "guest")}
        | ours
        | {
            "HOME": str(home),
            "MICABOX_MICA": str(mica),
            "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(REPOSITORY / "sdk" / "python"),
        }
    )


@contextmanager
def image(name: str) -> Iterator[Path]:
    """An OCI layout with the image that stands in for `name`."""
    made = subprocess.check_output([REPOSITORY / "scripts" / "sample-image"], text=True)
    sample = Path(made.strip())
    # Beside the sample image, whose layers are linked.
    with tempfile.TemporaryDirectory(prefix="session-", dir=sample.parent.parent) as work:
        directory = Path(work) / "image"
        layout.write(directory, layout.blobs(sample)[LAYERS[name]])
        yield directory
