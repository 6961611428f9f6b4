from specworker import misspelt


def test_a_misspelt_variable_of_speculation_is_named_with_what_was_meant() -> None:
    environment = {
        "SPECULATIVE_MODELS": "x",
        "NUM_SPECULATIVE_TOKEN": "3",
        "NGRAM_XYZ": "1",
        "SPECULATIVE_MODEL": "x",
        "PATH": "/bin",
    }
    assert misspelt.notes(environment) == [
        "SPECULATIVE_MODELS: no effect, there is no such variable; did you mean SPECULATIVE_MODEL?",
        "NUM_SPECULATIVE_TOKEN: no effect, there is no such variable; "
        "did you mean NUM_SPECULATIVE_TOKENS?",
        "NGRAM_XYZ: no effect, there is no such variable",
    ]
