"""What the module says of itself, and of a machine that lacks something."""

import os
import pathlib
import unittest
from unittest import mock

import micabox
from micabox import AsyncSandbox, HostException, Sandbox, bundle
from micabox.model.options import Options

from .support import REPOSITORY


class ModuleTest(unittest.TestCase):
    def test_it_says_its_version(self) -> None:
        project = (REPOSITORY / "sdk" / "python" / "pyproject.toml").read_text()
        self.assertIn(f'\nversion = "{micabox.__version__}"\n', project)

    def test_help_lists_every_option_with_its_type_meaning_and_default(self) -> None:
        for create in (Sandbox.create, AsyncSandbox.create):
            for name in Options.__annotations__:
                self.assertRegex(
                    create.__doc__ or "", f"\n    {name}: .+\n        .+ Default: .+\n"
                )
            self.assertIn("    net: Literal['user', 'none']\n", create.__doc__ or "")

    def test_a_user_without_a_home_is_told_what_to_do(self) -> None:
        unknown = RuntimeError("Could not determine home directory.")
        without = {name: value for name, value in os.environ.items() if name != "XDG_CACHE_HOME"}
        with (
            mock.patch.dict(os.environ, without, clear=True),
            mock.patch.object(pathlib.Path, "home", side_effect=unknown),
            mock.patch.object(bundle, "SUMS", pathlib.Path(os.devnull)),
            self.assertRaises(HostException) as raised,
        ):
            bundle.guest()
        self.assertIn("$XDG_CACHE_HOME", raised.exception.hint or "")
