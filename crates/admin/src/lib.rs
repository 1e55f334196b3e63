//! HTTP beside the doors: health, metrics.
