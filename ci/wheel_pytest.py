"""What the fixtures of an installed wheel must do: pytest finds them by the wheel's entry point."""

import pytest


@pytest.mark.kafka({"orders": 3})
def test_the_fixture_of_the_wheel(kafka, kafka_session, request):
    assert request.config.pluginmanager.has_plugin("kcore.testing.pytest_plugin")
    kafka.broker.produce("orders", "a book", partition=2)
    (record,) = kafka.wait_for_records("orders", 1)
    assert record.value == b"a book"
    assert list(kafka_session.broker.consume("orders")) == []
