"""Names that no honest broker or disk would have: everything of a cluster's answers and of a directory stays text."""

import os
import re
from html import unescape
from urllib.parse import parse_qs, urlsplit

import pytest

from bench.flow.fake_cluster import FakeCluster, serving
from kcore.protocol.messages import describe_configs as dc
from kcore.protocol.messages import describe_groups as de
from kcore.protocol.messages import list_groups as lg
from kcore.protocol.messages import offset_fetch as of
from tests.unit.web.pages import opened, opened_after_a_look

NAME = "<script>alert(1)</script>\"'&\u202e\u200f\0\x1b\n<img src=x onerror=alert(2)>"
SHOWN = "<script>alert(1)</script>\"'&\\u202e\\u200f\\x00\\x1b\\n<img src=x onerror=alert(2)>"
#: Markup that did not come from a template, and what a reader cannot see.
RAW = r"<script(?! src=\"/static/)|<img|\u202e|\u200f|\0|\x1b"


class HostileCluster(FakeCluster):
    def __init__(self):
        super().__init__(0, 0, 0)
        self.topics = {NAME: 2}
        self.groups = [NAME]

    def _metadata(self, names):
        response = super()._metadata(names)
        response.cluster_id = NAME
        for broker in response.brokers:
            broker.rack = NAME
        return response

    def _listed(self, request):
        listed = lg.ListedGroup(group_id=NAME, protocol_type=NAME, group_state=NAME)
        return lg.ListGroupsResponse(groups=[listed])

    def _described(self, request):
        member = de.DescribedGroupMember(member_id=NAME, group_instance_id=NAME, client_id=NAME, client_host=NAME)
        described = de.DescribedGroup(
            group_id=NAME, group_state=NAME, protocol_type=NAME, protocol_data=NAME, members=[member]
        )
        return de.DescribeGroupsResponse(groups=[described])

    def _configs(self, request):
        value = dc.DescribeConfigsResourceResult(name=NAME, value=NAME, config_source=1)
        result = dc.DescribeConfigsResult(resource_type=2, resource_name=NAME, configs=[value])
        return dc.DescribeConfigsResponse(results=[result])

    def _committed(self, request):
        partitions = [of.OffsetFetchResponsePartition(partition_index=1, committed_offset=7, metadata=NAME)]
        return of.OffsetFetchResponse(topics=[of.OffsetFetchResponseTopic(name=NAME, partitions=partitions)])


@pytest.fixture(scope="module")
def client():
    cluster = HostileCluster()
    with serving(cluster), opened_after_a_look([cluster.address]) as (client, _):
        yield client


@pytest.mark.parametrize(
    ("address", "parameters", "times"),
    [
        ("/", {}, 4),  # the cluster's id, and three racks
        ("/topics", {}, 1),
        ("/topic", {"name": NAME}, 4),  # twice in the title, a setting and its value
        ("/groups", {}, 3),
        ("/groups", {"lag": "1"}, 3),
        ("/group", {"id": NAME}, 10),
        ("/search", {"topic": NAME, "text": NAME}, 0),
        ("/topic", {"name": NAME + "x"}, 0),
    ],
)
def test_what_a_hostile_broker_answers_stays_text(client, address, parameters, times):
    text = client.get(address, params=parameters).text
    # A field has what the reader has written, as it is.
    assert not re.search(RAW, re.sub(r"<input[^>]*>", "", text))
    assert unescape(text).count(SHOWN) >= times


@pytest.mark.parametrize(
    ("page", "link", "parameter"),
    [("/topics", "/topic", "name"), ("/groups", "/group", "id"), ("/group?id=x", "/messages", "topic")],
)
def test_links_with_hostile_names_keep_them(client, page, link, parameter):
    (address,) = re.findall(rf'href="({link}\?[^"]*)"', client.get(page).text)
    assert parse_qs(urlsplit(unescape(address)).query)[parameter] == [NAME]


def test_directories_with_hostile_names_stay_text(tmp_path):
    names = [b"<img src=x onerror=alert(1)>-0", "a\u202eb\n-1".encode(), b"\xff\xfe-2"]
    for name in names:
        os.mkdir(os.path.join(os.fsencode(tmp_path), name))
    (tmp_path / "meta.properties").write_text("version=0\nbroker.id=0\n")
    with opened(directories=[tmp_path]) as (client, _):
        text = client.get("/directory?dir=0").text
        assert not re.search(RAW, text)
        for shown in ("<img src=x onerror=alert(1)>-0", "a\\u202eb\\n-1", "\\xff\\xfe-2"):
            assert shown in unescape(text)
        for address in re.findall(r'href="(/(?:log|messages)\?[^"]*)"', text):
            answer = client.get(unescape(address))
            # A name that is no UTF-8 cannot be in an address.
            assert answer.status_code == (404 if "%ED" in address or "%FF" in address else 200), answer.text
            assert not re.search(RAW, re.sub(r"<input[^>]*>", "", answer.text))
