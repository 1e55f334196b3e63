//! Which nodes hold a chunk: rendezvous with weights and spread. Pure.
