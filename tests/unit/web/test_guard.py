"""Which hosts the page answers, and which headers a browser gets."""

import pytest

from kcore.web.guard import Hosts, host_of
from tests.unit.web.pages import opened


@pytest.mark.parametrize(
    ("listening", "names", "header", "is_answered"),
    [
        ("127.0.0.1", (), "127.0.0.1:8080", True),
        ("127.0.0.1", (), "localhost:8080", True),
        ("127.0.0.1", (), "LocalHost", True),
        ("::1", (), "[::1]:8080", True),
        ("127.0.0.1", (), "attacker.example:8080", False),
        ("127.0.0.1", (), "127.0.0.1.attacker.example", False),
        ("127.0.0.1", (), "192.0.2.1:8080", False),
        ("127.0.0.1", (), "", False),
        ("192.0.2.1", (), "192.0.2.1:8080", True),
        ("0.0.0.0", (), "192.0.2.1:8080", True),
        ("::", (), "[2001:db8::1]:8080", True),
        ("0.0.0.0", (), "attacker.example", False),
        ("0.0.0.0", ("kafka.example",), "Kafka.Example:80", True),
    ],
)
def test_only_the_names_of_this_machine_are_answered(listening, names, header, is_answered):
    assert (header in Hosts(listening, names)) == is_answered


def test_the_host_of_a_header_has_no_port():
    assert [host_of(header) for header in ("a:1", "[::1]:1", "[::1", "A")] == ["a", "::1", "::1", "a"]


@pytest.mark.parametrize("path", ["/", "/nothing/there", "/static/page.css"])
def test_a_page_of_another_name_gets_no_answer(tmp_path, path):
    with opened(directories=[tmp_path], base_url="http://attacker.example") as (client, _):
        answer = client.get(path)
        assert (answer.status_code, "kcore web does not answer" in answer.text) == (421, True)


@pytest.mark.parametrize("path", ["/", "/nothing/there", "/static/page.css"])
def test_every_answer_forbids_scripts_and_styles_of_others(tmp_path, path):
    with opened(directories=[tmp_path]) as (client, _):
        policy = client.get(path).headers["content-security-policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["frame-ancestors"] == "'none'"
    assert {rules[name] for name in ("script-src", "style-src", "connect-src", "form-action")} == {"'self'"}
