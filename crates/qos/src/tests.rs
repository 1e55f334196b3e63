//! Decisions of the scheduler, one at a time.
