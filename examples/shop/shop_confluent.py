"""A shop: for each order it writes one invoice.  python examples/shop/shop_confluent.py HOST:PORT

It commits an order when its invoice is written, so an order may get two invoices of the same key, but never none.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from confluent_kafka import Consumer, Producer


def run(settings: dict[str, Any], stop: threading.Event, group_id: str = "shop") -> None:
    """Work until `stop` is set.  settings: of confluent-kafka, for both clients."""
    consumer = Consumer(
        {**settings, "group.id": group_id, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    producer = Producer({**settings, "enable.idempotence": True})
    consumer.subscribe(["orders"])
    while not stop.is_set():
        message = consumer.poll(0.1)
        if message is None or message.error():
            continue
        producer.produce("invoices", key=message.key(), value=b"invoice of " + (message.value() or b""))
        producer.flush()
        consumer.commit(message, asynchronous=False)
    consumer.close()


if __name__ == "__main__":
    run({"bootstrap.servers": sys.argv[1]}, threading.Event())
