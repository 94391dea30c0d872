"""The protocols: what is asked of which server in which order, and nothing of how that is done."""
