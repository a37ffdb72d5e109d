#!/usr/bin/env bash
# kcore's files in the hands of Apache Kafka's own classes and tools, Kafka's in kcore's, and Kafka's Java client
# against a kcore broker; and what Spark's Kafka connector reads through a real Kafka is what kcore's source reads
# from its files; and `kcore mirror` copies a real Kafka's topic byte for byte; and `kcore produce`, `consume` and
# `groups reset` and the pages of `kcore web` work with a real Kafka; and Kafka's consumers with
# group.protocol=consumer share topics of a kcore broker, also by pattern, and its records Kafka's decoder reads, and
# are replaced one at a time by those of the classic protocol and back while brokers are killed; and Kafka's
# transactional producer goes on while a kcore broker is killed, at transaction versions 2 and 0; and Kafka's admin
# tools do with two kcore brokers what they do with Kafka's, and abort a hanging transaction; and Kafka's client and
# tools work with a cluster of three kcore brokers while some are killed, and copy records exactly once through two
# topics of such a cluster; and Kafka Streams counts words exactly once on one; both also over kcore and Java brokers,
# of which one of each kind is killed; and Kafka's storage classes read what the kcore brokers have written then; and
# kcore brokers and Java brokers replicate each other in one cluster.  On a machine without Maven or Java it says so
# and exits 0.
set -euo pipefail
cd "$(dirname "$0")/.."
jars=$(bash ci/kafka_jars.sh) || {
    [ $? -eq 3 ] && { echo "interop: skipped, see above"; exit 0; }
    echo "interop: the jars could not be fetched" >&2
    exit 1
}
classes=build/interop-classes
mkdir -p "$classes"
# Names in the sources are UTF-8, whatever the locale.
export LC_ALL=C.UTF-8
javac -nowarn -proc:none -cp "$jars/*" -d "$classes" ci/interop/*.java
part() { printf '\n-- %s (%s s)\n' "$1" "$SECONDS"; PYTHONPATH=. "${PYTHON:-python3}" "ci/interop/$1" "${@:2}"; }
part run.py "$jars" "$classes" "$@"
# Half of its time it waits for Spark, the parts beside it for brokers.
part spark_connector.py >build/spark_connector.log 2>&1 & connector=$!
trap 'wait "$connector" || true' EXIT # also where another part has failed: it ends its brokers itself
part mirror.py
part commands.py
part web.py
part admin_commands.py
part consumer_protocol.py "$jars" "$classes"
part group_migration.py "$jars" "$classes"
part transactions.py "$jars" "$classes"
part admin_tools.py "$jars" "$classes"
wait "$connector" || { cat build/spark_connector.log; exit 1; }
trap - EXIT
tail -n 1 build/spark_connector.log
part cluster.py "$jars" "$classes"
part copier_chain.py --minutes 0.7 --storage "$classes"
part streams_chain.py --minutes 0.4 --storage "$classes"
# Until a broker of each kind was killed once.
part copier_chain.py --mixed --minutes 0 --storage "$classes"
part streams_chain.py --mixed --minutes 0 --storage "$classes"
part mixed.py "$(bash ci/kafka_jars.sh kafka39)"
printf '\n-- done (%s s)\n' "$SECONDS"
