"""The container's entry point."""

import sys

from specworker.main import run

if __name__ == "__main__":  # vLLM's processes import this module again
    sys.exit(run())
