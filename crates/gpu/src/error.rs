//! Why a device cannot be used, and why a load ended.

use std::fmt;

/// Something that the device, its driver or the request has against it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GpuError {
    /// There is no driver library on this machine, or it lacks a function.
    NoDriver(String),
    /// The driver is there and shows no such device.
    NoDevice(String),
    /// The machine or the device has no more memory.
    OutOfMemory {
        /// What the memory was for.
        what: &'static str,
        /// How much was asked for.
        bytes: usize,
    },
    /// The process was forked: a driver serves only the process that started it.
    Forked,
    /// A call of the driver failed.
    Call {
        /// Which one.
        call: &'static str,
        /// What it returned.
        code: i32,
        /// The driver's words for that.
        text: String,
    },
    /// What was asked for makes no sense.
    Invalid(String),
}

impl fmt::Display for GpuError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuError::NoDriver(why) => write!(out, "no CUDA driver: {why}"),
            GpuError::NoDevice(why) => write!(out, "no CUDA device: {why}"),
            GpuError::OutOfMemory { what, bytes } => write!(out, "out of memory: {bytes} bytes for {what}"),
            GpuError::Forked => {
                out.write_str("the process was forked after CUDA was started; start it by `spawn`")
            }
            GpuError::Call { call, code, text } => write!(out, "{call} failed: {text} ({code})"),
            GpuError::Invalid(why) => out.write_str(why),
        }
    }
}

impl std::error::Error for GpuError {}

/// Why a load ended early. What it had filled until then is not to be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LoadError<F> {
    /// The device.
    Gpu(GpuError),
    /// The source: damaged, gone, out of reach.
    Source(F),
    /// Somebody asked it to end.
    Cancelled,
}

impl<F> From<GpuError> for LoadError<F> {
    fn from(fault: GpuError) -> LoadError<F> {
        LoadError::Gpu(fault)
    }
}
