"""What a sandbox is made of: the options of `mica run`, whose help has more on each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypedDict, TypeVar, cast

from micabox import arguments
from micabox.model.sandbox import OptionValue


class Options(TypedDict, total=False):
    """Options of `mica run`."""

    name: str
    memory: str
    """Memory of the machine: `512m`, `2g`."""
    cpus: float | str
    env: Mapping[str, str]
    env_file: Sequence[str]
    label: Mapping[str, str]
    label_file: Sequence[str]
    workdir: str
    user: str
    group_add: Sequence[str]
    hostname: str
    rm: bool
    """Whether the sandbox is forgotten when it ends; True unless it is given."""
    upper: str
    """Where changes go: `tmpfs`, `disk`, `disk:20g`, or `folder:DIR`."""
    root_disk: str
    snapshot: str
    """The name of a snapshot, in place of an image."""
    volume: Sequence[str]
    """`HOST:PATH`, `HOST:PATH:ro`, or `NAME:PATH` for a volume."""
    mount: Sequence[str]
    tmpfs: Sequence[str]
    read_only: bool
    remove: Sequence[str]
    mkdir: Sequence[str]
    patch: Sequence[str]
    patch_tar: Sequence[str]
    symlink: Sequence[str]
    trim: Sequence[str]
    net: Literal["user", "none"]
    net_allow: Sequence[str]
    net_deny: Sequence[str]
    net_rate: str
    dns: Sequence[str]
    publish: Sequence[str]
    """`HOST:GUEST`, `IP:HOST:GUEST`."""
    vsock: str
    idle_timeout: str
    max_life: str
    ulimit: Sequence[str]
    cap_add: Sequence[str]
    cap_drop: Sequence[str]
    pids_limit: int
    shm_size: str
    disk_rate: str
    require_limits: bool
    nested_virtualization: bool
    backend: Literal["auto", "kvm", "qemu", "host"]
    transport: Literal["auto", "pmem", "blk"]
    root: Literal["merged", "stacked"]
    pull: Literal["always", "missing", "never"]
    platform: str
    init: bool
    cold: bool
    stop_signal: str


_Function = TypeVar("_Function", bound=Callable[..., object])


def documented(function: _Function) -> _Function:
    """Adds the options to a function's documentation."""
    options = Options.__annotations__.items()
    lines = "\n".join(
        f"    {name}: {getattr(kind, '__forward_arg__', kind)}" for name, kind in options
    )
    said = inspect.cleandoc(function.__doc__ or "")
    function.__doc__ = (
        f"{said}\n\nOptions, by the names that `mica run --help` explains:\n\n{lines}\n"
    )
    return function


def of_arguments(
    options: Options,
    *,
    timeout: float | None,
    envs: Mapping[str, str] | None,
    metadata: Mapping[str, str] | None,
) -> dict[str, OptionValue]:
    """The options for a request, with those that have E2B's names."""
    given: dict[str, OptionValue] = {"rm": True, **cast("dict[str, OptionValue]", options)}
    if "snapshot" in given:
        given["from"] = given.pop("snapshot")
    if timeout is not None:
        given["max_life"] = f"{arguments.seconds(timeout, 'a timeout'):.3f}"
    for option, name, more in (("env", "envs", envs), ("label", "metadata", metadata)):
        if more is not None or isinstance(given.get(option), Mapping):
            said = arguments.variables(given.get(option), option)
            given[option] = said | arguments.variables(more, name)
    workdir = given.get("workdir")
    if workdir is not None and not arguments.text(workdir, "workdir").startswith("/"):
        raise arguments.invalid(f"workdir: `{workdir}` is not an absolute path")
    return given
