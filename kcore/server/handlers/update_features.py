"""UpdateFeatures (57): checked as Kafka checks it, and no level changes: each is what all brokers register.

Why: docs/decisions/0028-the-level-of-a-feature-is-what-all-brokers-register.md.
Source: KafkaController.processFeatureUpdates, Kafka 3.9; ControllerApis.handleUpdateFeatures, Kafka 4.3.
"""

from __future__ import annotations

from typing import NamedTuple

from kcore.errors import ApiError, FeatureUpdateFailed, InvalidRequest, NotController, code_of
from kcore.protocol.messages.api_versions import api_versions_response
from kcore.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from kcore.server.config.features import TRANSACTION_VERSION
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services

_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3


class _Levels(NamedTuple):
    """Of one feature: the lowest and the highest that this broker knows, and the one in use, 0 for none."""

    low: int
    high: int
    in_use: int


class Handler:
    runs_on = RunsOn.NETWORK_THREAD

    def __init__(self, services: Services) -> None:
        self._admin = services.admin_manager
        self._served = services.served_apis
        self._features = services.features

    def handle(self, context: RequestContext, body: UpdateFeaturesRequest) -> None:
        if not self._admin.is_controller:
            context.respond(self.error_response(body, NotController.code, context.api_version))
            return
        features = self._levels()
        results = [(update.feature, _error(update, context.api_version, features)) for update in body.feature_updates]
        if context.api_version >= 2:
            error = next((error for _, error in results), None)
            context.respond(
                UpdateFeaturesResponse(error_code=code_of(error), error_message=None if error is None else str(error))
            )
            return
        context.respond(
            UpdateFeaturesResponse(
                results=[
                    UpdatableFeatureResult(feature=name, error_code=error.code, error_message=str(error))
                    for name, error in results
                ]
            )
        )

    def _levels(self) -> dict[str, _Levels]:
        """What this broker announces, by feature."""
        announced = api_versions_response(self._served, version=4, transaction_version=self._features())
        in_use = {feature.name: feature.max_version_level for feature in announced.finalized_features}
        return {
            feature.name: _Levels(feature.min_version, feature.max_version, in_use.get(feature.name, 0))
            for feature in announced.supported_features
        }

    def error_response(self, body: UpdateFeaturesRequest, error_code: int, version: int) -> UpdateFeaturesResponse:
        return UpdateFeaturesResponse(error_code=error_code)


def _error(update: FeatureUpdateKey, version: int, features: dict[str, _Levels]) -> ApiError:
    """Why the level of a feature does not change."""
    name, level = update.feature, update.max_version_level
    upgrade_type = update.upgrade_type
    if version == 0:
        upgrade_type = _SAFE_DOWNGRADE if update.allow_downgrade else _UPGRADE
    if not name:
        return InvalidRequest("Feature name can not be empty.")
    if upgrade_type not in (_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE):
        return InvalidRequest("Received unknown upgrade type.")
    levels = features.get(name)
    if levels is None:
        return InvalidRequest(f"Feature {name} is not supported by this broker; it knows {', '.join(features)}")
    is_upgrade = upgrade_type == _UPGRADE
    if not levels.low <= level <= levels.high:
        return InvalidRequest(f"{name} has no level {level}: this broker knows {levels.low} to {levels.high}")
    if level == levels.in_use:
        return InvalidRequest(f"{name} has level {level} already")
    if level < levels.in_use and is_upgrade:
        return InvalidRequest(f"Can not downgrade {name} from {levels.in_use} to {level} without allowing a downgrade")
    if level > levels.in_use and not is_upgrade:
        return InvalidRequest(f"Can not downgrade {name} from {levels.in_use} to {level}, which is higher")
    setting = " (their setting kcore.transaction.version)" if name == TRANSACTION_VERSION else ""
    return FeatureUpdateFailed(f"The level of {name} is the lowest that all live brokers offer{setting}")
