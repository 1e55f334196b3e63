//! Bytes of files into the memory of a GPU, or of the host, by one code: ranges of files are read in large pieces into pinned
//! buffers, many at once, checked there, and copied to the device while the next ones are read.
//!
//! A [`Plan`] says which ranges of which files go where. A [`Loader`] carries it out with threads; each of them has a lane: a
//! few page-aligned buffers and a stream of the device. It takes the next piece of the plan, has the [`Source`] read and verify
//! it in a buffer, has the stream copy it to where its bytes belong, and goes on with its other buffer meanwhile. What a source
//! refuses is never copied. The driver of the GPU is loaded at run time; without one the device is [`Device::Host`] and the same
//! threads copy by themselves. A [`cache::Cache`] keeps verified bytes in shared memory of the machine, so that a second load
//! reads no drive.
//!
//! It must not know nodes, sockets or Python, start kernels on a device, or own the memory that it fills.

pub mod cache;
mod cuda;
mod device;
mod error;
mod lane;
mod loader;
mod memory;
mod plain;
mod plan;
mod report;

pub use cuda::{Api, Cuda};
pub use device::Device;
pub use error::{GpuError, LoadError};
pub use loader::{Loader, Settings, Source};
pub use plain::PlainFiles;
pub use plan::{Plan, Segment};
pub use report::{BUCKETS, Report};

/// Room that a buffer has beyond a piece: what sources read in front of and behind it to have whole blocks.
pub const SLACK: usize = 256 << 10;
