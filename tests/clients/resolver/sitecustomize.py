"""One host name with several addresses, for every Python that is started with this folder in PYTHONPATH.

Stands in for a DNS server alone: STOKER_NAME is answered with all of STOKER_ADDRESSES, and each answer begins with another one,
as a server that rotates its answers does. What a client makes of them is its own doing.
"""

import itertools
import os
import socket

_real = socket.getaddrinfo
_name = os.environ.get("STOKER_NAME", "")
_addresses = os.environ.get("STOKER_ADDRESSES", "").split()
# Short-lived programs would all begin with the first address otherwise.
_turn = itertools.count(os.getpid())


def _several(host, *args, **more):
    if not _name or host not in (_name, _name.encode()):
        return _real(host, *args, **more)
    first = next(_turn) % len(_addresses)
    rows = [_real(address, *args, **more) for address in _addresses[first:] + _addresses[:first]]
    return list(itertools.chain.from_iterable(rows))


socket.getaddrinfo = _several
