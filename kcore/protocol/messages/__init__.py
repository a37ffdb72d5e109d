"""One module for each API, loaded when its first request comes, so that a broker starts without importing them all."""

from __future__ import annotations

from importlib import import_module

from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message

_classes: dict[tuple[ApiKey, str], type[Message]] = {}


def request_class(api_key: ApiKey) -> type[Message]:
    """FetchRequest for ApiKey.FETCH.  ModuleNotFoundError for an API without messages here."""
    return _classes.get((api_key, "Request")) or _load(api_key, "Request")


def response_class(api_key: ApiKey) -> type[Message]:
    """FetchResponse for ApiKey.FETCH.  ModuleNotFoundError for an API without messages here."""
    return _classes.get((api_key, "Response")) or _load(api_key, "Response")


def _load(api_key: ApiKey, kind: str) -> type[Message]:
    name = api_key.name.lower()
    module = import_module(f"kcore.protocol.messages.{name}")
    cls: type[Message] = getattr(module, name.title().replace("_", "") + kind)
    return _classes.setdefault((api_key, kind), cls)
