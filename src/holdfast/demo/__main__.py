"""``python -m holdfast.demo``."""

import sys

from holdfast.demo.sale import main

sys.exit(main())
