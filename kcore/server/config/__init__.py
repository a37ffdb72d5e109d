"""Settings of brokers and topics: names, values, where they are stored, and who may see them."""
