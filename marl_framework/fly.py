"""Fly a team whose UAVs decide in the air, each from what it has read and heard.

Run this file only as `python -m marl_framework.fly`: importing it would hide the function
`marl_framework.fly`.
"""

from __future__ import annotations

import sys

from marl_framework.flying.options import main

if __name__ == "__main__":
    sys.exit(main())
