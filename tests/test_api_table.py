"""docs/compatibility.md lists the APIs that the broker serves, as kcore.protocol.api_keys has them.

`python -m tests.test_api_table` writes the table anew.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

from kcore.protocol.api_keys import INTER_BROKER, SINCE, TELEMETRY, ApiKey, served_apis

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "compatibility.md"
BEGIN = "<!-- apis: begin.  Written by `python -m tests.test_api_table`. -->\n"
END = "<!-- apis: end -->\n"


def api_name(api_key: ApiKey) -> str:
    """CREATE_TOPICS -> CreateTopics, the name in Kafka's documentation."""
    return "".join(word.capitalize() for word in api_key.name.split("_"))


def table() -> str:
    lines = ["| key | API | versions | since kcore |", "|---|---|---|---|"]
    apis = served_apis(is_cluster_member=True, has_telemetry=True)
    for api_key, (first, last) in apis.items():
        mark = " (members of a cluster)" if api_key in INTER_BROKER else ""
        mark = " (with a telemetry_receiver)" if api_key in TELEMETRY else mark
        lines.append(f"| {int(api_key)} | {api_name(api_key)}{mark} | {first}-{last} | {SINCE[api_key]} |")
    missing = [api_name(api_key) for api_key in ApiKey if api_key not in apis]
    text = f"Not served: {', '.join(missing)}. A request for one of them closes the connection, as in Kafka."
    return "\n".join([*lines, "", *textwrap.wrap(text, 120), ""])


def page_with_table(page: str) -> str:
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}{table()}{END}{rest.split(END)[1]}"


def test_the_table_of_apis_is_that_of_the_code():
    page = PAGE.read_text()
    assert page == page_with_table(page), "run python -m tests.test_api_table"


def test_each_api_has_the_release_since_which_it_is_served():
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert SINCE.keys() == served_apis(is_cluster_member=True, has_telemetry=True).keys()
    assert [release for release in set(SINCE.values()) if f"\n## {release}" not in changelog] == []


if __name__ == "__main__":
    PAGE.write_text(page_with_table(PAGE.read_text()))
