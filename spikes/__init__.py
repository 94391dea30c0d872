"""What is tried before it is built. Nothing here ships, and nothing that ships knows of it."""
