"""The public names, as help(), an editor or a notebook shows them."""

import ast
import inspect
from pathlib import Path
from types import ModuleType

import pytest

import kcore
import kcore.inspect
import kcore.testing
from kcore.testing import kafka_fixture
from tests.test_acceptance_list import mentioned_ids

#: Native classes: nothing but their docstrings says what arguments they take.
NATIVE = [
    name
    for name in kcore.__all__
    if inspect.isclass(getattr(kcore, name)) and not hasattr(getattr(kcore, name).__init__, "__code__")
]


@pytest.mark.parametrize("name", [name for name in kcore.__all__ if callable(getattr(kcore, name))])
def test_each_public_name_has_a_signature_that_can_be_read(name):
    inspect.signature(getattr(kcore, name))


@pytest.mark.parametrize("name", ["MemoryRecords", "Record", "RecordBatchBuilder"])
def test_the_signature_of_a_native_class_has_the_arguments_of_its_stub(name):
    assert name in NATIVE
    cls = getattr(kcore, name)
    stub = Path(kcore.__file__).parent.joinpath(*cls.__module__.split(".")[1:]).with_suffix(".pyi")
    (definition,) = (
        node for node in ast.parse(stub.read_text()).body if isinstance(node, ast.ClassDef) and node.name == name
    )
    (init,) = (node for node in definition.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    parameters = inspect.signature(cls).parameters.values()
    keyword_only = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    others = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    assert others == [argument.arg for argument in init.args.args[1:]]
    assert keyword_only == [argument.arg for argument in init.args.kwonlyargs]
    with_default = init.args.args[len(init.args.args) - len(init.args.defaults) :]
    optional = [argument.arg for argument in with_default] + keyword_only
    assert [p.name for p in parameters if p.default is not p.empty] == optional


def test_the_defaults_in_the_signature_are_those_that_the_builder_uses():
    defaults = {name: p.default for name, p in inspect.signature(kcore.RecordBatchBuilder).parameters.items()}

    def built(**arguments):
        builder = kcore.RecordBatchBuilder(**arguments)
        builder.append(b"v", b"k", timestamp=5)
        return bytes(builder.build())

    assert built() == built(**defaults)


def test_the_docstring_of_a_native_class_is_without_its_signature():
    assert inspect.getdoc(kcore.RecordBatchBuilder).startswith("Collects records and builds one batch.")
    assert inspect.getdoc(kcore.MemoryRecords).startswith("A buffer of batches")


def documented(thing, name):
    """(name, docstring) of what help() shows of a module, a class or a function."""
    yield name, inspect.getdoc(thing) or ""
    if isinstance(thing, ModuleType):
        members = getattr(thing, "__all__", None) or [key for key in vars(thing) if not key.startswith("_")]
    elif inspect.isclass(thing):
        members = [key for key in dir(thing) if not key.startswith("_") or key == "__init__"]
    else:
        return
    for key in members:
        member = inspect.getattr_static(thing, key) if inspect.isclass(thing) else getattr(thing, key)
        if not isinstance(member, ModuleType):
            yield from documented(member, f"{name}.{key}")


@pytest.mark.parametrize(
    "module", [kcore, kcore.errors, kcore.inspect, kcore.testing, kafka_fixture], ids=lambda module: module.__name__
)
def test_what_help_shows_of_public_names_cites_no_id_of_a_behaviour(module):
    docstrings = list(documented(module, module.__name__))
    assert len(docstrings) > 10
    assert {name: ids for name, text in docstrings if (ids := mentioned_ids(text))} == {}


def test_help_says_which_modules_are_public():
    text = inspect.getdoc(kcore)
    for name in ("kcore.errors", "kcore.inspect", "kcore.spark", "kcore.testing"):
        assert name in text
