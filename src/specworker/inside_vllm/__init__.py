"""What runs inside vLLM's own processes, imported there by dotted path."""
