"""Sandboxes from OCI images, each in a virtual machine of its own.

with Sandbox.create("python:3.12-slim") as sandbox:
    print(sandbox.commands.run("uname -a").stdout)
"""

from micabox.aio.commands import AsyncCommands
from micabox.aio.files import AsyncFileStreamReader, AsyncFilesystem
from micabox.aio.handle import AsyncCommandHandle
from micabox.aio.pty import AsyncPty
from micabox.aio.sandbox import AsyncSandbox
from micabox.aio.store import AsyncImages, AsyncSnapshots, AsyncVolumes
from micabox.aio.watch import AsyncWatchHandle
from micabox.errors import (
    CancelledException,
    CommandStartException,
    DamagedException,
    DisconnectedException,
    FileException,
    FileExistsException,
    FileNotFoundException,
    GuestException,
    HostException,
    InUseException,
    InvalidArgumentException,
    NameInUseException,
    NotEnoughSpaceException,
    NotFoundException,
    PermissionException,
    ProtocolException,
    SandboxException,
    SandboxNotFoundException,
    SandboxNotRunningException,
    TimeoutException,
    UnreachableException,
    UnsupportedException,
)
from micabox.model.command import (
    Capture,
    CommandExitException,
    CommandResult,
    ProcessInfo,
    PtySize,
)
from micabox.model.files import (
    AsyncWriteEntry,
    EntryInfo,
    FilesystemEvent,
    FilesystemEventType,
    FileType,
    WriteEntry,
    WriteInfo,
)
from micabox.model.options import Options
from micabox.model.progress import LayerProgress, PullProgress
from micabox.model.sandbox import (
    Change,
    ImageInfo,
    SandboxInfo,
    SnapshotInfo,
    Stats,
    VolumeInfo,
)
from micabox.sync.commands import Commands
from micabox.sync.files import FileStreamReader, Filesystem
from micabox.sync.handle import CommandHandle
from micabox.sync.pty import Pty
from micabox.sync.sandbox import Sandbox
from micabox.sync.store import Images, Snapshots, Volumes
from micabox.sync.watch import WatchHandle

__version__ = "0.1.0"

images = Images()
volumes = Volumes()
snapshots = Snapshots()

__all__ = [
    "AsyncCommandHandle",
    "AsyncCommands",
    "AsyncFileStreamReader",
    "AsyncFilesystem",
    "AsyncImages",
    "AsyncPty",
    "AsyncSandbox",
    "AsyncSnapshots",
    "AsyncVolumes",
    "AsyncWatchHandle",
    "AsyncWriteEntry",
    "CancelledException",
    "Capture",
    "Change",
    "CommandExitException",
    "CommandHandle",
    "CommandResult",
    "CommandStartException",
    "Commands",
    "DamagedException",
    "DisconnectedException",
    "EntryInfo",
    "FileException",
    "FileExistsException",
    "FileNotFoundException",
    "FileStreamReader",
    "FileType",
    "Filesystem",
    "FilesystemEvent",
    "FilesystemEventType",
    "GuestException",
    "HostException",
    "ImageInfo",
    "Images",
    "InUseException",
    "InvalidArgumentException",
    "LayerProgress",
    "NameInUseException",
    "NotEnoughSpaceException",
    "NotFoundException",
    "Options",
    "PermissionException",
    "ProcessInfo",
    "ProtocolException",
    "Pty",
    "PtySize",
    "PullProgress",
    "Sandbox",
    "SandboxException",
    "SandboxInfo",
    "SandboxNotFoundException",
    "SandboxNotRunningException",
    "SnapshotInfo",
    "Snapshots",
    "Stats",
    "TimeoutException",
    "UnreachableException",
    "UnsupportedException",
    "VolumeInfo",
    "Volumes",
    "WatchHandle",
    "WriteEntry",
    "WriteInfo",
    "__version__",
    "images",
    "snapshots",
    "volumes",
]
