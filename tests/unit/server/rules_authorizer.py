"""An authorizer that a test steers: it allows what the test says, and keeps what was asked."""

from kcore.protocol.schema import Struct
from kcore.security.authorizer import AuthorizationResult, Authorizer


class Rules(Authorizer):
    """allowed: (operation, resource type, name) of all that clients named "test" may do; None: everything.  Others, as
    brokers, may do everything.  asked: what was asked about "test" since the test emptied it."""

    def __init__(self, allowed=None):
        self.allowed = allowed
        self.asked = set()

    def authorize(self, request_context, actions):
        if request_context.client_id != "test":
            return [AuthorizationResult.ALLOWED] * len(actions)
        asked = [(action.operation, action.resource_pattern.resource_type, action[1].name) for action in actions]
        self.asked.update(asked)
        return [
            AuthorizationResult.ALLOWED if self.allowed is None or what in self.allowed else AuthorizationResult.DENIED
            for what in asked
        ]


def error_codes(struct):
    """All error codes of a response, wherever they are, without 0."""
    codes = set()
    for name in type(struct).__slots__:
        value = getattr(struct, name)
        if name in ("error_code", "partition_error_code") and value:
            codes.add(value)
        elif isinstance(value, list) and value and isinstance(value[0], Struct):
            codes = codes.union(*map(error_codes, value))
    return codes
