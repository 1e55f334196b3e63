//! One suite for every engine, and what only one of them promises.

mod backups;
mod bench;
mod conformance;
mod damage;
mod embedded;
mod failover;
mod fixture;
mod full_disk;
mod group;
mod logged;
mod memory;
mod postgres;
mod proxy;
mod remote;
mod server;
mod standbys;
mod upgraded;
mod wires;
