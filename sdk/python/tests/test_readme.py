"""The README's examples, in a machine."""

import re
import unittest

from .support import IMAGE, REPOSITORY, python


class ReadmeTest(unittest.TestCase):
    def test_its_examples_run(self) -> None:
        page = (REPOSITORY / "sdk" / "python" / "README.md").read_text()
        examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
        # Those of adapters are run in their frameworks: tests/adapters/test_readme.py.
        examples = [one for one in examples if "micabox.adapters" not in one]
        self.assertEqual(len(examples), 2)
        for example in examples:
            self.assertIn("python:3.12-slim", example)
            done = python(example.replace("python:3.12-slim", IMAGE))
            self.assertEqual(done.returncode, 0, done.stderr)
