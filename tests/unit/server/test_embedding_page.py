"""Every example in docs/embedding.md runs, in the order of the page."""

import pathlib
import re

PAGE = pathlib.Path(__file__).resolve().parents[3] / "docs" / "embedding.md"


def test_the_examples_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text()
    examples = list(re.finditer(r"```python\n(.*?)```", text, re.S))
    assert len(examples) == 7
    scope: dict[str, object] = {}
    for example in examples:
        line = text.count("\n", 0, example.start(1))
        # Padded, so that a failure names the line of the page.
        exec(compile("\n" * line + example.group(1), str(PAGE), "exec"), scope)
