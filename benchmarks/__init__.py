"""Measurements of the library, by what they answer; each script runs as a module.

- `speed`: how fast missions are flown, observed and learned from.
- `learning`: which settings make a team learn well.
- `reference`: whether the library computes what a plain implementation of the mission computes.
- `figures`: the figures of the documentation.
- `helpers`: what the scripts share.

Results are in `benchmarks/results`, with the machine, the versions and the command.
"""
