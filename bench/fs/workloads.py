#!/usr/bin/env python3
"""Filesystem workloads, run by one Python process inside a sandbox.

`workloads.py list` names them; `workloads.py run NAME ITERATIONS [root]` runs one, with
`/tmp` on a tmpfs or as it is on the root, and prints a JSON object: name, iterations, median, mean, stdev, min, max (seconds)
and every raw time. Standard library only: the sandbox has nothing else.

Each workload is a class: `setup` runs once, `prepare` before every timed
iteration, `run` is what is timed, `cleanup` comes after it, untimed.
"""

import ctypes
import json
import mmap
import os
import random
import shutil
import stat
import statistics
import subprocess
import sys
import sysconfig
import threading
import time

STDLIB = sysconfig.get_paths()["stdlib"]
TMP = "/tmp/mica-bench"
# A directory of the image's own file system, so that writes land on the root's upper.
ROOT = "/var/tmp/mica-bench"
MIB = 1 << 20

WORKLOADS = {}


def workload(cls):
    """Registers a workload under its class name."""
    WORKLOADS[cls.__name__] = cls
    return cls


def tmpfs_on_tmp():
    """The same `/tmp` everywhere: a sandbox has it on the root's upper, as Docker does."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None):
        raise OSError(ctypes.get_errno(), "mounting a tmpfs on /tmp")


def fresh(path):
    """An empty directory at `path`, whatever was there."""
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)


def write(path, data):
    with open(path, "wb") as file:
        file.write(data)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def python_sources():
    """Every `.py` of the standard library, in a stable order."""
    found = []
    for directory, _, names in os.walk(STDLIB):
        found.extend(os.path.join(directory, name) for name in names if name.endswith(".py"))
    return sorted(found)


def directories():
    return sorted(directory for directory, _, _ in os.walk(STDLIB))


def drop_caches():
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3")


def cached_kib():
    """The guest's page cache, KiB. Reclaimable anonymous shared memory is not file cache."""
    fields = {}
    with open("/proc/meminfo") as file:
        for line in file:
            name, value = line.split(":")
            fields[name] = int(value.split()[0])
    return fields["Cached"] + fields["Buffers"] - fields["Shmem"]


class Workload:
    def setup(self):
        pass

    def prepare(self):
        pass

    def run(self):
        raise NotImplementedError

    def cleanup(self):
        pass

    def extra(self):
        """Facts beside the times, for the JSON."""
        return {}


@workload
class metadata_scan_stdlib(Workload):
    def run(self):
        stack = [STDLIB]
        while stack:
            with os.scandir(stack.pop()) as entries:
                for entry in entries:
                    os.lstat(entry.path)
                    if entry.is_dir(follow_symlinks=False):
                        stack.append(entry.path)


@workload
class read_all_py_stdlib(Workload):
    def run(self):
        for path in python_sources():
            read(path)


@workload
class deep_tree_traverse(Workload):
    """Depth 3, width 8, five 512-byte files a directory: 585 directories, 2925 files."""

    def setup(self):
        fresh(TMP)
        level = [TMP]
        for depth in range(4):
            below = []
            for directory in level:
                for number in range(5):
                    write(os.path.join(directory, f"file{number}"), b"x" * 512)
                if depth < 3:
                    for number in range(8):
                        child = os.path.join(directory, f"dir{number}")
                        os.mkdir(child)
                        below.append(child)
            level = below

    def run(self):
        for directory, _, names in os.walk(TMP):
            for name in names:
                os.stat(os.path.join(directory, name))


@workload
class random_read_stdlib(Workload):
    def setup(self):
        self.random = random.Random(20)
        self.sources = python_sources()

    def prepare(self):
        self.chosen = [self.random.choice(self.sources) for _ in range(200)]

    def run(self):
        for path in self.chosen:
            read(path)


class CreateTree(Workload):
    """Creates `count` files of `size` bytes below `where`, then removes the tree."""

    where, count, size = TMP, 0, 0

    def prepare(self):
        fresh(self.where)

    def run(self):
        body = b"x" * self.size
        for number in range(self.count):
            write(os.path.join(self.where, str(number)), body)
        shutil.rmtree(self.where)


@workload
class small_file_create_1k(CreateTree):
    count, size = 1000, 4096


@workload
class mid_file_create_100(CreateTree):
    count, size = 100, 64 << 10


@workload
class rootfs_create_1k(CreateTree):
    where, count, size = ROOT, 1000, 4096


class WriteFsync(Workload):
    """`mib` writes of 1 MiB to one file, one fsync, unlink."""

    where, mib = TMP, 16

    def setup(self):
        os.makedirs(self.where, exist_ok=True)

    def run(self):
        path = os.path.join(self.where, "sequential")
        body = b"x" * MIB
        with open(path, "wb", buffering=0) as file:
            for _ in range(self.mib):
                file.write(body)
            os.fsync(file.fileno())
        os.unlink(path)


@workload
class seq_write_fsync_16m(WriteFsync):
    pass


@workload
class shm_write_fsync_16m(WriteFsync):
    where = "/dev/shm"


@workload
class seq_write_fsync_64m_root(WriteFsync):
    where, mib = ROOT, 64


class Read16M(Workload):
    def setup(self):
        fresh(TMP)
        self.path = os.path.join(TMP, "sixteen")
        write(self.path, os.urandom(16 * MIB))


@workload
class seq_read_16m(Read16M):
    def run(self):
        with open(self.path, "rb", buffering=0) as file:
            while file.read(MIB):
                pass


@workload
class mmap_read_16m(Read16M):
    def run(self):
        with (
            open(self.path, "rb") as file,
            mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view,
        ):
            for offset in range(0, len(view), MIB):
                view[offset : offset + MIB]


class OneThousand(Workload):
    """1000 files of 4 KiB below `where`, made untimed."""

    where = TMP

    def prepare(self):
        fresh(self.where)
        for number in range(1000):
            write(os.path.join(self.where, str(number)), b"x" * 4096)

    def cleanup(self):
        shutil.rmtree(self.where, ignore_errors=True)


class Delete1k(OneThousand):
    def run(self):
        for number in range(1000):
            os.unlink(os.path.join(self.where, str(number)))
        os.rmdir(self.where)


class Rename1k(OneThousand):
    def run(self):
        for number in range(1000):
            os.rename(
                os.path.join(self.where, str(number)), os.path.join(self.where, f"renamed{number}")
            )


@workload
class file_delete_1k(Delete1k):
    pass


@workload
class rename_1k(Rename1k):
    pass


@workload
class rootfs_delete_1k(Delete1k):
    where = ROOT


@workload
class rootfs_rename_1k(Rename1k):
    where = ROOT


@workload
class mixed_read_write(Workload):
    def setup(self):
        chooser = random.Random(21)
        sources = python_sources()
        self.chosen = [chooser.choice(sources) for _ in range(500)]

    def prepare(self):
        fresh(TMP)

    def run(self):
        for number, path in enumerate(self.chosen):
            write(os.path.join(TMP, str(number)), read(path)[:4096])
        shutil.rmtree(TMP)


@workload
class concurrent_read_4t(Workload):
    def setup(self):
        self.sources = python_sources()

    def run(self):
        def part(paths):
            for path in paths:
                read(path)

        threads = [threading.Thread(target=part, args=(self.sources[n::4],)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


@workload
class negative_lookup(Workload):
    """A name that was never asked for before, in every directory."""

    def setup(self):
        self.directories = directories()
        self.round = 0

    def prepare(self):
        self.round += 1

    def run(self):
        for directory in self.directories:
            try:
                os.stat(f"{directory}/no-such-name-{self.round}")
            except FileNotFoundError:
                pass


@workload
class readdir_rescan(Workload):
    def setup(self):
        self.directories = directories()

    def run(self):
        for _ in range(10):
            for directory in self.directories:
                with os.scandir(directory) as entries:
                    for _ in entries:
                        pass


FORTY_MODULES = """
abc argparse ast asyncio base64 bisect calendar collections configparser contextlib copy csv
dataclasses datetime decimal difflib email.message enum fractions functools gzip hashlib heapq
html.parser http.client inspect ipaddress json logging multiprocessing pathlib pickle random
shutil sqlite3 statistics subprocess tarfile tempfile unittest
""".split()


@workload
class cold_import(Workload):
    def prepare(self):
        drop_caches()

    def run(self):
        subprocess.run(
            [sys.executable, "-I", "-c", f"import {', '.join(FORTY_MODULES)}"], check=True
        )


@workload
class cold_read_all(Workload):
    def setup(self):
        self.sources = python_sources()

    def prepare(self):
        drop_caches()

    def run(self):
        for path in self.sources:
            read(path)


def small_files(top):
    """Every regular file below `top` of 1 B to 64 KiB."""
    for directory, _, names in os.walk(top):
        for name in names:
            path = os.path.join(directory, name)
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode) and 0 < status.st_size <= 64 << 10:
                yield path


@workload
class copy_up_200(Workload):
    """Appends a byte to 200 image files that no earlier iteration has copied up."""

    def setup(self):
        sources = sorted(small_files("/usr"))
        random.Random(22).shuffle(sources)
        self.left = sources

    def prepare(self):
        self.chosen, self.left = self.left[:200], self.left[200:]
        if len(self.chosen) < 200:
            raise SystemExit("copy_up_200: out of image files, ask for fewer iterations")

    def run(self):
        for path in self.chosen:
            with open(path, "ab") as file:
                file.write(b"\n")


@workload
class mmap_exec_64m(Workload):
    """Maps 64 MiB of the image's biggest ELF files and touches every page."""

    def setup(self):
        sized = {}
        for top in ("/usr/lib", "/usr/bin", "/usr/sbin"):
            for directory, _, names in os.walk(top):
                for name in names:
                    path = os.path.join(directory, name)
                    if os.path.islink(path) or not os.path.isfile(path):
                        continue
                    with open(path, "rb") as file:
                        if file.read(4) == b"\x7fELF":
                            status = os.stat(path)
                            sized[status.st_ino] = (status.st_size, path)
        self.paths, self.bytes = [], 0
        for size, path in sorted(sized.values(), reverse=True):
            if self.bytes >= 64 * MIB:
                break
            self.paths.append(path)
            self.bytes += size
        self.growth = []

    def prepare(self):
        drop_caches()
        # Opened untimed and unmeasured: directories and inodes are cached in any case.
        self.files = [open(path, "rb") for path in self.paths]  # noqa: SIM115
        self.before = cached_kib()

    def run(self):
        self.views = []
        for file in self.files:
            view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_EXEC)
            for offset in range(0, len(view), mmap.PAGESIZE):
                view[offset]
            self.views.append(view)

    def cleanup(self):
        self.growth.append(cached_kib() - self.before)
        for view in self.views + self.files:
            view.close()

    def extra(self):
        return {"mapped_bytes": self.bytes, "page_cache_growth_kib": statistics.median(self.growth)}


def measure(name, iterations):
    subject = WORKLOADS[name]()
    subject.setup()
    times = []
    # The first round is the untimed one: it warms what the workload does not drop itself.
    for turn in range(iterations + 1):
        subject.prepare()
        start = time.perf_counter()
        subject.run()
        elapsed = time.perf_counter() - start
        subject.cleanup()
        if turn:
            times.append(elapsed)
    return {
        "name": name,
        "iterations": iterations,
        "median": statistics.median(times),
        "mean": statistics.fmean(times),
        "stdev": statistics.stdev(times) if len(times) > 1 else 0.0,
        "min": min(times),
        "max": max(times),
        "times": times,
        **subject.extra(),
    }


def main(arguments):
    if arguments == ["list"]:
        print("\n".join(WORKLOADS))
    elif arguments[:1] == ["run"] and arguments[1] in WORKLOADS and arguments[3:] in ([], ["root"]):
        if not arguments[3:]:
            tmpfs_on_tmp()
        print(json.dumps(measure(arguments[1], int(arguments[2]))))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
