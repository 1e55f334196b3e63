//! The stores behind the interface: in memory, in one file, in PostgreSQL.

mod apply;
mod changes;
mod embedded;
mod memory;
mod postgres;
mod watches;

pub use embedded::{Embedded, EmbeddedOptions};
pub use memory::Memory;
pub use postgres::{Postgres, PostgresOptions};
