"""Which version of a request to send: the newest one that both sides have."""

from __future__ import annotations

from kcore.client.blocking_sender import BlockingSender
from kcore.errors import UnsupportedVersion
from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message


def newest_version(sender: BlockingSender, api_key: ApiKey, lowest: int, highest: int) -> int:
    """The newest version of a request, from lowest to highest, that the broker serves.

    Raises what BlockingSender.api_versions() raises, and UnsupportedVersion if there is none.
    """
    served = sender.api_versions().get(api_key)
    version = -1 if served is None else min(highest, served[1])
    if served is None or version < max(lowest, served[0]):
        name = "".join(word.capitalize() for word in api_key.name.split("_"))
        versions = "" if served is None else f" {lowest} to {highest}, but {served[0]} to {served[1]}"
        raise UnsupportedVersion(f"the broker at {sender.host}:{sender.port} does not serve {name}{versions}")
    return version


class NegotiatingSender:
    """A BlockingSender with the newest version of each request that both sides have."""

    def __init__(self, sender: BlockingSender) -> None:
        self._sender = sender

    def send(self, request: Message) -> Message:
        """Raises what BlockingSender.send() raises; UnsupportedVersion also if there is no version that both have."""
        version = newest_version(self._sender, request.api_key, request.min_version, request.max_version)
        return self._sender.send(request, version)

    def close(self) -> None:
        self._sender.close()
