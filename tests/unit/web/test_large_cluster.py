"""A page of a cluster of 2,000 topics and 1,000 groups asks for what it shows, never for all."""

import pytest

from bench.flow.fake_cluster import FakeCluster, serving
from kcore.protocol.api_keys import ApiKey
from kcore.protocol.headers import decode_request_header
from kcore.protocol.messages import request_class
from kcore.web.answer_times import AnswerTimes
from kcore.web.sampler import WATCHED, Sampler
from tests.unit.web.pages import cells, opened

TOPICS, PARTITIONS, GROUPS = 2000, 10, 1000


class CountingCluster(FakeCluster):
    """asked: (api, how many topics, partitions or groups a request names, None for all)."""

    def __init__(self):
        super().__init__(TOPICS, PARTITIONS, GROUPS)
        self.asked = []

    def answer(self, frame):
        header = decode_request_header(frame)
        request = request_class(header.api_key).decode(frame, header.api_version, header.body_position)
        self.asked.append((header.api_key, self.size_of(header.api_key, request)))
        return super().answer(frame)

    @staticmethod
    def size_of(api, request):
        if api == ApiKey.METADATA:
            return None if request.topics is None else len(request.topics)
        if api == ApiKey.LIST_OFFSETS:
            return sum(len(topic.partitions) for topic in request.topics)
        return {ApiKey.DESCRIBE_GROUPS: lambda: len(request.groups), ApiKey.OFFSET_FETCH: lambda: 1}.get(
            api, lambda: 0
        )()


@pytest.fixture(scope="module")
def large():
    cluster = CountingCluster()
    with serving(cluster):
        yield cluster


def stop_threads(monkeypatch):
    for thread in (Sampler, AnswerTimes):
        monkeypatch.setattr(thread, "start", lambda thread: None)


@pytest.fixture
def page(large, monkeypatch):
    """Asks for an address: the page, and what the cluster was asked for it.  The site's threads stand still."""
    stop_threads(monkeypatch)
    with opened([large.address]) as (client, site):
        site.sampler.step()

        def page(address):
            large.asked.clear()
            answer = client.get(address)
            assert answer.status_code == 200
            return answer.text, list(large.asked)

        page.sampler = site.sampler
        yield page


@pytest.mark.parametrize(
    ("address", "rows", "topics", "partitions", "groups"),
    [
        ("/", 3, 0, 0, 0),
        ("/topics?page=7", 50, 0, 0, 0),
        ("/topics?q=19&sort=-partitions", 50, 0, 0, 0),
        ("/topic?name=topic-00007", 10, 3, 20, 0),
        ("/groups?page=3", 25, 0, 0, 0),
        ("/groups?page=3&lag=1", 25, 25, 250, 25),
        ("/group?id=group-00007", 11, 1, 10, 2),
    ],
)
def test_a_page_asks_for_what_it_shows(page, address, rows, topics, partitions, groups):
    text, asked = page(address)
    assert len(cells(text)) == rows
    assert (ApiKey.METADATA, None) not in asked
    sizes = {api: sum(size for other, size in asked if other == api) for api, _ in asked}
    assert sizes.get(ApiKey.METADATA, 0) <= topics
    assert sizes.get(ApiKey.LIST_OFFSETS, 0) <= partitions
    assert sizes.get(ApiKey.DESCRIBE_GROUPS, 0) + sizes.get(ApiKey.OFFSET_FETCH, 0) <= groups


def test_the_topics_whose_pages_were_opened_last_are_sampled(page, large):
    for number in range(WATCHED + 5):
        page(f"/topic?name=topic-{number:05}")
    page(f"/topic?name=topic-{5:05}")
    large.asked.clear()
    page.sampler.step()
    assert set(page.sampler.topics.names()) == {f"topic-{number:05}" for number in range(5, WATCHED + 5)}
    sampled = sum(size for api, size in large.asked if api == ApiKey.LIST_OFFSETS)
    assert sampled == WATCHED * PARTITIONS
    assert page.sampler.cluster_rates() == []


def test_the_metadata_of_all_topics_are_asked_for_again_only_after_a_rest(page, large):
    page.sampler.step()
    large.asked.clear()
    page.sampler.step()
    assert (ApiKey.METADATA, None) not in large.asked


def test_the_list_of_topics_is_awaited_only_for_a_moment(large, monkeypatch):
    stop_threads(monkeypatch)
    with opened([large.address]) as (client, site):
        text = client.get("/topics").text
        assert "The list of topics is being read" in text and 'hx-trigger="every 1s"' in text
        site.sampler.step()
        text = client.get("/topics").text
        assert len(cells(text)) == 50 and 'hx-trigger="every 10s"' in text
