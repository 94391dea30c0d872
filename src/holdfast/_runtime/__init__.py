"""What a Python process is like: clocks, waits, forks, signal handlers, imports, exits."""
