"""`holdfast web`: a page that shows the locks of a server as they are. Needs the extra `web` (Starlette and uvicorn).

- `poller` looks at the locks, once for all browsers, and tells them what has changed
- `view` puts what was seen into JSON and into metrics
- `app` answers requests, and refuses those that did not come from a page of ours
- `static` has the page
"""

from __future__ import annotations

__all__ = []
