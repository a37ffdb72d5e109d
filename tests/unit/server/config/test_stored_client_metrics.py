"""The settings of subscriptions to client metrics."""

import sys

import pytest

import kcore
from kcore import errors
from kcore.metadata import znodes
from kcore.metadata.memory_store import MemoryStore, MemoryTree
from kcore.server.config.config_changes import ConfigOperation
from kcore.server.config.stored_client_metrics import ATTRIBUTES, StoredClientMetrics
from tests.unit.server.client import Client
from tests.unit.server.config.test_altering_configs import (
    APPEND,
    DELETE,
    INVALID_CONFIG,
    INVALID_REQUEST,
    METRICS,
    SET,
    SUBTRACT,
    ask,
    describe,
    resource_of,
)

DEFAULTS = {"metrics": ("", 5), "interval.ms": ("300000", 5), "match": ("", 5)}


@pytest.fixture
def stored():
    return StoredClientMetrics(MemoryStore(MemoryTree()), is_member=False)


def alter(stored, name, *changes):
    stored.alter(name, [ConfigOperation(what, op, value) for what, op, value in changes])


@pytest.mark.parametrize("interval", ["100", "3600000"])
def test_ADM_26_a_subscription_has_beginnings_of_names_an_interval_and_what_a_client_must_match(stored, interval):
    match = ",".join(f"{attribute}=a.*" for attribute in ATTRIBUTES)
    alter(stored, "m", ("metrics", SET, "a.b,c"), ("interval.ms", SET, interval), ("match", SET, match))
    assert stored.config_of("m") == {"metrics": "a.b,c", "interval.ms": interval, "match": match}
    alter(stored, "m", ("metrics", APPEND, "d"), ("match", DELETE, None))
    alter(stored, "m", ("metrics", SUBTRACT, "a.b"))
    assert stored.config_of("m") == {"metrics": "c,d", "interval.ms": interval}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (("interval", SET, "1000"), errors.InvalidRequest("Unknown client metrics configuration: interval ")),
        (("interval.ms", SET, "99"), errors.InvalidRequest("99")),
        (("interval.ms", SET, "3600001"), errors.InvalidRequest("3600001")),
        (("interval.ms", SET, "often"), errors.InvalidRequest("often")),
        (("match", SET, "client_id"), errors.InvalidConfig("Illegal client matching pattern: client_id ")),
        (("match", SET, "client_id="), errors.InvalidConfig("Illegal client matching pattern: client_id= ")),
        (("match", SET, "client=a"), errors.InvalidConfig("NAME one of client_instance_id, client_id, ")),
        (("match", SET, "client_id=a,client_id=("), errors.InvalidConfig("client_id=(: missing )")),
        (("match", APPEND, "client_id=("), errors.InvalidConfig("client_id=(: missing )")),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_ADM_26_what_a_subscription_cannot_have_is_refused_and_changes_nothing(stored, change, error):
    alter(stored, "m", ("interval.ms", SET, "1000"))
    with pytest.raises(type(error)) as raised:
        alter(stored, "m", ("metrics", SET, "a"), change)
    assert str(error) in str(raised.value)
    assert stored.config_of("m") == {"interval.ms": "1000"}


def test_ADM_26_a_subscription_needs_a_name(stored):
    with pytest.raises(errors.InvalidRequest, match="must not be empty"):
        alter(stored, "", ("metrics", SET, "a"))


def test_ADM_26_without_re2_a_pattern_is_refused_with_what_to_install_and_other_settings_can_be_changed(
    stored, monkeypatch
):
    alter(stored, "m", ("match", SET, "client_id=a"))
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(errors.InvalidConfig, match=r"install kcore\[regex\]"):
        alter(stored, "m", ("match", SET, "client_id=b"))
    alter(stored, "m", ("interval.ms", SET, "1000"))
    assert stored.config_of("m") == {"match": "client_id=a", "interval.ms": "1000"}


def test_a_reading_that_finds_nothing_new_does_not_replace_the_settings(stored):
    alter(stored, "m", ("metrics", SET, "a"))
    before = stored.configs
    stored.read_all()
    stored.read_changed([f"{znodes.CLIENT_METRICS_CONFIGS}/m", f"{znodes.GROUP_CONFIGS}/m"])
    assert stored.configs is before
    alter(stored, "m", ("metrics", SET, "b"))
    assert stored.configs is not before


def test_ADM_32_a_subscription_is_set_described_listed_and_deleted_as_kafkas_tools_do_it(tmp_path):
    with kcore.Broker(tmp_path) as broker:
        with Client(broker) as client:
            assert describe(client, METRICS, "a/b ~") == (0, DEFAULTS)
            change = resource_of(METRICS, "a/b ~", ("metrics", SET, "a."), ("interval.ms", SET, "1000"))
            assert ask(client, change) == [0]
        broker.restart()
        with Client(broker) as client:
            assert describe(client, METRICS, "a/b ~") == (
                0,
                {**DEFAULTS, "metrics": ("a.", 7), "interval.ms": ("1000", 7)},
            )
            # The tool deletes each setting that it has been shown.
            assert ask(client, resource_of(METRICS, "a/b ~", *((name, DELETE, None) for name in DEFAULTS))) == [0]
            assert describe(client, METRICS, "a/b ~") == (0, DEFAULTS)
            assert describe(client, METRICS, "")[0] == INVALID_REQUEST
            assert ask(client, resource_of(METRICS, "m", ("match", SET, "x"))) == [INVALID_CONFIG]
