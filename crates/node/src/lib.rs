//! The door implemented on rings, catalog and lake; the loops that drain, stage, collect and scrub.
