"""Sandboxes, and what is kept beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

OptionValue = bool | str | int | float | Sequence[str] | Mapping[str, str] | None
"""An option of `mica run`; a sequence for one that may be repeated."""


@dataclass(frozen=True)
class SandboxInfo:
    """A sandbox."""

    sandbox_id: str
    name: str
    image: str | None
    """The image's name, or its digest if it has none; None without an image."""
    metadata: dict[str, str]
    """Its labels."""
    started_at: datetime
    """When it was created."""
    state: str
    """`running`, `paused`, `exited` and so on."""
    cpu_count: float
    memory_mb: int
    record: dict[str, Any]
    """Everything, as `mica ps --json` has it."""

    @classmethod
    def of(cls, record: dict[str, Any]) -> SandboxInfo:
        """What a record says."""
        image = dict[str, Any](record.get("image") or {})
        name = image.get("reference") or image.get("digest")
        return cls(
            sandbox_id=str(record["id"]),
            name=str(record["name"]),
            image=str(name) if name else None,
            metadata={
                str(k): str(v) for k, v in dict[str, Any](record.get("labels") or {}).items()
            },
            started_at=datetime.fromtimestamp(int(record["created"]), timezone.utc),
            state=str(record.get("state") or dict[str, Any](record["status"])["state"]),
            cpu_count=float(record["cpus"]),
            memory_mb=int(record["memory_mib"]),
            record=record,
        )


@dataclass(frozen=True)
class Stats:
    """What a sandbox uses of its host, since its start; None where the host does not say."""

    processor_time: float | None
    """Seconds."""
    own_memory: int | None
    """Bytes of the sandbox and its monitor alone."""
    shared_memory: int | None
    """Bytes of files that sandboxes share, such as the image's."""
    disk_read: int | None
    disk_written: int | None
    network_received: int | None
    network_sent: int | None

    @classmethod
    def of(cls, said: dict[str, Any]) -> Stats:
        """What a message `stats` says."""
        time = said.get("processor_time")
        fields = ("own_memory", "shared_memory", "disk_read", "disk_written")
        more = ("network_received", "network_sent")
        return cls(
            None if time is None else time / 1e6, *(said.get(name) for name in fields + more)
        )


@dataclass(frozen=True)
class SnapshotInfo:
    """A snapshot."""

    snapshot_id: str
    """Its name."""
    record: dict[str, Any]
    """Everything, as `mica snapshot ls --json` has it."""


@dataclass(frozen=True)
class ImageInfo:
    """An image of the store."""

    references: list[str]
    digest: str
    platform: str
    layers: int
    size: int
    """Bytes."""

    @classmethod
    def of(cls, said: dict[str, Any]) -> ImageInfo:
        """What `mica images --json` says."""
        return cls(
            references=[str(name) for name in said["references"]],
            digest=str(said["manifest_digest"]),
            platform=str(said["platform"]),
            layers=int(said["layers"]),
            size=int(said["size"]),
        )


@dataclass(frozen=True)
class VolumeInfo:
    """A volume: a disk with a name."""

    name: str
    size: int
    """Bytes of its filesystem."""
    allocated: int
    """Bytes that it takes on the host."""
    sandboxes: list[str]
    """IDs of those that use it."""

    @classmethod
    def of(cls, said: dict[str, Any]) -> VolumeInfo:
        """What `mica volume ls --json` says."""
        users = [str(user) for user in said["sandboxes"]]
        return cls(str(said["name"]), int(said["size"]), int(said["allocated"]), users)


@dataclass(frozen=True)
class Change:
    """A path that a sandbox has changed."""

    path: str
    kind: str
    """`added`, `changed` or `deleted`."""
