"""``python -m examples.flash_sale``."""

import sys

from examples.flash_sale.sale import main

sys.exit(main())
