"""Produce ten records to a running broker and read them back: python examples/quickstart.py [HOST:PORT]

Any Kafka client works; this one needs `pip install confluent-kafka`.
"""

import sys

from confluent_kafka import Consumer, Producer

servers = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"

producer = Producer({"bootstrap.servers": servers, "acks": "all"})
for n in range(10):
    producer.produce("greetings", key=str(n), value=f"hello {n}")
if producer.flush(10):
    sys.exit(f"no answer from {servers}")

consumer = Consumer({"bootstrap.servers": servers, "group.id": "quickstart", "auto.offset.reset": "earliest"})
consumer.subscribe(["greetings"])
for message in consumer.consume(10, timeout=10):
    print(message.topic(), message.partition(), message.offset(), message.key(), message.value())
consumer.close()
