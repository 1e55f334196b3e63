"""Checkpoints for torch.

>>> import stoker.torch
>>> import torch.distributed.checkpoint as dcp
>>> writer = stoker.torch.StokerWriter(mode="snapshot", keep_last=3)
>>> dcp.save(state, checkpoint_id="stoker://run/step-1000", storage_writer=writer)
>>> dcp.load(state, checkpoint_id=stoker.torch.latest("stoker://run/"), storage_reader=stoker.torch.StokerReader())

``dcp.save(state, checkpoint_id="stoker://run/step-1000")`` without a writer does the same as ``StokerWriter()``; see
:mod:`stoker.torch.hook`.
"""

from .hook import install
from .reader import StokerReader
from .receipt import SaveReceipt
from .retention import Retention
from .status import CheckpointStatus, incomplete, latest, status
from .writer import StokerWriter

__all__ = [
    "CheckpointStatus",
    "Retention",
    "SaveReceipt",
    "StokerReader",
    "StokerWriter",
    "incomplete",
    "install",
    "latest",
    "status",
]

install()
