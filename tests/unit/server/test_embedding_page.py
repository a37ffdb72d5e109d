"""Every example in docs/embedding.md runs, in the order of the page."""

from tests.pages import python_examples


def test_the_examples_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    examples = python_examples("docs/embedding.md")
    assert len(examples) == 8
    for example in examples:
        example.evaluate()
