"""What a worker of multiprocessing does in `test_process`."""

from micabox import Sandbox


def work(number: int) -> str:
    """Returns what a command in a sandbox of this process says."""
    with Sandbox.create("sample", backend="host") as box:
        return box.commands.run(f"echo {number}").stdout.strip()
