"""Draws bench/results/fs.png from bench/results/fs.json. Needs python3-matplotlib."""

import json
import pathlib

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot, ticker

RESULTS = pathlib.Path(__file__).resolve().parent.parent / "results"
LOOKS = {
    "merged/pmem": ("#1b6e3c", "o"),
    "stacked/pmem": ("#7fc97f", "o"),
    "merged/blk": ("#1f4e9c", "s"),
    "stacked/blk": ("#8fb8e8", "s"),
    "virtiofs": ("#c0392b", "D"),
}


def main() -> None:
    result = json.loads((RESULTS / "fs.json").read_text())
    names = list(result["workloads"])
    figure, axes = pyplot.subplots(figsize=(9, 0.36 * len(names) + 1.6))
    for who, (colour, marker) in LOOKS.items():
        ratios = [
            result["workloads"][name][who]["median"] / result["workloads"][name]["ext4"]["median"]
            for name in names
        ]
        axes.scatter(ratios, range(len(names)), c=colour, marker=marker, s=34, label=who, zorder=3)
    axes.axvline(1.0, color="#333333", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.grid(True, axis="both", color="#dddddd", linewidth=0.6)
    axes.set_xlabel("median time, ext4 on virtio-blk = 1 (less is better, log scale)")
    axes.legend(loc="upper center", bbox_to_anchor=(0.4, 1.07), ncol=5, fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(RESULTS / "fs.png", dpi=110)


if __name__ == "__main__":
    main()
