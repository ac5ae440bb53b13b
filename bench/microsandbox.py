"""microsandbox, as a peer of `mica exec` and of the Python SDK: its wheel, fetched once.

The wheel has the package, and in it `_bundled` with `bin/msb` and `lib/libkrunfw.so`, its monitor's kernel.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

from bench.measure import CACHE

VERSION = "0.7.11"
SHA256 = "65f1e4bbf8d721c9f7f557329fb6c8cf41f554c1c6942eac8b941198fa283fe0"
PLACE = CACHE / f"microsandbox-{VERSION}-wheel"
BUNDLED = pathlib.Path("microsandbox") / "_bundled"


def programs() -> pathlib.Path | None:
    """The directory of `bin/msb`, fetched if the cache lacks it; None if it can't be had here."""
    found = package()
    return found and found / BUNDLED


def package() -> pathlib.Path | None:
    """The directory that `import microsandbox` needs in its path, likewise."""
    if PLACE.exists():
        return PLACE
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        work = pathlib.Path(work)
        requirements = work / "requirements"
        requirements.write_text(f"microsandbox=={VERSION} --hash=sha256:{SHA256}\n")
        fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        fetch += ["--disable-pip-version-check", "--only-binary", ":all:", "--require-hashes"]
        fetch += ["--requirement", requirements, "--dest", work]
        if subprocess.run(fetch, check=False).returncode:
            print("bench.microsandbox: no wheel for this machine", file=sys.stderr)
            return None
        with zipfile.ZipFile(next(work.glob("*.whl"))) as wheel:
            wheel.extractall(work / "wheel")
        (work / "wheel" / BUNDLED / "bin" / "msb").chmod(0o755)
        shutil.move(work / "wheel", PLACE)
    return PLACE
