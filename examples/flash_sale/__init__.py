"""The flash sale: processes on one machine take turns under a lock, on a real Valkey.

``make demo`` (``python -m examples.flash_sale``) sells a stock of 500 units kept in a SQLite file, with 8 processes
that read the stock, think, and write it back. Without a lock they oversell. With one they sell exactly the stock,
although one of them is killed while it holds the lock and another is stopped until its lease has run out.
"""

from examples.flash_sale.sale import Report, main, run

__all__ = ["Report", "main", "run"]
