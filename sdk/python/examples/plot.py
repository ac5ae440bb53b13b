"""A data scientist's cell: it draws a plot in the sandbox, which is copied out.

    python3 plot.py out.png

The image needs matplotlib: `quay.io/jupyter/scipy-notebook`, or one of your own, as by

    with Sandbox.create("python:3.12-slim", upper="disk:2g") as box:
        box.commands.run("pip install matplotlib", timeout=None)
        box.commit("plots")
"""

from __future__ import annotations

import pathlib
import sys

from micabox import Sandbox

DATA = "month,rain\n" + "".join(f"{month},{(month * 37) % 90}\n" for month in range(1, 13))
CELL = """
import csv
import matplotlib.pyplot as plt

with open("/tmp/rain.csv") as file:
    rows = list(csv.DictReader(file))
figure, axes = plt.subplots(figsize=(6, 4), dpi=100)
axes.bar([row["month"] for row in rows], [float(row["rain"]) for row in rows])
axes.set(title="Rain", xlabel="month", ylabel="mm")
figure.savefig("/tmp/rain.png")
sum(float(row["rain"]) for row in rows)
"""


def main(out: str) -> None:
    with Sandbox.create("plots") as box:
        box.files.write("/tmp/rain.csv", DATA)
        done = box.run_code(CELL, timeout=120)
        if done.error:
            raise SystemExit(done.error.traceback)
        pathlib.Path(out).write_bytes(box.files.read("/tmp/rain.png", "bytes"))
        print(f"{done.text} mm in a year; the plot is {out}")


if __name__ == "__main__":
    main(sys.argv[1])
