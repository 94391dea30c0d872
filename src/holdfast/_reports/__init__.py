"""What is told of leases, to the log and to observers."""
