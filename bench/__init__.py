"""Micabox beside what one would use otherwise, in one run, as ratios.

Every benchmark is one command from the repository's root, `python3 -m bench.NAME`.
It makes its own inputs (cached), writes its raw numbers to `bench/results/NAME.json`
and the tables of `bench/README.md` from them.
"""
