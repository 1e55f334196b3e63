"""Which node is meant."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from ._stoker import Client
from .store import Store

SOCKET = "stoker.sock"
#: Where nodes keep their sockets if nobody says otherwise: `stoker up`, and the systemd unit.
USUAL_DIRS = ("stoker-data", "/var/lib/stoker")


@dataclass(frozen=True)
class _Candidate:
    endpoint: str
    token: str | None
    why: str
    ca: str | None = None


def _config_path() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(base) / "stoker" / "client.json"


def _socket(folder: str | os.PathLike[str]) -> str:
    return "unix:" + os.path.join(os.fspath(folder), SOCKET)


def _candidates(endpoint: str | None, token: str | None, dir: str | os.PathLike[str] | None) -> list[_Candidate]:
    token_env = os.environ.get("STOKER_TOKEN") or None
    if endpoint is not None and dir is not None:
        raise ValueError("connect: give an endpoint or a dir, not both")
    if endpoint is not None:
        return [_Candidate(endpoint, token or token_env, "the argument `endpoint`")]
    if dir is not None:
        return [_Candidate(_socket(dir), token, "the argument `dir`")]
    if named := os.environ.get("STOKER_ENDPOINT"):
        return [_Candidate(named, token or token_env, "STOKER_ENDPOINT")]
    if named := os.environ.get("STOKER_DIR"):
        return [_Candidate(_socket(named), token, "STOKER_DIR")]
    found = [_Candidate(_socket(folder), token, f"the usual place {folder}") for folder in USUAL_DIRS]
    config = _config_path()
    try:
        text = config.read_text()
    except OSError:
        found.append(_Candidate("", None, f"the config {config} is not there"))
        return found
    try:
        said = json.loads(text)
        named, folder = said.get("endpoint"), said.get("dir")
        if named is None and folder is None:
            raise ValueError("it has neither `endpoint` nor `dir`")
    except (ValueError, AttributeError) as fault:
        raise ValueError(f"{config}: {fault}") from None
    found.append(_Candidate(named or _socket(folder), token or token_env or said.get("token"), f"the config {config}", said.get("ca")))
    return found


def connect(
    endpoint: str | None = None,
    *,
    token: str | None = None,
    dir: str | os.PathLike[str] | None = None,
    ca: str | os.PathLike[str] | None = None,
    timeout: float = 10.0,
    job: str | None = None,
) -> Store:
    """Connects to a node.

    Looks at the arguments, at ``STOKER_ENDPOINT`` (with ``STOKER_TOKEN``), at ``STOKER_DIR``, at the sockets of a node that runs
    on this machine (``./stoker-data``, ``/var/lib/stoker``) and at ``~/.config/stoker/client.json``
    (``{"endpoint": "node-1:9010", "token": "..."}`` or ``{"dir": "/path"}``), in this order.

    >>> store = stoker.connect(dir="stoker-data")            # a node of this machine
    >>> store = stoker.connect("node-1:9010", token="...")   # any node  # doctest: +SKIP

    At ``tls://HOST:PORT`` the certificate of the node is checked by the authorities in the PEM file ``ca`` (``STOKER_CA``, or ``ca`` in the
    client file), such as ``ca.pem`` in a node's directory; without one, by those that the system trusts.

    With ``job`` (or ``STOKER_JOB``) everything that is read and written is work of that job: what was promised and allowed to it counts.

    Raises ``ConnectionError`` that tells everything that was tried.
    """
    tried: list[str] = []
    ca = ca or os.environ.get("STOKER_CA") or None
    job = job or os.environ.get("STOKER_JOB") or None
    for candidate in _candidates(endpoint, token, dir):
        if not candidate.endpoint:
            tried.append(candidate.why)
            continue
        try:
            return Store(Client(candidate.endpoint, candidate.token, timeout, ca or candidate.ca, job))
        except OSError as fault:
            tried.append(f"{candidate.why}: {fault.strerror or fault}")
            if isinstance(fault, PermissionError):
                hint = "give the node's token with the argument `token` or STOKER_TOKEN"
                raise PermissionError(fault.errno, f"{tried[-1]}; {hint}") from None
    lines = "\n  - ".join(tried)
    hint = "start one with `stoker up`, or name one: stoker.connect(dir=...), stoker.connect('HOST:PORT', token=...)"
    raise ConnectionError(f"no node answers; tried:\n  - {lines}\n{hint}")
