"""Options of Kafka's scripts, of kcat and of web servers: the error names what kcore has for them."""

import re

import pytest

from kcore.tools.commands import whole_tree
from kcore.tools.main import kcore, main
from kcore.tools.other_options import ADVICE, IN_PLACE


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        # a web server's
        ("web --port 8080", "no option --port; use --http 127.0.0.1:N"),
        ("web -p 8080", "no option -p; use --http 127.0.0.1:N"),
        ("web --host 0.0.0.0", "no option --host; use --http HOST:PORT"),
        ("web --bind 0.0.0.0", "no option --bind; use --http HOST:PORT"),
        ("web --listen :8080", "no option --listen; use --http HOST:PORT"),
        ("web --data data", "no option --data; DIR needs no option: kcore web [OPTIONS] [DIR...]"),
        ("web --broker-list h:1", "no option --broker-list; use --bootstrap HOST:PORT[,...]"),
        ("serve --bind 0.0.0.0", "no option --bind; use --host ADDRESS"),
        ("serve --listen 0.0.0.0", "no option --listen; use --host ADDRESS"),
        ("serve -p 9092", "no option -p; use --port N"),
        ("serve --http-port 8080", "no option --http-port; use --http 127.0.0.1:N"),
        # settings of a broker
        ("serve --listeners PLAINTEXT://:1", "no option --listeners; use -o listeners=VALUE"),
        ("serve --advertised-listeners x", "no option --advertised-listeners; use -o advertised.listeners=VALUE"),
        ("serve --num.partitions=3", "no option --num.partitions; use -o num.partitions=VALUE"),
        ("serve --override num.partitions=3", "no option --override; use -o KEY=VALUE"),
        ("serve --log-dirs d", "no option --log-dirs; use --data DIR"),
        ("serve --dir d", "no option --dir; use --data DIR"),
        ("serve --broker-id 1", "no option --broker-id; use --id N"),
        ("serve --zookeeper z:2181", "no option --zookeeper; use --store zookeeper://HOST:PORT"),
        # commands that are options of Kafka's scripts
        ("topics --create --topic t", "no option --create; use the command `kcore topics create`"),
        ("topics --list", "no option --list; use the command `kcore topics list`"),
        ("groups --describe --group g", "no option --describe; use the command `kcore groups describe`"),
        ("groups --reset-offsets", "no option --reset-offsets; use the command `kcore groups reset`"),
        ("configs --alter", "no option --alter; use the command `kcore configs set` or `kcore configs unset`"),
        ("configs alter", "no command 'alter'; use the command `kcore configs set` or `kcore configs unset`"),
        ("--consume t", "no option --consume; use the command `kcore consume`"),
        # options before the command
        ("--bootstrap-server h:1 topics list", "use it after the command, as in `kcore topics list --bootstrap-server"),
        ("-b h:1 -L", "no option -b; use it after the command, as in `kcore topics list --bootstrap HOST:PORT[,...]`"),
        ("topics --bootstrap-server h:1 --list", "use it after the command, as in `kcore topics list --bootstrap-"),
        ("topics --if-not-exists create t", "use it after the command, as in `kcore topics create --if-not-exists`"),
        # kcat's
        ("-C -b h:1 -t t", "no option -C; use the command `kcore consume`"),
        ("-P -b h:1 -t t", "no option -P; use the command `kcore produce`"),
        ("-L -b h:1", "no option -L; use the command `kcore topics describe`"),
        ("consume -b h:1 t", "no option -b; use --bootstrap HOST:PORT[,...]"),
        ("consume -C t", "no option -C; leave it out"),
        ("consume -t t", "no option -t; TOPIC needs no option: kcore consume [OPTIONS] [TOPIC]"),
        ("consume -p 0 t", "no option -p; use --partition N"),
        ("consume -c 5 t", "no option -c; use --max N"),
        ("consume -e t", "no option -e; leave it out: it ends at the end of the topic, but for --follow"),
        ("consume -k x t", "no option -k; use --key K"),
        ("consume -J t", "no option -J; use --json"),
        ("consume -G g t", "no option -G; use --group ID"),
        ("produce -P t", "no option -P; leave it out"),
        ("produce -t t", "no option -t; TOPIC needs no option: kcore produce [OPTIONS] [TOPIC] [FILE]..."),
        ("produce -K : t", "no option -K; use --key-separator TEXT"),
        ("produce -z gzip t", "no option -z; use --compression [none|gzip|snappy|lz4|zstd]"),
        ("produce -H a=b t", "no option -H; use --header K=V"),
        ("produce -l f t", "no option -l; FILE needs no option: kcore produce [OPTIONS] [TOPIC] [FILE]..."),
        ("metadata -b h:1", "no option -b; use --bootstrap HOST:PORT[,...]"),
        # Kafka's scripts'
        ("consume --brokers h:1 t", "no option --brokers; use --bootstrap HOST:PORT[,...]"),
        ("consume --property print.key=true t", "no option --property; use --format TEXT"),
        ("consume --count 5 t", "no option --count; use --max N"),
        ("consume --latest t", "no option --latest; use --from latest"),
        ("produce --broker-list h:1 t", "no option --broker-list; use --bootstrap HOST:PORT[,...]"),
        ("produce --property parse.key=true t", "no option --property; use --key-separator TEXT"),
        ("produce --request-required-acks 1 t", "no option --request-required-acks; leave it out: acks is all"),
        ("topics create t -p 3", "no option -p; use --partitions N"),
        ("topics describe --under-replicated-partitions", "use the command `kcore cluster`"),
        ("topics list --exclude-internal", "leave it out: only --internal adds internal topics"),
        ("groups describe -G g", "no option -G; use --group GROUP"),
        ("groups describe --describe g", "no option --describe; leave it out"),
        ("groups reset --reset-offsets g", "no option --reset-offsets; leave it out"),
        ("groups list --state", "use the command `kcore groups describe`, or --json"),
        ("topics create --create t", "no option --create; leave it out"),
        ("logdirs list --describe", "no option --describe; leave it out"),
        ("quotas set --entity-type users a=1", "no option --entity-type; use --user USER, --client ID or --ip ADDRESS"),
        ("groups describe --members g", "no option --members; leave it out: it shows members and offsets"),
        ("groups describe --all-groups", "no option --all-groups; leave it out: without GROUP it shows all groups"),
        ("groups reset g --all-topics --dry-run", "no option --dry-run; leave it out: without --apply nothing changes"),
        ("repair --dry-run d", "no option --dry-run; leave it out: without --apply nothing changes"),
        ("repair --yes d", "no option --yes; use --apply"),
        ("dump --files f", "no option --files; PATH needs no option: kcore dump [OPTIONS] PATH..."),
        ("dump --index-sanity-check f", "no option --index-sanity-check; use the command `kcore reindex --check`"),
        ("verify --fix d", "no option --fix; use the command `kcore repair`"),
        ("reassign --reassignment-json-file f", "name the partitions, and with --to their brokers"),
        ("reassign --verify t", "no option --verify; use --status"),
        ("elect --election-type unclean t", "leave it out, or use --unclean"),
        ("elect --all-topic-partitions", "no option --all-topic-partitions; use --all"),
        ("logdirs --describe", "no option --describe; use the command `kcore logdirs list`"),
        ("txns list --transactional-id x", "use the command `kcore txns describe`"),
        ("-V", "no option -V; use --version"),
    ],
)
def test_an_option_of_another_program_is_answered_with_what_kcore_has(words, answer, capsys):
    assert main(words.split()) == 2
    assert answer in capsys.readouterr().err.splitlines()[0]


def test_an_option_that_a_command_has_is_named_before_a_similar_one(capsys):
    assert main(["cluster", "--topics", "t"]) == 2
    assert "no option --topics; TOPIC needs no option" in capsys.readouterr().err


def test_each_option_that_is_named_exists():
    trees = dict(whole_tree(kcore))
    options = {option for command in (kcore, *trees.values()) for param in command.params for option in param.opts}
    for names in IN_PLACE.values():
        for name in names:
            option = name.partition("=")[0]
            assert option in options if option.startswith("-") else option.isupper(), name
    for words, text in ADVICE.items():
        path, option = words
        command = trees.get(path.removeprefix("kcore "))
        assert command is None or all(option not in param.opts for param in command.params), words
        assert set(re.findall(r"--[a-z-]+", text)) <= options, text
        for named in re.findall(r"`kcore ([a-z ]+?)(?: --[a-z]+)?`", text):
            assert named in trees, text
