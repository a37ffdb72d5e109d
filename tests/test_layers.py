"""The import table of docs/architecture.md: a lower room never imports a higher one."""

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent / "kcore"

#: room -> rooms it may import.  Every room may import itself, common and kcore.errors.
MAY_IMPORT = {
    "common": set(),
    "record": set(),
    "kernels": {"record.layout", "record.batch_header"},
    "log": {"record"},
    "bulk": {"record", "log"},
    "purgatory": set(),
    "replica": {"record", "log", "purgatory"},
    "protocol": set(),
    "network": {"protocol", "record.file_records"},
    "client": {"protocol", "record"},
    "metadata": set(),
    "coordinator": {"record", "purgatory", "protocol.messages", "replica", "log.log_offset_metadata"},
    "controller": {"protocol", "client", "metadata"},
    # Of protocol/ only the names of requests, for what an authorizer logs.
    "security": {"metadata", "network.listener", "protocol.api_keys"},
    "replication": {"log", "replica", "protocol", "client", "metadata"},
    "mirror": {"log", "replica", "protocol", "client", "replication"},
    "server": {
        *(
            "record",
            "log",
            "purgatory",
            "replica",
            "protocol",
            "network",
            "client",
            "metadata",
            "coordinator",
            "controller",
            "security",
            "replication",
        )
    },
    "inspect": {"record", "log"},
    "frames": {"record", "log", "inspect"},
    # Of clusters it knows what its clients say, of directories what inspect/ reads: nothing of a broker.
    "web": {"client", "protocol", "record", "log", "inspect"},
    # A command may start what it is about: a broker, a mirror, a page.
    "tools": {"client", "record", "log", "inspect", "mirror", "server", "web"},
    "spark": {"record", "log", "bulk", "inspect"},
    "testing": {"log", "server", "coordinator", "metadata", "protocol"},
}
#: Single files that may reach further.
EXCEPTIONS = {
    "tools.spark": {"spark"},
    # kcore's own brokers keep the topics' cleanup.policy in their store: there is no other place that has it.
    "inspect.topic_settings": {"metadata"},
    # The names of what ACLs have as codes.
    "tools.acls": {"security.acl"},
    "tools.internal_topics": {"coordinator.group.group_records", "coordinator.transaction.transaction_log"},
}

#: folder of server/ or replica/ -> folders of the same room that it may import; a room's own files may import all.
FOLDERS = {
    "server.config": set(),
    "server.quotas": {"config"},
    "server.topics": {"config"},
    "server.member": {"config", "topics"},
    "server.requests": {"config", "quotas", "topics", "member"},
    "server.handlers": {"config", "quotas", "topics", "member", "requests"},
    "server.monitoring": {"requests"},
    "replica.delayed": set(),
    "replica.fetcher": set(),
    "replica.moves": {"fetcher"},
}
#: What a folder may import of its room's own files.
FILES_OF_THE_ROOM = {
    "replica.delayed": {
        *("fetch_params", "hosted_partitions", "local_reads", "partition", "replica_meters", "replica_quota")
    },
    "replica.fetcher": {"fetch_params", "partition", "partition_state", "replica_quota"},
    "replica.moves": {"api_errors", "fetch_params", "hosted_partitions", "partition", "replica_quota"},
}
#: Files in one folder, __init__.py not counted; handlers/ has one for each API.
MAX_FILES = 20

_CIMPORT = re.compile(r"^\s*(?:from\s+(kcore[\w.]*)\s+c?import|c?import\s+(kcore[\w.]*))", re.M)


def imported_modules(path: pathlib.Path) -> set[str]:
    text = path.read_text()
    if path.suffix == ".py":
        names = set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: relative import"
                names.add(node.module or "")
        return {name for name in names if name.split(".")[0] == "kcore"}
    return {a or b for a, b in _CIMPORT.findall(text)}


def modules():
    for path in sorted(ROOT.rglob("*")):
        if path.suffix in {".py", ".pyx", ".pxd"} and path.parent != ROOT:
            yield path


def rooms_of_the_page(text):
    """room -> rooms that it may import, from the table of docs/architecture.md, without common."""
    rooms = {}
    for names, imports in re.findall(r"^\| (`[^|]*/`) \|[^|]*\| ([^|]*) \|$", text, re.M):
        room = re.findall(r"`(\w+)/`", names)[-1]
        if room == "csrc":
            continue
        all_but = re.fullmatch(r"all of the above but (.*)", imports)
        listed = set(re.split(r", | and ", all_but[1] if all_but else imports))
        rooms[room] = (set(rooms) - listed if all_but else listed) - {"common", "\u2013"}
    return rooms


def test_the_table_of_the_architecture_page_is_this_one():
    assert rooms_of_the_page((ROOT.parent / "docs" / "architecture.md").read_text()) == MAY_IMPORT


def test_there_are_at_most_four_exceptions_and_each_is_needed():
    assert len(EXCEPTIONS) <= 4
    for module, reached in EXCEPTIONS.items():
        used = imported_modules((ROOT / module.replace(".", "/")).with_suffix(".py"))
        for target in reached:
            assert any(f"{name}.".startswith(f"kcore.{target}.") for name in used), f"{module} imports no {target}"


@pytest.mark.parametrize("path", list(modules()), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_lower_room_never_imports_a_higher_one(path):
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    room = module.split(".")[0]
    allowed = MAY_IMPORT[room] | {room, "common", "errors"} | EXCEPTIONS.get(module, set())
    for name in imported_modules(path):
        target = name.removeprefix("kcore").lstrip(".")
        assert target, f"{module} imports the package root; import the module it needs"
        assert any(target == a or target.startswith(a + ".") for a in allowed), f"{module} may not import {name}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_of_a_room_imports_only_what_its_row_names(folder):
    room, name = folder.split(".")
    allowed = {f"{room}.{other}." for other in FOLDERS[folder] | {name}} | {
        f"{room}.{file}." for file in FILES_OF_THE_ROOM.get(folder, ())
    }
    for path in sorted((ROOT / room / name).glob("*.py")):
        module = f"{folder}.{path.stem}"
        for imported in imported_modules(path):
            target = imported.removeprefix("kcore.")
            if target.split(".")[0] == room:
                assert f"{target}.".startswith(tuple(allowed)), f"{module} may not import {imported}"


@pytest.mark.parametrize("room", ["server", "replica"])
def test_every_folder_of_these_rooms_has_a_row_and_few_files(room):
    folders = [path for path in (ROOT / room).rglob("*") if path.is_dir() and path.name != "__pycache__"]
    assert {f"{room}.{path.name}" for path in folders} == {folder for folder in FOLDERS if folder.startswith(room)}
    for folder in (ROOT / room, *folders):
        files = [path for path in folder.glob("*.py*") if path.suffix != ".pyc" and path.stem != "__init__"]
        assert len(files) <= MAX_FILES or folder.name == "handlers", folder


#: Circles of files inside a room that are still there.
KNOWN_CIRCLES = {
    "record": [{"arrow", "columns"}],
}


def imports_inside(room):
    """file of the room -> files of the room that it imports, for a type only or at the call too."""
    files = {
        path: ".".join(path.relative_to(ROOT / room).with_suffix("").parts)
        for path in modules()
        if path.relative_to(ROOT).parts[0] == room and path.stem != "__init__"
    }
    imports = {file: set() for file in files.values()}
    for path, file in files.items():
        names = imported_modules(path)
        if path.suffix == ".py":
            froms = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom))
            names |= {f"{node.module}.{alias.name}" for node in froms for alias in node.names}
        imports[file] |= {name.removeprefix(f"kcore.{room}.") for name in names} & imports.keys() - {file}
    return imports


def circles(imports):
    """The largest sets of files of which each reaches each other."""
    reached = {}
    for file in imports:
        reached[file], ahead = set(), [file]
        while ahead:
            further = imports[ahead.pop()] - reached[file]
            reached[file] |= further
            ahead.extend(further)
    return {frozenset(other for other in reached[file] if file in reached[other]) for file in imports} - {frozenset()}


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_the_files_of_a_room_import_each_other_in_no_circle(room):
    assert circles(imports_inside(room)) == {frozenset(circle) for circle in KNOWN_CIRCLES.get(room, ())}


def test_a_circle_is_seen_without_what_only_leads_to_it():
    imports = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}
    assert circles(imports) == {frozenset("bc")}


def test_an_import_for_a_type_only_counts():
    assert "log_hot_path" in imports_inside("log")["log_dir"]
    assert "isr" in imports_inside("replica")["partition"]  # from kcore.replica import isr as isr_rules


#: Rooms above replica/ call a partition or a log; these are their parts, which callers must not use.
ROOMS_ABOVE = {"network", "coordinator", "controller", "server", "testing"}
PARTS = {"log", "log_manager", "local", "segments", "active_segment", "producer_state_manager", "leader_epoch_cache"}


def reached_parts(tree):
    """(line, expression) of attributes in PARTS that are not self's; a method of such a name may be called."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in PARTS and id(node) not in called:
            expression = ast.unparse(node)
            if expression != f"self.{node.attr}":
                yield node.lineno, expression


@pytest.mark.parametrize(
    "path",
    [path for path in modules() if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in ROOMS_ABOVE],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_no_attribute_chain_leads_through_a_room(path):
    assert list(reached_parts(ast.parse(path.read_text()))) == []


@pytest.mark.parametrize(
    "chain",
    [
        "partition.log.segments",
        "led.log.log_start_offset",
        "return hosted.log",
        "log.producer_state_manager.producers",
        "self._replica_manager.log_manager.get_log(tp)",
        "self._replica_manager.get_partition(tp).log.config",
    ],
)
def test_a_chain_through_a_room_is_seen(chain):
    assert list(reached_parts(ast.parse(f"def f(): {chain}")))


def test_methods_and_parts_of_ones_own_are_no_chain():
    assert not list(reached_parts(ast.parse("broker.log('t').log_start_offset; self.log.read(); logger.log(1, 'x')")))


def test_no_native_module_says_that_it_can_do_without_the_gil():
    """docs/decisions/0023-free-threaded-python.md: one that says so must first be tried there."""
    assert not [path for path in ROOT.rglob("*.py[xid]*") if "freethreading_compatible" in path.read_text()]
