//! The driver of NVIDIA's GPUs: the few functions that copies need, found at run time.
//!
//! The driver's library, not the runtime's: it is on every machine with a GPU, whatever was installed beside it. Contexts are the
//! primary ones, which PyTorch and all that use the runtime share, so pointers of theirs are valid here.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::error::GpuError;

/// Names that the driver has on Linux.
const LIBRARIES: [&CStr; 2] = [c"libcuda.so.1", c"libcuda.so"];

/// CUDA_ERROR_OUT_OF_MEMORY.
const OUT_OF_MEMORY: c_int = 2;
/// CU_MEMHOSTALLOC_PORTABLE: pinned for all contexts of the process.
const PORTABLE: c_uint = 1;
/// CU_STREAM_NON_BLOCKING: does not wait for the default stream.
const NON_BLOCKING: c_uint = 1;
/// CU_EVENT_BLOCKING_SYNC and CU_EVENT_DISABLE_TIMING: who waits sleeps, instead of burning a core.
const SLEEPING: c_uint = 1 | 2;

macro_rules! api {
    ($($(#[$doc:meta])* $name:ident = $symbol:literal ($($arg:ty),*);)*) => {
        /// Functions of the driver. Tests bring their own.
        #[derive(Clone, Copy)]
        #[expect(missing_docs, reason = "as the driver documents them")]
        pub struct Api {
            $(pub $name: unsafe extern "C" fn($($arg),*) -> c_int,)*
        }

        impl Api {
            /// Finds the driver of this machine.
            pub fn load() -> Result<Api, GpuError> {
                let library = open_library()?;
                Ok(Api { $($name: {
                    // SAFETY: the handle is open, and never closed.
                    let found = unsafe { libc::dlsym(library.as_ptr(), $symbol.as_ptr()) };
                    if found.is_null() {
                        let lacking = $symbol.to_string_lossy();
                        return Err(GpuError::NoDriver(format!("its library has no {lacking}: it is too old")));
                    }
                    // SAFETY: the driver's function of this name has this type, by its stable interface.
                    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) -> c_int>(found) }
                },)* })
            }
        }
    };
}

api! {
    init = c"cuInit" (c_uint);
    error_string = c"cuGetErrorString" (c_int, *mut *const c_char);
    device_get = c"cuDeviceGet" (*mut c_int, c_int);
    device_count = c"cuDeviceGetCount" (*mut c_int);
    device_name = c"cuDeviceGetName" (*mut c_char, c_int, c_int);
    context_retain = c"cuDevicePrimaryCtxRetain" (*mut *mut c_void, c_int);
    context_release = c"cuDevicePrimaryCtxRelease_v2" (c_int);
    context_push = c"cuCtxPushCurrent_v2" (*mut c_void);
    context_pop = c"cuCtxPopCurrent_v2" (*mut *mut c_void);
    host_alloc = c"cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
    host_free = c"cuMemFreeHost" (*mut c_void);
    stream_create = c"cuStreamCreate" (*mut *mut c_void, c_uint);
    stream_destroy = c"cuStreamDestroy_v2" (*mut c_void);
    event_create = c"cuEventCreate" (*mut *mut c_void, c_uint);
    event_destroy = c"cuEventDestroy_v2" (*mut c_void);
    event_record = c"cuEventRecord" (*mut c_void, *mut c_void);
    event_wait = c"cuEventSynchronize" (*mut c_void);
    copy_to_device = c"cuMemcpyHtoDAsync_v2" (u64, *const c_void, usize, *mut c_void);
}

fn open_library() -> Result<NonNull<c_void>, GpuError> {
    let mut why = String::new();
    for name in LIBRARIES {
        // SAFETY: a text that ends with a zero; the library's own start-up code is trusted as that of any program that uses it.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if let Some(handle) = NonNull::new(handle) {
            return Ok(handle);
        }
        // SAFETY: called by the thread whose dlopen failed; the text is copied before the next call.
        let text = unsafe { libc::dlerror() };
        if why.is_empty() && !text.is_null() {
            // SAFETY: not null, and the C library ends it with a zero.
            why = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
        }
    }
    Err(GpuError::NoDriver(why))
}

/// One GPU, by its primary context.
pub struct Cuda {
    api: Api,
    device: c_int,
    context: *mut c_void,
    name: String,
    pid: u32,
}

// SAFETY: a context may be current in any number of threads; the handle is a constant.
unsafe impl Send for Cuda {}
// SAFETY: as above.
unsafe impl Sync for Cuda {}

impl std::fmt::Debug for Cuda {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Cuda({} {})", self.device, self.name)
    }
}

impl Cuda {
    /// The GPU with a number, as the runtime counts them (`CUDA_VISIBLE_DEVICES` included).
    pub fn open(api: Api, number: u32) -> Result<Arc<Cuda>, GpuError> {
        let call = |call, code| check(&api, call, code);
        // SAFETY: no memory is passed.
        call("cuInit", unsafe { (api.init)(0) }).map_err(|fault| GpuError::NoDevice(fault.to_string()))?;
        let (mut count, mut device, mut context) = (0, 0, ptr::null_mut());
        // SAFETY: writes one number.
        call("cuDeviceGetCount", unsafe { (api.device_count)(&mut count) })?;
        let ordinal = c_int::try_from(number).unwrap_or(c_int::MAX);
        if ordinal >= count {
            return Err(GpuError::NoDevice(format!(
                "number {number} is not among the {count} that are visible"
            )));
        }
        // SAFETY: writes one number.
        call("cuDeviceGet", unsafe { (api.device_get)(&mut device, ordinal) })?;
        let mut name = [0 as c_char; 128];
        // SAFETY: writes at most as many bytes as it is told, and a zero among them.
        call("cuDeviceGetName", unsafe { (api.device_name)(name.as_mut_ptr(), 127, device) })?;
        // SAFETY: the last byte is a zero in any case.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        // SAFETY: writes one handle.
        call("cuDevicePrimaryCtxRetain", unsafe { (api.context_retain)(&mut context, device) })?;
        Ok(Arc::new(Cuda { api, device, context, name, pid: std::process::id() }))
    }

    /// What the driver calls it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether this process may use it.
    pub fn is_ours(&self) -> bool {
        self.pid == std::process::id()
    }

    fn call(&self, call: &'static str, code: c_int) -> Result<(), GpuError> {
        check(&self.api, call, code)
    }

    /// Makes it the current device of this thread until the guard goes.
    pub(crate) fn enter(self: &Arc<Cuda>) -> Result<Entered, GpuError> {
        if !self.is_ours() {
            return Err(GpuError::Forked);
        }
        // SAFETY: the context is retained while `self` lives, which the guard sees to.
        self.call("cuCtxPushCurrent", unsafe { (self.api.context_push)(self.context) })?;
        Ok(Entered(self.clone()))
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: retained once, released once; streams and memory hold an `Arc` of it and are gone.
            let _ = unsafe { (self.api.context_release)(self.device) };
        }
    }
}

fn check(api: &Api, call: &'static str, code: c_int) -> Result<(), GpuError> {
    if code == 0 {
        return Ok(());
    }
    let mut text: *const c_char = ptr::null();
    // SAFETY: writes one pointer to a text of the library's own, or none.
    let known = unsafe { (api.error_string)(code, &mut text) } == 0 && !text.is_null();
    let text = match known {
        // SAFETY: not null, constant, ends with a zero.
        true => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
        false => "unknown error".to_owned(),
    };
    Err(GpuError::Call { call, code, text })
}

/// A thread whose current device this is.
pub(crate) struct Entered(Arc<Cuda>);

impl Drop for Entered {
    fn drop(&mut self) {
        let mut old = ptr::null_mut();
        // SAFETY: takes off what `enter` put there; others that push in between pop before.
        let _ = unsafe { (self.0.api.context_pop)(&mut old) };
    }
}

/// Memory of the host that the device's copy engines read by themselves.
pub(crate) struct Pinned {
    cuda: Arc<Cuda>,
    start: NonNull<u8>,
}

impl Pinned {
    /// Page-aligned. The device is entered.
    pub fn new(cuda: &Arc<Cuda>, len: usize) -> Result<Pinned, GpuError> {
        let mut start = ptr::null_mut();
        // SAFETY: writes one pointer.
        let code = unsafe { (cuda.api.host_alloc)(&mut start, len, PORTABLE) };
        if code == OUT_OF_MEMORY {
            return Err(GpuError::OutOfMemory { what: "pinned buffers", bytes: len });
        }
        cuda.call("cuMemHostAlloc", code)?;
        let start =
            NonNull::new(start.cast()).ok_or(GpuError::OutOfMemory { what: "pinned buffers", bytes: len })?;
        Ok(Pinned { cuda: cuda.clone(), start })
    }

    pub fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.cuda.is_ours() {
            // SAFETY: got by `cuMemHostAlloc`, freed once; its lane has waited for all copies from it.
            let _ = unsafe { (self.cuda.api.host_free)(self.start.as_ptr().cast()) };
        }
    }
}

/// Copies in their order.
pub(crate) struct Stream {
    cuda: Arc<Cuda>,
    handle: *mut c_void,
}

// SAFETY: a handle of the driver, which is safe to use from any thread.
unsafe impl Send for Stream {}

impl Stream {
    pub fn new(cuda: &Arc<Cuda>) -> Result<Stream, GpuError> {
        let mut handle = ptr::null_mut();
        // SAFETY: writes one handle.
        cuda.call("cuStreamCreate", unsafe { (cuda.api.stream_create)(&mut handle, NON_BLOCKING) })?;
        Ok(Stream { cuda: cuda.clone(), handle })
    }

    pub fn cuda(&self) -> &Arc<Cuda> {
        &self.cuda
    }

    /// Begins a copy.
    ///
    /// # Safety
    /// `to` is device memory of at least as many bytes. Both stay as they are until an event that is recorded later has come.
    pub unsafe fn copy(&self, to: u64, from: &[u8]) -> Result<(), GpuError> {
        // SAFETY: as promised by the caller.
        let code =
            unsafe { (self.cuda.api.copy_to_device)(to, from.as_ptr().cast(), from.len(), self.handle) };
        self.cuda.call("cuMemcpyHtoDAsync", code)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.cuda.is_ours() {
            // SAFETY: made once, destroyed once.
            let _ = unsafe { (self.cuda.api.stream_destroy)(self.handle) };
        }
    }
}

/// A place in a stream that can be waited for.
pub(crate) struct Event {
    cuda: Arc<Cuda>,
    handle: *mut c_void,
}

// SAFETY: a handle of the driver, which is safe to use from any thread.
unsafe impl Send for Event {}

impl Event {
    pub fn new(cuda: &Arc<Cuda>) -> Result<Event, GpuError> {
        let mut handle = ptr::null_mut();
        // SAFETY: writes one handle.
        cuda.call("cuEventCreate", unsafe { (cuda.api.event_create)(&mut handle, SLEEPING) })?;
        Ok(Event { cuda: cuda.clone(), handle })
    }

    /// All that the stream was told until now.
    pub fn record(&self, stream: &Stream) -> Result<(), GpuError> {
        // SAFETY: both handles live.
        self.cuda.call("cuEventRecord", unsafe { (self.cuda.api.event_record)(self.handle, stream.handle) })
    }

    /// Blocks until it has come. An error of the device shows here, whichever copy had it.
    pub fn wait(&self) -> Result<(), GpuError> {
        // SAFETY: the handle lives.
        self.cuda.call("cuEventSynchronize", unsafe { (self.cuda.api.event_wait)(self.handle) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.cuda.is_ours() {
            // SAFETY: made once, destroyed once.
            let _ = unsafe { (self.cuda.api.event_destroy)(self.handle) };
        }
    }
}
