"""The example of docs/monitoring.md runs."""

from tests.pages import python_examples


def test_the_example_of_the_page_runs():
    (example,) = python_examples("docs/monitoring.md")
    example.evaluate()
