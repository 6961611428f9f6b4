"""A Runpod Serverless vLLM worker whose heart is speculative decoding."""

from importlib.metadata import version

__version__ = version("specworker")
