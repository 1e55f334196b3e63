//! The stores behind the interface: in memory, in one file, in PostgreSQL.

mod apply;
mod changes;
mod embedded;
mod memory;
mod postgres;
pub(crate) mod watches;

pub use embedded::{
    Beginning, CatalogFile, Embedded, EmbeddedOptions, Origin, Position, PrimaryOptions, PromoteOptions,
    Promotion, ReplicaMember, ReplicaProgress, ReplicaStanding, ReplicaWays, ReplicatedCatalog, Replication,
    Role, STANDBYS_MAX, Standby, StandbyOptions, StandbyReport, StandbyStatus, WhenAlone, build, inspect,
    promote, put_aside, read_file, read_table,
};
pub use memory::Memory;

pub(crate) use embedded::{CommitName, Lasting};
pub use postgres::{Postgres, PostgresOptions};
