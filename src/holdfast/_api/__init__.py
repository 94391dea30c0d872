"""What both APIs share: options, names, endpoints, and what a client knows of itself."""
