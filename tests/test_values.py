import pytest

from specworker import values


@pytest.mark.parametrize("text", ["", " ", "\t\n", "none", "None", " NONE ", "null", "Null"])
def test_what_consoles_send_for_an_empty_field_means_unset(text: str) -> None:
    assert values.is_unset(text)


@pytest.mark.parametrize("text", ["0", "false", "nil", "-", "auto", "[]", "nonesuch"])
def test_every_other_text_means_that_the_variable_is_set(text: str) -> None:
    assert not values.is_unset(text)


def test_a_variables_text_is_taken_without_blanks_around_it() -> None:
    environment = {"A": " a b ", "B": " ", "C": "None"}
    assert [values.text_of(environment, name) for name in "ABCD"] == ["a b", None, None, None]


@pytest.mark.parametrize("text", ["0", "00", "0.0", "0.", "-0", "+0"])
def test_zero_is_recognised_however_it_is_written(text: str) -> None:
    assert values.ZERO.fullmatch(text)


@pytest.mark.parametrize("text", ["", "10", "0.5", "0x0", ".", "zero"])
def test_nothing_else_is_a_zero(text: str) -> None:
    assert not values.ZERO.fullmatch(text)


@pytest.mark.parametrize("text", ["true", "True", "TRUE", "1", "yes", "Yes", "on", "ON", " true "])
def test_true_in_every_spelling(text: str) -> None:
    assert values.parse_boolean(text) is True


@pytest.mark.parametrize("text", ["false", "False", "FALSE", "0", "no", "No", "off", "OFF", "\t0"])
def test_false_in_every_spelling(text: str) -> None:
    assert values.parse_boolean(text) is False


@pytest.mark.parametrize("text", ["", "2", "y", "t", "truee", "enabled", "None"])
def test_a_boolean_is_never_guessed(text: str) -> None:
    with pytest.raises(ValueError, match="is not a boolean"):
        values.parse_boolean(text)


@pytest.mark.parametrize("value", [True, False, None])
def test_a_value_that_is_no_text_is_left_to_the_type_check(value: object) -> None:
    assert values.parse_boolean(value) is value
    assert values.parse_integer(value) is value
    assert values.parse_lower(value) is value
    assert values.parse_json_object(value) is value


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("1e+06", "1000000"),
        ("1.5e+06", "1500000"),
        ("1E6", "1000000"),
        ("-2e3", "-2000"),
        ("1e-3", "1e-3"),
        ("1.5e0", "1.5e0"),
        ("1e999", "1e999"),
        ("7", "7"),
        ("7.0", "7.0"),
        ("e6", "e6"),
        ("auto", "auto"),
    ],
)
def test_only_an_integer_in_exponent_form_is_written_out(text: str, plain: str) -> None:
    assert values.plain_integer(text) == plain


@pytest.mark.parametrize(
    ("text", "number"), [("7", 7), (" 7 ", 7), ("-7", -7), ("+7", 7), ("0", 0), ("1e+06", 10**6)]
)
def test_an_integer_in_digits_or_in_exponent_form(text: str, number: int) -> None:
    assert int(values.parse_integer(text)) == number


@pytest.mark.parametrize("text", ["", "7.5", "7.0", "1_000", "0x10", "1e-3", "1e999", "seven", "-"])
def test_an_integer_is_never_guessed(text: str) -> None:
    with pytest.raises(ValueError, match="is not an integer"):
        values.parse_integer(text)


def test_the_case_of_a_choice_does_not_matter() -> None:
    assert values.parse_lower("EAGLE3") == "eagle3"


def test_a_json_object_is_parsed() -> None:
    assert values.parse_json_object(' {"a": [1, null]} ') == {"a": [1, None]}


@pytest.mark.parametrize("text", ["{bad", "", "{'a': 1}", '{"a": 1} x'])
def test_broken_json_is_refused_with_the_place_of_the_fault(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not valid JSON \(.*column \d+"):
        values.parse_json_object(text)


@pytest.mark.parametrize("text", ["[]", "1", '"text"', "null", "true"])
def test_json_that_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is JSON, but not an object"):
        values.parse_json_object(text)


def test_a_value_is_shown_on_one_line() -> None:
    assert values.shown(" two\nlines\t here ") == "two lines here"


def test_a_long_value_is_shown_in_part_with_its_length() -> None:
    assert values.shown("a" * 80) == "a" * 80
    assert values.shown("a" * 81) == "a" * 80 + "… (81 characters)"
    assert values.shown("abc", limit=2) == "ab… (3 characters)"
