"""The controller of a cluster: elections, and what each broker is to lead and to follow."""
