//! Where bytes go.

use std::sync::Arc;

use crate::cuda::Cuda;

/// A device that is filled.
#[derive(Clone, Debug)]
pub enum Device {
    /// Main memory: threads copy by themselves.
    Host,
    /// A GPU: its copy engines read pinned memory.
    Cuda(Arc<Cuda>),
}

impl Device {
    /// How bytes travel, as reports say it.
    pub fn path(&self) -> &'static str {
        match self {
            Device::Host => "host",
            Device::Cuda(_) => "pinned",
        }
    }
}
