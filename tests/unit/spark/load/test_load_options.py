from types import SimpleNamespace

import pytest

from kcore.spark.load.load_options import LoadOptions
from kcore.spark.options import OptionError
from kcore.tools.spark import spark


def options_of(*words):
    context = spark.commands["load"].make_context("load", list(words))
    return LoadOptions.from_arguments(SimpleNamespace(**context.params))


def test_the_arguments_of_a_sweep_become_options():
    options = options_of("--mode", "append", "--tasks", "1,2,4", "--seconds", "3.5", "--codec", "zstd", "/a", "/b")
    assert options.tasks == (1, 2, 4)
    assert options.paths == ("/a", "/b")
    assert (options.seconds, options.codec) == (3.5, "zstd")


def test_client_settings_are_taken_over_and_secrets_are_not_shown():
    broker = ("--mode", "produce", "--bootstrap-servers", "h:9092", "--topic", "t")
    options = options_of(*broker, "--client", "acks=1", "--client", "sasl.password=a=b")
    assert options.client_settings == {"acks": "1", "sasl.password": "a=b"}
    assert options.config()["client.acks"] == "1"
    assert options.config()["client.sasl.password"] == "(hidden)"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--mode append --tasks 0 /a", "--tasks 0"),
        ("--mode append --tasks 2,x /a", "--tasks '2,x'"),
        ("--mode append --seconds 0 /a", "--seconds 0"),
        ("--mode append --seconds nan /a", "--seconds nan"),
        ("--mode append --warm-up=-1 /a", "--warm-up -1"),
        ("--mode append --record-size 0 /a", "--record-size 0"),
        ("--mode append --batch-size 999999999 /a", "--batch-size 999999999"),
        ("--mode append --log-size 0 /a", "--log-size 0"),
        ("--mode append", "--mode append needs a PATH"),
        ("--mode verify", "--mode verify needs a PATH"),
        ("--mode read --topic t /a", "--topic is for produce and fetch"),
        ("--mode produce --topic t", "--mode produce needs --bootstrap-servers"),
        ("--mode fetch --bootstrap-servers h:1", "--mode fetch needs --topic"),
        ("--mode fetch --bootstrap-servers h:1 --topic t /a", "takes no PATH (/a)"),
        ("--mode fetch --bootstrap-servers h:1 --topic t --client acks", "--client 'acks'"),
    ],
)
def test_an_argument_that_cannot_be_is_named(words, named):
    with pytest.raises(OptionError) as error:
        options_of(*words.split())
    assert named in str(error.value)


@pytest.mark.parametrize(("name", "value"), [("mode", "appendd"), ("codec", "brotli")])
def test_unknown_words_are_refused_from_python_too(name, value):
    with pytest.raises(OptionError, match=value):
        LoadOptions(**{"mode": "append", "tasks": (1,), "paths": ("/a",), name: value})
