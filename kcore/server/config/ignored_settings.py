"""Names of Kafka's settings that this package does not honour."""

from __future__ import annotations

import re

#: Names whose meaning is protection: to ignore one would leave a broker open that its owner believes closed.
PROTECTIVE = re.compile(r"(ssl|sasl|security|delegation\.token|password\.encoder)\.|principal\.builder")
HARMLESS_PROTECTIVE = {
    ("security.inter.broker.protocol", "PLAINTEXT"),
}

#: What else Kafka 3.9 and 4.x know.
_IGNORED = """
    alter.config.policy.class.name auto.include.jmx.reporter
    background.threads broker.heartbeat.interval.ms broker.id.generation.enable
    broker.session.timeout.ms client.quota.callback.class connection.failed.authentication.delay.ms
    connections.max.reauth.ms control.plane.listener.name
    controller.quorum.append.linger.ms
    controller.quorum.bootstrap.servers controller.quorum.election.backoff.max.ms
    controller.quorum.election.timeout.ms controller.quorum.fetch.timeout.ms
    controller.quorum.request.timeout.ms controller.quorum.retry.backoff.ms controller.quorum.voters
    create.topic.policy.class.name delegation.token.expiry.check.interval.ms delegation.token.expiry.time.ms
    delegation.token.master.key delegation.token.max.lifetime.ms delegation.token.secret.key
    delete.records.purgatory.purge.interval.requests early.start.listeners eligible.leader.replicas.enable
    fetch.purgatory.purge.interval.requests group.coordinator.append.linger.ms
    group.coordinator.cached.buffer.max.bytes group.coordinator.rebalance.protocols group.coordinator.threads
    group.share.assignors group.share.delivery.count.limit group.share.heartbeat.interval.ms
    group.share.max.groups group.share.max.heartbeat.interval.ms group.share.max.record.lock.duration.ms
    group.share.max.session.timeout.ms group.share.max.size group.share.min.heartbeat.interval.ms
    group.share.min.record.lock.duration.ms group.share.min.session.timeout.ms
    group.share.partition.max.record.locks group.share.record.lock.duration.ms group.share.session.timeout.ms
    initial.broker.registration.timeout.ms inter.broker.protocol.version
    internal.segment.bytes kafka.metrics.polling.interval.secs kafka.metrics.reporters
    log.dir.failure.timeout.ms max.connection.creation.rate
    max.connections.per.ip.overrides
    metadata.log.dir
    metadata.log.max.record.bytes.between.snapshots
    metadata.log.max.snapshot.interval.ms metadata.log.segment.bytes metadata.log.segment.ms
    metadata.max.idle.interval.ms metadata.max.retention.bytes metadata.max.retention.ms metric.reporters
    metrics.num.samples metrics.recording.level metrics.sample.window.ms
    offsets.commit.required.acks offsets.load.buffer.size offsets.topic.compression.codec
    password.encoder.cipher.algorithm password.encoder.iterations password.encoder.key.length
    password.encoder.keyfactory.algorithm password.encoder.old.secret password.encoder.secret
    principal.builder.class process.roles producer.purgatory.purge.interval.requests queued.max.requests
    remote.fetch.max.wait.ms
    remote.log.index.file.cache.total.size.bytes remote.log.manager.copier.thread.pool.size
    remote.log.manager.copy.max.bytes.per.second remote.log.manager.copy.quota.window.num
    remote.log.manager.copy.quota.window.size.seconds remote.log.manager.expiration.thread.pool.size
    remote.log.manager.fetch.max.bytes.per.second remote.log.manager.fetch.quota.window.num
    remote.log.manager.fetch.quota.window.size.seconds remote.log.manager.follower.thread.pool.size
    remote.log.manager.task.interval.ms remote.log.manager.thread.pool.size
    remote.log.metadata.custom.metadata.max.bytes remote.log.metadata.manager.class.name
    remote.log.metadata.manager.class.path remote.log.metadata.manager.impl.prefix
    remote.log.metadata.manager.listener.name remote.log.reader.max.pending.tasks remote.log.reader.threads
    remote.log.storage.manager.class.name remote.log.storage.manager.class.path
    remote.log.storage.manager.impl.prefix remote.log.storage.system.enable
    request.timeout.ms reserved.broker.max.id
    sasl.client.callback.handler.class sasl.enabled.mechanisms sasl.jaas.config sasl.kerberos.kinit.cmd
    sasl.kerberos.min.time.before.relogin sasl.kerberos.principal.to.local.rules sasl.kerberos.service.name
    sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor sasl.login.callback.handler.class
    sasl.login.class sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
    sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
    sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.mechanism.controller.protocol
    sasl.mechanism.inter.broker.protocol sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience
    sasl.oauthbearer.expected.issuer sasl.oauthbearer.jwks.endpoint.refresh.ms
    sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.ms
    sasl.oauthbearer.jwks.endpoint.url sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name
    sasl.oauthbearer.token.endpoint.url sasl.server.callback.handler.class sasl.server.max.receive.size
    security.inter.broker.protocol security.providers share.coordinator.state.topic.min.isr
    share.coordinator.state.topic.num.partitions share.coordinator.state.topic.replication.factor
    socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms ssl.allow.dn.changes
    ssl.allow.san.changes ssl.cipher.suites ssl.client.auth ssl.enabled.protocols
    ssl.endpoint.identification.algorithm ssl.engine.factory.class ssl.key.password ssl.keymanager.algorithm
    ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location ssl.keystore.password
    ssl.keystore.type ssl.principal.mapping.rules ssl.protocol ssl.provider ssl.secure.random.implementation
    ssl.trustmanager.algorithm ssl.truststore.certificates ssl.truststore.location ssl.truststore.password
    ssl.truststore.type zookeeper.clientCnxnSocket
    zookeeper.connect zookeeper.max.in.flight.requests zookeeper.metadata.migration.enable zookeeper.set.acl
    zookeeper.ssl.cipher.suites zookeeper.ssl.client.enable zookeeper.ssl.crl.enable
    zookeeper.ssl.enabled.protocols zookeeper.ssl.endpoint.identification.algorithm zookeeper.ssl.keystore.location
    zookeeper.ssl.keystore.password zookeeper.ssl.keystore.type zookeeper.ssl.ocsp.enable zookeeper.ssl.protocol
    zookeeper.ssl.truststore.location zookeeper.ssl.truststore.password zookeeper.ssl.truststore.type
"""
IGNORED_NAMES = frozenset(_IGNORED.split())
