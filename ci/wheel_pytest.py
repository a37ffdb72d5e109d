"""What the fixtures of an installed wheel must do: pytest finds them by the wheel's entry point."""

import sys

import pytest


@pytest.mark.kafka({"orders": 3})
def test_the_fixture_of_the_wheel(kafka, kafka_session, request):
    assert request.config.pluginmanager.has_plugin("kcore.testing.pytest_plugin")
    kafka.broker.produce("orders", "a book", partition=2)
    (record,) = kafka.wait_for_records("orders", 1)
    assert record.value == b"a book"
    assert list(kafka_session.broker.consume("orders")) == []


def test_pytest_leaves_the_asserts_of_the_wheel_as_they_are(kafka):
    loaders = {name: type(getattr(module, "__loader__", None)) for name, module in sys.modules.items()}
    rewritten = {name for name, loader in loaders.items() if loader is type(__loader__)}
    assert __name__ in rewritten
    of_kcore = {name for name in rewritten if name.split(".")[0] == "kcore"}
    assert of_kcore <= {"kcore", "kcore.testing", "kcore.testing.pytest_plugin"}
