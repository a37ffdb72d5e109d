"""Between the network and the handlers: dispatch, threads, permissions, fetch sessions."""
