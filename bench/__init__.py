"""Measurements of the worker on the machine at hand."""
