//! Other lakes than the real ones.

use std::fmt;
use std::sync::Arc;

use crate::Lake;

/// From a URL to a lake.
type OpenLake = dyn Fn(&str) -> Arc<dyn Lake> + Send + Sync;

/// Opens lakes by URL instead of the real ones; for tests and simulation.
#[derive(Clone)]
pub struct LakeOpener(pub Arc<OpenLake>);

impl fmt::Debug for LakeOpener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LakeOpener")
    }
}
