"""Benchmarks of the library; each script runs as a module.

- `speed`: speed of flying, observing and learning.
- `learning`: settings that make a team learn well.
- `reference`: comparison with plain implementations of the mission and with the published code.
- `gpu`: all checks and measurements of a GPU in one run.
- `figures`: figures of the documentation.
- `helpers`: code that the scripts share.

Results are in `benchmarks/results`, with the machine, the versions and the command.
"""

COMMIT = "BENCHMARKS_COMMIT"
"""Environment variable with the commit of a copy without `.git`."""
