"""Services and servers that `doctor` knows by name, and what locks are worth there.

Where the facts come from, and what was tried: docs/servers.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Service:
    """One row. `host` is searched in the host's name, `info` in INFO, `refusal` in what denied commands say."""

    name: str
    #: What to know there.
    here: str = ""
    host: str | None = None
    info: str | None = None
    refusal: str | None = None
    #: Whether a failover and a restart lose nothing that was confirmed.
    is_durable: bool = False
    #: The maxmemory-policy that users cannot change.
    policy: str | None = None

    def __str__(self) -> str:
        """Tell what holdfast does there."""
        return f"{self.name}: {self.here}{'; ' if self.here else ''}holdfast has not been tried on the real one."


_MULTI_REGION = (
    "a failover loses no lock, without sync_replicas (the Regions of a multi-Region cluster all accept writes)"
)
_NO_WAIT = "connect with rediss+cluster://; sync_replicas is refused, for want of WAIT"
_ACTIVE = "an active-active database accepts writes in several places: keep locks off it"
#: The first that fits: a service comes before the server that it runs.
SERVICES = (
    Service("Amazon ElastiCache Serverless", _NO_WAIT, r"\.serverless\..*\.amazonaws\.com$", policy="volatile-lru"),
    Service("Amazon MemoryDB", _MULTI_REGION, r"\.memorydb\..*amazonaws\.com$", "^os:Amazon MemoryDB", is_durable=True),
    Service("Amazon ElastiCache", "", r"\.cache\.amazonaws\.com$", "^os:Amazon ElastiCache"),
    Service("Azure Managed Redis", _ACTIVE, r"\.(redis\.azure\.net|redisenterprise\.cache\.azure\.net)$"),
    Service("Azure Cache for Redis", "", r"\.redis\.cache\.windows\.net$"),
    Service("Alibaba Tair", "clusters need script_check_enable 0", r"\.rds\.aliyuncs\.com$", None, "for normal user"),
    Service("Upstash", "leave eviction disabled", r"\.upstash\.io$", "^upstash_version:", r"upstash\.com"),
    Service("Redis Enterprise", _ACTIVE, r"\.(redislabs\.com|redis-cloud\.com|rlrcp\.com)$", "^rlec_version:"),
    Service("OCI Cache", "sharded clusters run no scripts", r"\.redis\..*\.oci\.oraclecloud\.com$"),
    Service("Dragonfly", info="^dragonfly_version:"),
    Service("Garnet", "start it with --lua", info="^garnet_version:"),
    Service("Kvrocks", info="^kvrocks_version:"),
    Service("KeyDB", "keep a single master", info="^mvcc_depth:"),
)


def recognize(server: str, info: Mapping[str, Any], refusals: Iterable[str]) -> Service | None:
    """The service at that address, or None."""
    host = server.rpartition(":")[0].lower()
    texts = (host, "\n".join(f"{key}:{value}" for key, value in info.items()), "\n".join(refusals))
    for service in SERVICES:
        for pattern, text in zip((service.host, service.info, service.refusal), texts, strict=True):
            if pattern is not None and re.search(pattern, text, re.MULTILINE):
                return service
    return None
