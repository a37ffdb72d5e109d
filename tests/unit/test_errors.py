"""Kafka's error codes on our exception classes."""

import pytest

from kcore import errors


def api_errors():
    return [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.ApiError)]


def with_code():
    return [cls for cls in api_errors() if "code" in vars(cls)]


def test_every_code_from_minus_1_to_136_but_0_has_one_class():
    assert sorted(cls.code for cls in with_code()) == [-1, *range(1, 137)]
    for cls in with_code():
        assert errors.for_code(cls.code) is cls
        assert errors.code_of(cls("why")) == cls.code


def test_V22_10_code_6_has_its_newer_name():
    assert errors.for_code(6) is errors.NotLeaderOrFollower and errors.NotLeaderOrFollower.retriable


def test_every_error_has_a_docstring_that_says_when_it_is_sent():
    assert [cls.__name__ for cls in with_code() if not (cls.__doc__ or "").strip()] == []


def test_an_unknown_code_and_a_foreign_exception_are_unknown_server_errors():
    assert errors.for_code(9999) is errors.UnknownServerError
    assert errors.code_of(ValueError("x")) == errors.code_of(errors.LogError("x")) == -1


def test_a_second_class_with_the_same_code_fails_where_it_is_defined():
    with pytest.raises(TypeError, match="error code 1 belongs to both OffsetOutOfRange and Another"):

        class Another(errors.ApiError):
            code = 1


def test_a_class_derived_from_a_coded_one_keeps_its_code():
    class Special(errors.InvalidRequest):
        pass

    assert errors.code_of(Special("x")) == 42 and errors.for_code(42) is errors.InvalidRequest
