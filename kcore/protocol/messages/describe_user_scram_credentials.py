"""DescribeUserScramCredentials (50): which users have SCRAM credentials, never the credentials themselves."""

from __future__ import annotations

from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message, Struct, array, int8, int16, int32, string


class UserName(Struct):
    name: str = string()


class DescribeUserScramCredentialsRequest(Message):
    """users: None or empty for all that have some."""

    api_key = ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS
    min_version, max_version, flexible_version = 0, 0, 0

    users: list[UserName] | None = array(UserName, nullable="0+")


class CredentialInfo(Struct):
    """mechanism: 1 for SCRAM-SHA-256, 2 for SCRAM-SHA-512."""

    mechanism: int = int8()
    iterations: int = int32()


class DescribeUserScramCredentialsResult(Struct):
    user: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    credential_infos: list[CredentialInfo] = array(CredentialInfo)


class DescribeUserScramCredentialsResponse(Message):
    """Users with the mechanisms that they have credentials for."""

    api_key = ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS
    min_version, max_version, flexible_version = 0, 0, 0

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    results: list[DescribeUserScramCredentialsResult] = array(DescribeUserScramCredentialsResult)
