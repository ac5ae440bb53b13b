"""What a sandbox is made of: the options of `mica run`, whose help has more on each."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypedDict, TypeVar, cast

from micabox import arguments
from micabox.model.sandbox import OptionValue


class Options(TypedDict, total=False):
    """Options of `mica run`, by their long names.

    Sizes are in bytes, or have a unit: `k`, `m`, `g` or `t`. Times are in seconds, or have one: `s`, `m`, `h` or `d`.
    """

    # generated from crates/spec/src/options
    name: str
    """Name of the sandbox. Default: two random words."""
    memory: str
    """Memory of the machine, in bytes or with `k`, `m`, `g` or `t`: `512m`, `2g`. Default: `1g`."""
    cpus: float | str
    """Processors of the machine; a fraction limits its processor time. Default: up to 4 with KVM, 1 when emulated."""
    env: Mapping[str, str]
    """Variables of all commands, by name. Default: the image's."""
    env_file: Sequence[str]
    """Files on this machine with variables, one a line. Default: none."""
    label: Mapping[str, str]
    """Labels, by name, for `Sandbox.list` and `mica ps --filter`. Default: none."""
    label_file: Sequence[str]
    """Files on this machine with labels, one a line. Default: none."""
    workdir: str
    """Working directory of commands, absolute, made if missing. Default: the image's, or `/`."""
    user: str
    """User of commands, by name or ID, with `:GROUP` if wanted. Default: the image's, or root."""
    group_add: Sequence[str]
    """Further groups of commands, by name or ID. Default: those of the user in the image."""
    hostname: str
    """Host name inside. Default: the sandbox's ID."""
    rm: bool
    """Whether the sandbox is forgotten when it ends; False keeps its record and disk. Default: True."""
    upper: str
    """Where changes go: `tmpfs`, `disk`, `disk:20g` or `folder:DIR`. Default: `tmpfs`, gone with the sandbox."""
    root_disk: str
    """File in place of an image: ext4, EROFS, disk (raw, qcow2, VMDK; `,partition=N`); `:rw` changes it. Default: none."""
    snapshot: str
    """A snapshot in place of an image: its name, or `NAME:TAG` of one in a registry. Default: none."""
    volume: Sequence[str]
    """Folders, files, volumes: `HOST:PATH`, `NAME:PATH`, `PATH` (removed with it); then `:ro`, `:cached`. Default: none."""
    mount: Sequence[str]
    """Mounts as `docker run --mount` has them: `type=image,source=tools,target=/opt`. Default: none."""
    tmpfs: Sequence[str]
    """Filesystems in memory: `PATH` or `PATH:size=64m,mode=1777`. Default: none."""
    read_only: bool
    """Whether the root is read-only. Default: False."""
    remove: Sequence[str]
    """Paths that are removed from the root before the start. Default: none."""
    mkdir: Sequence[str]
    """Directories that are made in the root before the start. Default: none."""
    patch: Sequence[str]
    """Files of this machine that are copied into the root before the start: `FILE:PATH`. Default: none."""
    patch_tar: Sequence[str]
    """Uncompressed archives that are unpacked at the root before the start. Default: none."""
    symlink: Sequence[str]
    """Symbolic links that are made in the root before the start: `TARGET:PATH`. Default: none."""
    trim: Sequence[str]
    """What the root leaves out: paths, with `*`, not `!PATH`; or `docs`, `man`, `locales`, `caches`. Default: nothing."""
    net: Literal["user", "none"]
    """The network: `user` reaches what this machine reaches, but not it and link-local addresses. Default: `user`."""
    net_allow: Sequence[str]
    """The only addresses and names that can be reached: `10.0.0.0/8`, `*.example.com:443`. Default: all."""
    net_deny: Sequence[str]
    """Addresses and names that can't be reached, even if they are allowed. Default: none."""
    net_rate: str
    """Limit of the network's traffic, in bytes a second: `10m`, `in=10m,out=1m`. Default: no limit."""
    dns: Sequence[str]
    """Addresses of resolvers: `IP` or `IP:PORT`. Default: this machine's."""
    publish: Sequence[str]
    """Ports of this machine that lead in: `HOST:GUEST`, `IP:HOST:GUEST`, `GUEST/udp`, ranges. Default: none."""
    publish_all: bool
    """Whether all ports are published that the image or `expose` names. Default: False."""
    expose: Sequence[str]
    """Ports for `publish_all`: `80`, `53/udp`. Default: none."""
    vsock: str
    """Path of a Unix socket for the sandbox's AF_VSOCK, as Firecracker has it; needs KVM. Default: none."""
    idle_timeout: str
    """Time after which a sandbox without commands and clients is stopped: `90s`, `10m`, `2h`. Default: no limit."""
    max_life: str
    """Time after which it is stopped, whatever runs: `90s`, `10m`, `2h`. Default: no limit."""
    ulimit: Sequence[str]
    """Limits of each process: `NAME=SOFT:HARD`, as in `nofile=1024:4096`; -1 is no limit. Default: `nofile=1024:524288`."""
    cap_add: Sequence[str]
    """Capabilities beside the usual ones, or that `cap_drop` with `ALL` leaves. Default: none."""
    cap_drop: Sequence[str]
    """Capabilities that root and all programs lose. Default: none in a machine; Docker's with the backend `host`."""
    security_opt: Sequence[str]
    """`no-new-privileges`, so that no program gets more rights than its caller has. Default: none."""
    pids_limit: int
    """The most processes and threads of all commands together; 0 or -1 is no limit. Default: no limit."""
    shm_size: str
    """Size of `/dev/shm`, in bytes or with `k`, `m` or `g`. Default: `64m`."""
    disk_rate: str
    """Limit of each disk, in bytes and requests a second: `50m`, `read=50m,write=20m,iops=1000`. Default: no limit."""
    require_limits: bool
    """Whether it must not start without a control group that limits its process. Default: False."""
    nested_virtualization: bool
    """Whether programs inside may use KVM and performance counters. Default: False."""
    backend: Literal["auto", "kvm", "qemu", "host"]
    """What runs it: our monitor, QEMU, or a container on this machine's kernel. Default: `auto`, never `host`."""
    transport: Literal["auto", "pmem", "blk"]
    """How the image's bytes reach the machine: mapped memory or a disk. Default: `auto`, what boots faster."""
    root: Literal["merged", "stacked"]
    """Whether the layers are one filesystem or one each. Default: `merged`."""
    verity: bool
    """Whether the guest checks each block of the image that it reads; over a disk alone. Default: False."""
    pull: Literal["always", "missing", "never"]
    """When the registry is asked. Default: `missing`, or what the settings say."""
    lazy: bool
    """Whether it starts before all of its image, or of its snapshot's memory, is here. Default: False, or what the settings say."""
    platform: str
    """Platform of the image: `linux/amd64`. Default: this machine's."""
    init: bool
    """Whether process 1 is an init that reaps orphans. Default: True."""
    cold: bool
    """Whether the machine boots although a warm template is there; needs KVM. Default: False."""
    stop_signal: str
    """Signal that asks the sandbox's first command to end. Default: the image's, or `TERM`."""
    # end of what is generated


_Function = TypeVar("_Function", bound=Callable[..., object])


def _written() -> dict[str, str]:
    """What is written below each option, which Python does not keep; empty without this file."""
    try:
        module = ast.parse(Path(__file__).read_bytes())
    except OSError:
        return {}
    [options] = (part for part in module.body if isinstance(part, ast.ClassDef))
    written: dict[str, str] = {}
    for option, below in zip(options.body, options.body[1:], strict=False):
        match option, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                value=ast.Constant(value=str(text))
            ):
                written[name] = text
            case _:
                pass
    return written


_WRITTEN = _written()


def documented(function: _Function) -> _Function:
    """Adds the options to a function's documentation, each with its type, unit and default."""
    lines: list[str] = []
    for name, kind in Options.__annotations__.items():
        lines.append(f"    {name}: {getattr(kind, '__forward_arg__', kind)}")
        if name in _WRITTEN:
            lines.append(f"        {_WRITTEN[name]}")
    said = inspect.cleandoc(function.__doc__ or "")
    listed = "\n".join(lines)
    function.__doc__ = f"{said}\n\nOptions are those of `mica run`:\n\n{listed}\n"
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
        milliseconds = arguments.milliseconds(arguments.seconds(timeout, "a timeout"))
        given["max_life"] = f"{milliseconds / 1000:.3f}"
    for option, name, more in (("env", "envs", envs), ("label", "metadata", metadata)):
        if more is not None or isinstance(given.get(option), Mapping):
            said = arguments.variables(given.get(option), option)
            given[option] = said | arguments.variables(more, name)
    workdir = given.get("workdir")
    if workdir is not None and not arguments.text(workdir, "workdir").startswith("/"):
        raise arguments.invalid(f"workdir: `{workdir}` is not an absolute path")
    return given
