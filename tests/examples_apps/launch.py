"""Runs an example as a program that may be killed at a crash point: ``python launch.py EXAMPLE LOG``."""

from __future__ import annotations

import os
import runpy
import sys

from holdfast.testing.crashes import arm_from_environment

if __name__ == "__main__":
    example, log = sys.argv[1:]
    output = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(output, stream)
    arm_from_environment()
    sys.argv[:] = [example]
    runpy.run_path(example, run_name="__main__")
