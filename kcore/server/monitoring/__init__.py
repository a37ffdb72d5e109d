"""What a broker tells of itself to processes that are no Kafka clients: metrics, explanations, whether it is ready."""
