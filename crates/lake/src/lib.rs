//! The object store behind a volume: a narrow trait over raw keys.
