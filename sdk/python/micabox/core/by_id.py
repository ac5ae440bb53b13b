"""Methods of a sandbox that are also called on its class, as E2B's are: with its name or ID first."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")


class ByIdToo(Generic[S, P, R]):
    """Makes such a method. The class has `_on`, which finds the sandbox and calls the method on it."""

    def __init__(self, method: Callable[Concatenate[S, P], R], absent: Any = None) -> None:
        self._method = method
        # What is returned where no sandbox has this name or ID; None for an exception.
        self._absent = absent

    @overload
    def __get__(self, instance: None, owner: type[Any]) -> Callable[Concatenate[str, P], R]: ...

    @overload
    def __get__(self, instance: S, owner: type[Any]) -> Callable[P, R]: ...

    def __get__(self, instance: Any, owner: type[Any]) -> Any:
        if instance is not None:
            return MethodType(self._method, instance)

        @functools.wraps(self._method)
        def on(sandbox_id: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(sandbox_id, owner):
                return self._method(sandbox_id, *args, **kwargs)

            def call(sandbox: Any) -> R:
                return self._method(sandbox, *args, **kwargs)

            return owner._on(sandbox_id, call, self._absent)

        return on


def by_id_or_false(method: Callable[Concatenate[S, P], R]) -> ByIdToo[S, P, R]:
    """The same, for a method that returns False where no sandbox has this name or ID."""
    return ByIdToo(method, False)
