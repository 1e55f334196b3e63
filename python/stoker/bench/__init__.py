"""Figures of the package beside the same without Stoker: same data, same drive, one run.

``python -m stoker.bench loader|checkpoint|kv|gpu`` starts a node of its own in a folder of ``--dir`` that is removed at the end. Rounds of
all sides follow each other, forth and back, and a ratio is the middle of those of neighbouring rounds: what drifts, drifts for all.
A side whose library is not installed is left out, with the reason. A missed bar does not change the exit code; it is a measurement.
"""
