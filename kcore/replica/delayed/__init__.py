"""What waits in a purgatory: a produce for its replicas, a fetch for records, a DeleteRecords for the followers."""
