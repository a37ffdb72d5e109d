"""UpdateFeatures (57): other levels for features of the cluster."""

from __future__ import annotations

from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message, Struct, array, boolean, int8, int16, int32, string


class FeatureUpdateKey(Struct):
    """upgrade_type: 1 to upgrade, 2 for a downgrade that loses nothing, 3 for any."""

    feature: str = string()
    max_version_level: int = int16()
    allow_downgrade: bool = boolean("0")
    upgrade_type: int = int8("1+", default=1)


class UpdateFeaturesRequest(Message):
    """timeout_ms: how long the answer may take."""

    api_key = ApiKey.UPDATE_FEATURES
    min_version, max_version, flexible_version = 0, 2, 0

    timeout_ms: int = int32(default=60000)
    feature_updates: list[FeatureUpdateKey] = array(FeatureUpdateKey)
    validate_only: bool = boolean("1+")


class UpdatableFeatureResult(Struct):
    feature: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)


class UpdateFeaturesResponse(Message):
    """results: one for each feature; none from version 2 on."""

    api_key = ApiKey.UPDATE_FEATURES
    min_version, max_version, flexible_version = 0, 2, 0

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    results: list[UpdatableFeatureResult] = array(UpdatableFeatureResult, "0-1", ignorable=True)
