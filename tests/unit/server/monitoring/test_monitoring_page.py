"""The examples of docs/monitoring.md run."""

from tests.pages import python_examples


def test_the_examples_of_the_page_run():
    examples = python_examples("docs/monitoring.md")
    assert len(examples) == 2
    for example in examples:
        example.evaluate()
