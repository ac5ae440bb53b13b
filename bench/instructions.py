"""What the guest kernel executes until its first process, in instructions.

    python3 -m bench.instructions [--before CONFIG]

QEMU's emulator counts them: its clock runs by instructions, and the guest's with it. So a
boot differs from the next by a few in ten thousand, whatever else this machine does.
`--before` is an older `kernel/config`, to be built and counted beside the one here; without
it the last count of one stays in the table.
"""

import argparse
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

from bench import first_instruction, kernel, measure, report
from bench.measure import REPOSITORY

# A machine without a PC's devices: no timer to calibrate anything by, no firmware to speak of.
MACHINE = ["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]
MACHINE += ["-machine", "microvm,x-option-roms=off,pit=off", "-accel", "tcg", "-cpu", "max"]
MACHINE += ["-icount", "shift=0,sleep=off", "-m", "512M", "-serial", "stdio"]
# The counter is the clock; nothing waits for a timer, which would count as well.
WORDS = ["console=ttyS0", "panic=-1", "reboot=t", "tsc=reliable", "tsc_early_khz=1000000"]
WORDS += ["nolapic_timer", "no_timer_check"]
WAYS = {
    "one processor": ["quiet"],
    "lock prefixes left alone": ["quiet", "noreplace-smp"],
    "and no ACPI, as emulated": ["quiet", "noreplace-smp", "acpi=off"],
}
# How long each of the kernel's initialisations took.
PROFILE = ["initcall_debug", "ignore_loglevel", "log_buf_len=1M"]
INITCALL = re.compile(r"initcall (\w+)\+\S+ returned .* after (\d+) usecs")
ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m bench.instructions")
    parser.add_argument("--before", type=pathlib.Path, help="an older kernel/config")
    arguments = parser.parse_args()
    host = measure.machine()
    result = {"qemu": measure.package("qemu-system-x86"), "rounds": ROUNDS}
    result["after"] = counted(built())
    if arguments.before:
        result["before"] = counted(built(arguments.before))
    elif last := measure.load("instructions"):
        result["before"] = last.get("before")
    measure.save("instructions", host, result)
    report.write()


def built(config: pathlib.Path = REPOSITORY / "kernel" / "config") -> pathlib.Path:
    """The kernel with this configuration, made if the cache lacks it."""
    command = [REPOSITORY / "kernel" / "build", config]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return pathlib.Path(done.stdout.strip())


def counted(place: pathlib.Path) -> dict:
    """Instructions of a kernel in each of the `WAYS`, and of each of its initialisations."""
    vmlinux = place / "vmlinux"
    with tempfile.TemporaryDirectory() as scratch:
        initrd = kernel.initrd(pathlib.Path(scratch))
        stop = first_instruction.stopping(vmlinux, pathlib.Path(scratch, "stop"))
        firmware = count_of_stop(boot(stop, initrd, WORDS, until=b"K"))
        ways = {}
        for way, words in WAYS.items():
            texts = [boot(vmlinux, initrd, [*WORDS, *words]) for _ in range(ROUNDS)]
            # An older kernel may have no words for its init: no interrupt for the port.
            found = [marks(text).get("init") for text in texts]
            counts = [int(count) - firmware for count in found if count]
            if counts:
                ways[way] = {"median": statistics.median(counts), "runs": counts}
        profile = boot(vmlinux, initrd, [*WORDS, *PROFILE]).decode(errors="replace")
    initcalls = {name: int(micros) * 1000 for name, micros in INITCALL.findall(profile)}
    return {"kernel": place.name, "ways": ways, "initcalls": initcalls}


def boot(
    vmlinux: pathlib.Path, initrd: pathlib.Path, words: list[str], until: bytes = b""
) -> bytes:
    """What a machine writes to its serial port until it ends, or until it has written that."""
    command = ["qemu-system-x86_64", *MACHINE, "-kernel", vmlinux, "-initrd", initrd]
    command += ["-append", " ".join(words)]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        if until:
            text = child.stdout.read(len(until) + 4)
            child.kill()
            return text
        try:
            return child.communicate(timeout=120)[0]
        except subprocess.TimeoutExpired:
            child.kill()
            sys.exit(f"bench.instructions: {' '.join(map(str, command))} does not end")


def count_of_stop(text: bytes) -> int:
    """What was executed before the kernel's first instruction."""
    return int.from_bytes(text[1:5], "little")


def marks(text: bytes) -> dict[str, bytes]:
    """The counts that the init printed."""
    return {mark[1].decode(): mark[3] for mark in kernel.REPORT.finditer(text)}


if __name__ == "__main__":
    main()
