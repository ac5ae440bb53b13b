"""How far the pull of an image is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LayerProgress:
    """How far a layer is."""

    digest: str
    """Of its blob, as the manifest has it."""
    phase: str
    """`waiting`, `pulling`, `retrying`, `present` (it was here) or `done`."""
    done: int
    """Bytes that have arrived; fewer than before if it starts over."""
    total: int
    """Bytes of its blob."""
    reason: str | None = None
    """Why it is fetched again."""


@dataclass(frozen=True)
class PullProgress:
    """How far a pull is: all of it, so that only the last one counts."""

    phase: str
    """`resolving` (the registry is asked), `pulling`, `merging` (all layers are here) or `done`."""
    done: int
    """Bytes of layers that are here."""
    total: int
    """Bytes of all layers, as they are in the registry; 0 until they are known, and for an image that is here."""
    layers: tuple[LayerProgress, ...]

    @classmethod
    def of(cls, message: dict[str, Any]) -> PullProgress | None:
        """From a message; None if it is another one."""
        if message.get("type") != "progress":
            return None
        layers: list[dict[str, Any]] = message.get("layers") or []
        return cls(
            str(message.get("phase")),
            int(message.get("done") or 0),
            int(message.get("total") or 0),
            tuple(
                LayerProgress(
                    str(layer.get("digest")),
                    str(layer.get("phase")),
                    int(layer.get("done") or 0),
                    int(layer.get("total") or 0),
                    layer.get("reason"),
                )
                for layer in layers
            ),
        )


OnProgress = Callable[[PullProgress], Any]
