//! What the Python package `stoker` is made of: connections, files, sets and many reads at once, with the interpreter's lock
//! released while a node or a drive is waited for. The words that users see are in `python/stoker`.
//!
//! It must not hold logic that another program would want.

mod buffer;
mod client;
mod dataset;
mod error;
mod feed;
mod file;
mod gpu;
mod jobs;
mod kv;
mod members;
mod order;
mod places;
mod planner;
mod process;
mod sets;
mod writer;

use pyo3::prelude::*;

#[pymodule]
fn _stoker(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("ConflictError", module.py().get_type::<error::ConflictError>())?;
    module.add("CorruptError", module.py().get_type::<error::CorruptError>())?;
    module.add("DeviceError", module.py().get_type::<gpu::DeviceError>())?;
    module.add("TarError", module.py().get_type::<members::TarError>())?;
    module.add_class::<client::Client>()?;
    module.add_class::<feed::Feed>()?;
    module.add_class::<feed::Run>()?;
    module.add_class::<file::File>()?;
    module.add_class::<gpu::Loader>()?;
    module.add_class::<kv::Kv>()?;
    module.add_class::<order::Order>()?;
    module.add_class::<order::Permutation>()?;
    module.add_class::<order::Samples>()?;
    module.add_class::<places::Places>()?;
    module.add_class::<sets::Sets>()?;
    module.add_class::<writer::Writer>()?;
    module.add_function(wrap_pyfunction!(dataset::pack, module)?)?;
    module.add_function(wrap_pyfunction!(members::crc64, module)?)?;
    module.add_function(wrap_pyfunction!(members::members, module)?)?;
    module.add_function(wrap_pyfunction!(dataset::seal, module)?)?;
    module.add_function(wrap_pyfunction!(jobs::job_spec, module)?)?;
    module.add_function(wrap_pyfunction!(planner::plan, module)?)?;
    module.add_function(wrap_pyfunction!(planner::plan_models, module)?)?;
    module.add_function(wrap_pyfunction!(planner::plan_what_if, module)?)?;
    module.add_function(wrap_pyfunction!(planner::explain_slow, module)?)?;
    Ok(())
}
