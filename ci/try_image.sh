#!/usr/bin/env bash
# Build the image of containers/Containerfile with docker or podman, and try what docs/containers.md says of it.
# BUILD_OPTIONS: words for `build`, as --network=host.  ENGINE: docker or podman, in the place of the one that is there.
# Ends with status 0 and a line that says so where no engine answers.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
engine=${ENGINE:-}
for name in docker podman; do
    [ -n "$engine" ] || ! timeout 60 "$name" info >/dev/null 2>&1 || engine=$name
done
[ -n "$engine" ] || { echo "try_image.sh: skipped: neither docker nor podman answers here"; exit 0; }

image=kcore-try-$$ broker=kcore-try-$$
errors=$(mktemp)
clean_up() {
    status=$?
    [ "$status" = 0 ] || { cat "$errors"; "$engine" logs "$broker" 2>&1 || true; } >&2
    { "$engine" rm -f "$broker"; "$engine" volume rm "$broker"; "$engine" rmi "$image"; } >/dev/null 2>&1 || true
    rm -f "$errors"
}
trap clean_up EXIT
fail() { echo "try_image.sh: $1" >&2; exit 1; }
free_port() { "$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# start OPTION...: the broker with its volume, and with as few rights as a container can have.
start() {
    "$engine" run -d --name "$broker" -p "127.0.0.1:$port:9092" -v "$broker:/var/lib/kcore" --read-only --cap-drop=ALL \
        --security-opt=no-new-privileges -e "KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://localhost:$port" "$@" "$image" \
        >/dev/null 2>"$errors"
}

# wait_until healthy|unhealthy: asks for a minute.  Podman checks when it is asked; docker does so itself.
wait_until() {
    for _ in $(seq 600); do
        if [ "$engine" = podman ]; then
            if timeout 10 podman healthcheck run "$broker" >/dev/null 2>&1; then health=healthy; else health=unhealthy; fi
        else
            health=$("$engine" inspect -f '{{.State.Health.Status}}' "$broker")
        fi
        [ "$health" != "$1" ] || return 0
        [ "$("$engine" inspect -f '{{.State.Running}}' "$broker")" = true ] || fail "the broker has ended"
        sleep 0.1
    done
    fail "not $1 within a minute, but $health"
}

# stop_and_remove: SIGTERM, status 0, and the container is gone; its volume stays.
stop_and_remove() {
    "$engine" stop -t 30 "$broker" >/dev/null 2>"$errors"
    status=$("$engine" inspect -f '{{.State.ExitCode}}' "$broker")
    [ "$status" = 0 ] || fail "stopped with status $status"
    "$engine" logs "$broker" >"$errors" 2>&1
    grep -q '^kcore: stopped$' "$errors" || fail "the broker does not say that it has stopped"
    ! grep 'no clean shutdown' "$errors" || fail "logs were recovered after a clean stop"
    "$engine" rm "$broker" >/dev/null
}

# client write|read: what a program on this machine does; 1000 records in three partitions.
client() {
    "$python" - "localhost:$port" "$1" <<'PY'
import sys
from confluent_kafka import Consumer, Producer

servers = {"bootstrap.servers": sys.argv[1]}
if sys.argv[2] == "write":
    producer = Producer(servers)
    for i in range(1000):
        producer.produce("orders", key=str(i), value=f"book {i}")
    assert producer.flush(60) == 0
consumer = Consumer(servers | {"group.id": sys.argv[2], "auto.offset.reset": "earliest"})
assert len(consumer.list_topics("orders", timeout=60).topics["orders"].partitions) == 3
consumer.subscribe(["orders"])
values = {record.value().decode() for record in consumer.consume(1000, timeout=60)}
assert values == {f"book {i}" for i in range(1000)}, len(values)
consumer.close()
PY
}

port=$(free_port)
format=
[ "$engine" != podman ] || format=--format=docker
# shellcheck disable=SC2086  # words
"$engine" build $format ${BUILD_OPTIONS:-} -f containers/Containerfile -t "$image" . >"$errors" 2>&1
size=$("$engine" image inspect -f '{{.Size}}' "$image")

before=$(date +%s%N)
start -e KAFKA_NUM_PARTITIONS=3
wait_until healthy
echo "$engine: the image has $((size / 1000000)) MB; healthy $((($(date +%s%N) - before) / 1000000)) ms after \`$engine run\`"
[ "$("$engine" exec "$broker" id -u)" = 1000 ] || fail "the broker does not run as user 1000"
client write
"$engine" kill -s STOP "$broker" >/dev/null
wait_until unhealthy
"$engine" kill -s CONT "$broker" >/dev/null
wait_until healthy
stop_and_remove
start # a new container with the old volume
wait_until healthy
client read
stop_and_remove
"$engine" volume rm "$broker" >/dev/null
start --user 1234567:0 # as OpenShift does
wait_until healthy
stop_and_remove
status=0
"$engine" run --rm -e KAFKA_NUM_PARTITOINS=3 "$image" >"$errors" 2>&1 || status=$?
[ "$status" = 2 ] && grep -q 'KAFKA_NUM_PARTITOINS: .*num.partitions' "$errors" || fail "a misspelt variable is not named"
echo "$engine: clients, volume, health, stop, user and settings are as docs/containers.md says"
