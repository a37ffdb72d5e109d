"""The shop of shop_confluent.py, with aiokafka.  python examples/shop/shop_aiokafka.py HOST:PORT"""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer


async def run(settings: dict[str, Any], stop: threading.Event, group_id: str = "shop") -> None:
    """Work until `stop` is set.  settings: of aiokafka, for both clients."""
    consumer = AIOKafkaConsumer(
        "orders", **settings, group_id=group_id, auto_offset_reset="earliest", enable_auto_commit=False
    )
    async with AIOKafkaProducer(**settings, enable_idempotence=True) as producer, consumer:
        while not stop.is_set():
            for partition, orders in (await consumer.getmany(timeout_ms=100)).items():
                for order in orders:
                    await producer.send_and_wait("invoices", b"invoice of " + (order.value or b""), key=order.key)
                    await consumer.commit({partition: order.offset + 1})


if __name__ == "__main__":
    asyncio.run(run({"bootstrap_servers": sys.argv[1]}, threading.Event()))
