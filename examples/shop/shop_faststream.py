"""The shop of shop_confluent.py, with FastStream.  python examples/shop/shop_faststream.py HOST:PORT"""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

from faststream import AckPolicy
from faststream.kafka import KafkaBroker, KafkaResponse
from faststream.kafka.annotations import KafkaMessage


def shop(settings: dict[str, Any], group_id: str) -> KafkaBroker:
    """settings: of KafkaBroker.  An order is committed when its invoice is written, and read again if that fails."""
    broker = KafkaBroker(**settings, enable_idempotence=True)

    @broker.subscriber("orders", group_id=group_id, auto_offset_reset="earliest", ack_policy=AckPolicy.NACK_ON_ERROR)
    @broker.publisher("invoices")
    async def invoice(order: KafkaMessage) -> KafkaResponse:
        return KafkaResponse(b"invoice of " + order.body, key=order.raw_message.key)

    return broker


async def run(settings: dict[str, Any], stop: threading.Event, group_id: str = "shop") -> None:
    """Work until `stop` is set."""
    async with shop(settings, group_id) as broker:
        await broker.start()
        while not stop.is_set():
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    asyncio.run(run({"bootstrap_servers": sys.argv[1]}, threading.Event()))
