"""`python -m holdfast` is `holdfast`."""

import sys

from holdfast.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
