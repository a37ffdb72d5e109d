"""A page for people about a cluster or log directories: `kcore web`.  It calls no broker's code.

docs/web.md says what it shows, docs/decisions/0027-a-page-in-a-process-of-its-own.md why it is built this way.
"""
