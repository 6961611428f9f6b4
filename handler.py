"""The container's entry point: runs the worker that the environment describes."""

import os
import sys

from specworker.main import main

if __name__ == "__main__":  # vLLM's processes import this module again
    sys.exit(main(os.environ, sys.argv[1:]))
