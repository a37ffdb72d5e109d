"""The page of `kcore web` in a real browser.

KCORE_WEB_SCREENSHOTS=DIR has the pictures of docs/web.md made anew in that directory.
"""

import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import kcore
from tests.unit.tools.command import LOG, flip
from tests.unit.tools.test_groups import commit, coordinator, member
from tests.waiting import wait_until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no chromium: `apt-get install chromium` brings it; the other tests need none"
)
SCREENSHOTS = os.environ.get("KCORE_WEB_SCREENSHOTS")
#: What would run if a page did not escape it.
MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>\u202e\0"
PHONE = {"width": 375, "height": 700}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster with records, a busy group and a broker that is dead."""
    with kcore.Cluster(3, offsets_topic_num_partitions=1, log_segment_bytes=1 << 14) as cluster:
        cluster.create_topic("orders", partitions=4)
        cluster.create_topic("payments.settled", partitions=12)
        cluster.create_topic("a-topic-with-a-name-that-is-as-long-as-it-may-be-" + "x" * 200, partitions=1)
        leader = cluster.brokers[cluster.leader("orders", 0)]
        for number in range(400):
            value = f'{{"order": {number}, "city": "Zürich", "items": [{{"sku": "A-{number % 7}", "count": 2}}]}}'
            leader.produce("orders", value, key=f"customer-{number % 20}", partition=0, headers={"trace": b"\0\xff"})
        leader.produce("orders", MARKUP, key=MARKUP, partition=0, headers={MARKUP: MARKUP.encode()})
        with (
            coordinator(cluster, MARKUP) as (client, _),
            member(client, MARKUP, [0]) as (member_id, generation),
            coordinator(cluster, "billing") as (billing, _),
        ):
            commit(client, MARKUP, {("orders", 0): 7}, generation, member_id)
            commit(billing, "billing", {("orders", 0): 280})
            # Not the one that the page asks first, nor the groups' coordinator.
            victim = next(number for number in (2, 1) if number != cluster.leader("__consumer_offsets", 0))
            cluster.kill(victim)
            wait_until(lambda: victim not in cluster.isr("orders", 0))
            yield cluster


@pytest.fixture(scope="module")
def directory(cluster, tmp_path_factory):
    """A copy of a broker's files with a wrong byte and a segment that is missing."""
    leader = cluster.brokers[cluster.leader("orders", 0)]
    path = tmp_path_factory.mktemp("disk") / "kafka-logs"
    shutil.copytree(leader.data_dir, path, ignore=shutil.ignore_patterns("*.sock", ".lock"))
    flip(path / "orders-0" / LOG, 5000)
    missing = sorted((path / "orders-0").glob("*.log"))[2]
    for file in (path / "orders-0").glob(f"{missing.stem}.*"):
        file.unlink()
    return path


@pytest.fixture(scope="module")
def url(cluster, directory):
    alive = cluster.brokers[0].bootstrap_servers
    arguments = ["web", directory.name, "--bootstrap", alive, "--http", "127.0.0.1:0", "--http-admin"]
    command = [sys.executable, "-m", "kcore.tools.main", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=directory.parent)
    yield process.stdout.readline().split()[-1].rstrip("/")
    process.terminate()
    process.communicate()


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # No sandbox: it needs rights that a container may not give, and the pages are ours.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Tab:
    """A page of a browser, and what went wrong in it."""

    def __init__(self, browser, url, **options):
        self.context = browser.new_context(base_url=url, **options)
        self.page = self.context.new_page()
        self.errors = []
        self.page.on("console", lambda said: said.type in ("error", "warning") and self.errors.append(said.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("requestfailed", self._note_failure)
        self.page.on("response", lambda got: got.status >= 400 and self.errors.append(f"{got.url}: {got.status}"))
        self.page.on("dialog", lambda dialog: (self.errors.append(f"alert: {dialog.message}"), dialog.dismiss()))

    def _note_failure(self, request):
        if request.failure != "net::ERR_ABORTED":  # a download, or the page was left
            self.errors.append(f"{request.url}: {request.failure}")

    def open(self, address):
        """At the address, once nothing more is loaded."""
        self.page.goto(address, wait_until="networkidle")
        return self.page


@pytest.fixture
def tab(browser, url):
    """Makes a Tab; in the end none has had an error."""
    tabs = []

    def tab(**options):
        tabs.append(Tab(browser, url, **options))
        return tabs[-1]

    yield tab
    for opened in tabs:
        opened.context.close()
        assert opened.errors == []


ADDRESSES = [
    "/",
    "/topics",
    "/topics?internal=1&sort=-out",
    "/topic?name=orders",
    "/groups",
    "/group?id=billing",
    "/messages?topic=orders&partition=0",
    "/messages?topic=orders&partition=0&form=json",
    "/messages?topic=orders&partition=0&form=hex",
    "/messages?dir=0&log=orders-0&offset=0",
    "/message?topic=orders&partition=0&offset=400",
    "/search?topic=orders",
    "/directories",
    "/directory?dir=0",
    "/log?dir=0&log=orders-0",
    "/change/create-topic",
    "/change/delete-topic?topic=orders",
]


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_page_loads_without_errors_and_fits_a_phone(tab, address):
    page = tab(viewport=PHONE).open(address)
    assert page.title().endswith(" \N{EN DASH} kcore")
    assert page.locator("h1").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_a_script_that_a_page_does_not_have_in_a_file_is_refused_and_seen_here(browser, url):
    tab = Tab(browser, url)
    page = tab.open("/")
    page.evaluate("document.body.append(Object.assign(document.createElement('script'), {text: 'alert(3)'}))")
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<p style=\"color: red\">x</p>')")
    wait_until(lambda: page.evaluate("1") and len(tab.errors) >= 2)
    tab.context.close()
    assert all("Content Security Policy" in error for error in tab.errors)


@pytest.mark.parametrize("form", ["text", "json", "hex"])
def test_hostile_messages_and_group_ids_are_text(tab, form):
    opened = tab()
    page = opened.open(f"/messages?topic=orders&partition=0&form={form}")
    assert page.locator("main img, main script").count() == 0
    if form != "hex":
        assert "<script>alert(2)</script>\\u202e\\x00" in page.locator(".record").last.inner_text()
    page = opened.open("/groups")
    page.get_by_role("link", name="alert(2)").click()
    page.wait_for_load_state("networkidle")
    assert "<img src=x onerror=alert(1)>" in page.locator("h1").inner_text()
    assert "client of <img" in page.locator("main").inner_text()


def test_the_keyboard_reaches_links_and_fields_and_shows_where_it_is(tab):
    page = tab().open("/topics")
    seen = []
    while not seen or seen[-1] is not None:
        page.keyboard.press("Tab")
        seen.append(
            page.evaluate(
                """() => {
                    const element = document.activeElement, box = element.getBoundingClientRect();
                    const style = getComputedStyle(element);
                    const isSeen = box.width > 0 && box.left >= 0 && style.outlineStyle !== "none";
                    if (element === document.body) return null;
                    return [element.innerText || element.name, isSeen && parseFloat(style.outlineWidth) >= 2];
                }"""
            )
        )
    seen.pop()
    names = [name for name, _ in seen]
    assert names[:2] == ["Skip to the content", "Brokers"]
    assert [name for name, is_seen in seen if not is_seen] == []
    assert {"Topics", "q", "Show", "Topic", "orders"} <= {name.rstrip(" ▴") for name in names}
    field = page.locator("input[name=q]")
    field.focus()
    page.keyboard.type("settled")
    page.keyboard.press("Enter")
    page.wait_for_url("**/topics?q=settled")
    assert page.locator("tbody tr").count() == 1


def test_a_table_is_sorted_in_place(tab):
    page = tab().open("/topics")
    page.evaluate("window.isTheSame = true")
    page.get_by_role("link", name="Partitions").click()
    page.wait_for_url("**/topics?sort=partitions*")
    page.locator("th[aria-sort=ascending]", has_text="Partitions").wait_for()
    assert page.evaluate("window.isTheSame")


def test_a_table_is_refreshed_but_not_while_the_focus_is_in_it(tab, url, cluster):
    opened = tab()
    opened.page.clock.install()
    page = opened.open("/topics?q=new-")

    def create(name):
        cluster.create_topic(name, replication_factor=1)
        wait_until(lambda: name in urllib.request.urlopen(f"{url}/topics?q=new-").read().decode(), pause_s=0.2)

    create("new-1")
    page.clock.run_for(11_000)
    page.get_by_role("link", name="new-1").wait_for()
    create("new-2")
    page.get_by_role("link", name="new-1").focus()
    page.clock.run_for(31_000)
    assert page.evaluate("document.activeElement.innerText") == "new-1"
    assert page.get_by_role("link", name="new-2").count() == 0
    page.locator("input[name=q]").focus()
    page.clock.run_for(11_000)
    page.get_by_role("link", name="new-2").wait_for()


def test_plots_are_drawn_and_times_are_those_of_the_reader(tab):
    page = tab(timezone_id="Asia/Tokyo", locale="en-GB").open("/topic?name=orders")
    page.locator("canvas").wait_for()
    page.goto("/messages?topic=orders&partition=0")
    utc, shown = page.locator("time").first.evaluate("time => [time.title, time.textContent]")
    hour = int(re.search(r"T(\d\d):", utc)[1])
    assert f", {(hour + 9) % 24:02}:" in shown


def test_the_answer_times_of_the_brokers_are_lines_of_one_plot_that_differ(tab, cluster):
    opened = tab(viewport=PHONE)
    page = opened.open("/")
    figure = page.locator("figure", has_text="Answer time of each broker, in ms")
    # The colors of the first line and of the second one.
    drawn = """figure => {
        const canvas = figure.querySelector("canvas");
        const pixels = canvas ? canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data : [];
        let blue = 0, red = 0;
        for (let at = 0; at < pixels.length; at += 4) {
            if (pixels[at + 2] > pixels[at] + 100) blue++;
            if (pixels[at] > pixels[at + 2] + 50) red++;
        }
        return blue > 0 && red > 0;
    }"""
    wait_until(lambda: figure.evaluate(drawn), pause_s=0.2)
    labels = figure.locator(".u-legend .u-label").all_inner_texts()
    assert labels == ["time", *(f"broker {number}, ms" for number in sorted(cluster.brokers))]
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert all(box["x"] + box["width"] <= PHONE["width"] for box in boxes(figure.locator("canvas, .u-series")))
    assert re.search(r"answers after \d+\.\d\d ms", page.locator("#live tbody").inner_text())


def boxes(located):
    return [one.bounding_box() for one in located.all()]


def test_pages_work_without_javascript(tab):
    opened = tab(java_script_enabled=False)
    page = opened.open("/groups")
    page.get_by_role("link", name="With lag").click()
    assert page.locator("tr", has_text="billing").locator("td").last.inner_text() == "121"
    page = opened.open("/topics")
    page.get_by_role("link", name="Partitions").click()
    assert page.locator("tbody tr td").first.inner_text() != ""
    page = opened.open("/search?topic=orders")
    page.locator("input[name=text]").fill("customer-7")
    page.get_by_role("button", name="Search").click()
    page.get_by_text("Done, begun").wait_for()
    assert "20 records" in page.locator("main").inner_text()


def test_a_search_shows_its_end_without_a_reload(tab):
    page = tab().open("/search?topic=orders")
    page.locator("input[name=text]").fill("customer-7")
    page.keyboard.press("Enter")
    page.get_by_text("Done, begun").wait_for()
    assert page.locator(".record").count() == 20
    with page.expect_download() as download:
        page.get_by_role("link", name="Export as JSON lines").click()
    assert len(Path(download.value.path()).read_text().splitlines()) == 20


def test_a_dark_screen_gets_a_dark_page(tab):
    colors = {
        scheme: tab(color_scheme=scheme).open("/").evaluate("getComputedStyle(document.body).backgroundColor")
        for scheme in ("light", "dark")
    }
    assert colors == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 27)"}


def test_damage_and_gaps_are_on_the_map(tab):
    page = tab().open("/log?dir=0&log=orders-0")
    assert page.locator("svg .bad").count() == 1
    assert page.locator("svg .gap-back").count() == 1
    assert page.locator("svg .bad").evaluate("bar => getComputedStyle(bar).fill") == "rgb(179, 38, 30)"


@pytest.mark.skipif(SCREENSHOTS is None, reason="KCORE_WEB_SCREENSHOTS names no directory")
def test_the_pictures_of_the_docs_are_made(tab, cluster):
    leader = cluster.brokers[cluster.leader("orders", 0)]
    opened = tab(viewport={"width": 1100, "height": 700})
    opened.open("/topic?name=orders")
    for number in range(30):
        leader.produce("orders", "x" * 100, key=f"customer-{number % 20}", partition=0)
        opened.page.wait_for_timeout(1000)
    for name, address in (
        ("topic", "/topic?name=orders"),
        ("messages", "/messages?topic=orders&partition=0&offset=380&form=json"),
        ("log", "/log?dir=0&log=orders-0"),
    ):
        page = opened.open(address)
        page.wait_for_timeout(500)
        page.screenshot(path=f"{SCREENSHOTS}/web-{name}.png")
