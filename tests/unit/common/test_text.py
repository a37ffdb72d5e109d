"""What people read of values and errors."""

import pytest

from kcore.common.text import plain_error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "Connection refused"),
        (TimeoutError(110, "127.0.0.1:9092: no answer"), "127.0.0.1:9092: no answer"),
        (FileNotFoundError(2, "No such file or directory", "a/b"), "a/b: No such file or directory"),
        (PermissionError(13, "Permission denied", b"a/b\xff"), "a/b\udcff: Permission denied"),
        (OSError(18, "Invalid cross-device link", "a", None, "b"), "a -> b: Invalid cross-device link"),
        (OSError(9, "Bad file descriptor", 7), "Bad file descriptor"),
        (OSError("no number"), "no number"),
        (ValueError("[Errno 1] is its own text"), "[Errno 1] is its own text"),
    ],
)
def test_an_error_of_the_system_is_told_by_file_and_reason_without_its_number(error, text):
    assert plain_error(error) == text
