"""Who may do what: authorizers and ACLs; knows no handler."""
