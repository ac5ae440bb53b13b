"""What the adapters' tests share: the store and image of the SDK's own tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from micabox import Sandbox
from tests.support import make


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    """A sandbox of a module's tests."""
    with make() as made:
        yield made


@pytest.fixture(autouse=True, scope="session")
def nothing_is_left() -> Iterator[None]:
    """No sandbox outlives the tests."""
    yield
    left = Sandbox.list(all=True)
    assert not left, left
