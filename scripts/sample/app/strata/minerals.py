"""The table of minerals: a JSON file in the data directory."""

import json
from pathlib import Path


def load(directory):
    """Returns {name: {formula, hardness, system}}; hardness is on Mohs's scale."""
    return json.loads(Path(directory, "minerals.json").read_text(encoding="utf-8"))


def describe(name, facts):
    """One line for one mineral."""
    return f"{name:<12}{facts['formula']:<30}{facts['hardness']:>5}  {facts['system']}"
