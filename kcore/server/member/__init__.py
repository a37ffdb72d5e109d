"""A broker as a member of a cluster: registration, the controller's requests, and what becomes of its replicas."""
