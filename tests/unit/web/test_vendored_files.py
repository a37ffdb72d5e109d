"""The scripts of others that the page loads are those that were published, and their licenses are here."""

import hashlib
import re
from pathlib import Path

import kcore

STATIC = Path(kcore.__file__).parent / "web" / "static"
ROOT = STATIC.parents[2]
OWN = {"page.css", "page.js", "icon.svg", "vendored.sha256"}


def recorded():
    return dict(reversed(line.split()) for line in (STATIC / "vendored.sha256").read_text().splitlines())


def test_each_file_of_others_is_the_one_that_was_published():
    hashes = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in STATIC.iterdir()}
    assert {name: digest for name, digest in hashes.items() if name not in OWN} == recorded()


def test_each_file_of_others_has_its_license_and_is_named_in_notice():
    notice = (ROOT / "NOTICE").read_text()
    for name in recorded():
        work = name.partition(".")[0]
        assert (STATIC / f"{work}.LICENSE").stat().st_size > 0
        assert name.endswith(".LICENSE") or name in notice


def test_the_pages_load_nothing_from_elsewhere():
    for path in [*(STATIC.parent / "templates").iterdir(), *(STATIC / name for name in OWN if name.startswith("page"))]:
        assert not re.search(r"https?:|//\w", re.sub(r"^//.*|^\s*// .*", "", path.read_text(), flags=re.M)), path.name
