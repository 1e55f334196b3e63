//! The door: one trait, plain types, few errors.
