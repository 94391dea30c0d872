"""Several locks under one lease, all or none."""

from __future__ import annotations

from holdfast._api.multilock import MultiLockBase
from holdfast._async.lease import Lease
from holdfast._async.lock import Leasable


class MultiLock(MultiLockBase, Leasable[Lease]):
    """Several locks under one lease, all or none. Made by `Client.multilock`.

    They are the locks that `lock` makes: a holder of one of them alone is waited for. `lease.fencing_token` is
    greater than every earlier one of each. One loss ends the lease. As a context manager it acquires without a limit.
    """
