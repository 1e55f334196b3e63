//! The ring: a crash-proof append log on one drive.
//!
//! Start with [`Ring`]: append, read, delete, iterate. Inside, [`engine`] decides (pure), a driver does the I/O,
//! [`recovery`] reads a drive back after any crash. `docs/data-file.md` draws the bytes.
//!
//! It must not know names, peers, lakes or HTTP.

pub mod admission;
pub mod drive;
mod driver;
pub mod engine;
pub mod error;
mod gate;
pub mod index;
mod io;
mod launch;
pub mod read;
pub mod recovery;
mod ring;
pub mod settings;
pub mod stats;
mod sys;
pub mod tables;
mod twin;
mod view;

pub use drive::{Drive, DriveKind, InitOptions, segment_size_for};
pub use engine::{Damage, Retention, SegmentCounts};
pub use error::{ErrorKind, Result, RingError};
#[cfg(feature = "power")]
pub use io::Power;
pub use io::uring_allowed;
pub use ring::{LocalDriver, OpenOptions, Ring, now_unix_ms};
pub use settings::{IoMode, Settings, SyncMode};
pub use stats::{Histogram, Stats};
pub use stoker_buffer as buffer;
pub use stoker_buffer::{Buf, Pool};
pub use sys::disk_space;
pub use twin::{Ending, TwinDrive};
pub use view::{Lease, Put, ReadView, RecordInfo, ScrubCursor, SealedBlocks, Status};
