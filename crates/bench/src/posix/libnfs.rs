//! libnfs, a real NFS client in user space, loaded if this machine has it.
//!
//! A read or write of several megabytes goes to the server as requests of 1 MiB that are under way together, as a kernel
//! does that reads ahead and writes behind.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::net::SocketAddr;

use super::load::{BLOCK, Patterns};
use crate::clock;
use crate::failure::Failure;
use crate::measure::{Meter, Round};

/// As the packages of distributions call it.
const NAMES: [&CStr; 5] = [c"libnfs.so", c"libnfs.so.14", c"libnfs.so.13", c"libnfs.so.12", c"libnfs.so.16"];

/// Requests that are under way together.
const DEPTH: usize = 8;

type Context = *mut c_void;
type Handle = *mut c_void;

/// The functions that are used.
#[derive(Clone, Copy)]
pub struct Library {
    init: unsafe extern "C" fn() -> Context,
    destroy: unsafe extern "C" fn(Context),
    parse: unsafe extern "C" fn(Context, *const c_char) -> *mut c_void,
    destroy_url: unsafe extern "C" fn(*mut c_void),
    error: unsafe extern "C" fn(Context) -> *const c_char,
    mount: unsafe extern "C" fn(Context, *const c_char, *const c_char) -> c_int,
    open: unsafe extern "C" fn(Context, *const c_char, c_int, *mut Handle) -> c_int,
    creat: unsafe extern "C" fn(Context, *const c_char, c_int, *mut Handle) -> c_int,
    pread: unsafe extern "C" fn(Context, Handle, u64, u64, *mut c_void) -> c_int,
    pwrite: unsafe extern "C" fn(Context, Handle, u64, u64, *const c_void) -> c_int,
    fsync: unsafe extern "C" fn(Context, Handle) -> c_int,
    close: unsafe extern "C" fn(Context, Handle) -> c_int,
    unlink: unsafe extern "C" fn(Context, *const c_char) -> c_int,
}

/// A mounted export.
pub struct Client {
    library: Library,
    context: Context,
}

impl Library {
    /// None if this machine does not have it.
    #[expect(clippy::missing_transmute_annotations, reason = "each field says what its function is")]
    pub fn open() -> Option<Library> {
        let library = NAMES.iter().find_map(|name| {
            // SAFETY: the name has an end; the library is never unloaded, so its functions stay where they are.
            let found = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
            (!found.is_null()).then_some(found)
        })?;
        macro_rules! function {
            ($name:literal) => {{
                // SAFETY: the types in `Library` are those of the library's header, which have not changed since 2.0.
                let found = unsafe { libc::dlsym(library, $name.as_ptr()) };
                if found.is_null() {
                    return None;
                }
                // SAFETY: as above; a function and a pointer have the same size here.
                unsafe { std::mem::transmute(found) }
            }};
        }
        Some(Library {
            init: function!(c"nfs_init_context"),
            destroy: function!(c"nfs_destroy_context"),
            parse: function!(c"nfs_parse_url_dir"),
            destroy_url: function!(c"nfs_destroy_url"),
            error: function!(c"nfs_get_error"),
            mount: function!(c"nfs_mount"),
            open: function!(c"nfs_open"),
            creat: function!(c"nfs_creat"),
            pread: function!(c"nfs_pread"),
            pwrite: function!(c"nfs_pwrite"),
            fsync: function!(c"nfs_fsync"),
            close: function!(c"nfs_close"),
            unlink: function!(c"nfs_unlink"),
        })
    }

    /// Mounts an export.
    pub fn mount(&self, address: SocketAddr, volume: &str) -> Result<Client, Failure> {
        let (host, port) = (address.ip(), address.port());
        let url = text(format!("nfs://{host}/{volume}?version=3&nfsport={port}&mountport={port}"))?;
        let (server, export) = (text(host.to_string())?, text(format!("/{volume}"))?);
        // SAFETY: the calls follow the library's header: a context of its own, strings with an end.
        let (client, mounted) = unsafe {
            let context = (self.init)();
            if context.is_null() {
                return Err(Failure::new("libnfs: no memory"));
            }
            let client = Client { library: *self, context };
            let parsed = (self.parse)(context, url.as_ptr());
            if parsed.is_null() {
                return Err(client.failure("the address"));
            }
            (self.destroy_url)(parsed);
            (client, (self.mount)(context, server.as_ptr(), export.as_ptr()))
        };
        client.check("mount", mounted)?;
        Ok(client)
    }
}

impl Client {
    /// Reads a file from front to back.
    pub fn read(&mut self, name: &str, size: u64) -> Result<Round, Failure> {
        let path = text(format!("/{name}"))?;
        let mut room = vec![0u8; DEPTH * BLOCK];
        let mut meter = Meter::start();
        let mut file: Handle = std::ptr::null_mut();
        // SAFETY: the string has an end, and the handle is a local for the call to fill.
        let opened = unsafe { (self.library.open)(self.context, path.as_ptr(), libc::O_RDONLY, &mut file) };
        self.check("open", opened)?;
        let mut at = 0;
        while at < size {
            let begun = clock::now();
            let len = (size - at).min(room.len() as u64);
            // SAFETY: the handle is open, and the memory has room for what is asked for.
            let count = unsafe {
                (self.library.pread)(self.context, file, at, len, room.as_mut_ptr().cast::<c_void>())
            };
            let count = self.check("read", count)?;
            if count == 0 {
                return Err(Failure::io(name, &io::ErrorKind::UnexpectedEof.into()));
            }
            at += u64::from(count);
            meter.note(count as usize, begun.elapsed());
        }
        self.close(file)?;
        Ok(meter.finish())
    }

    /// Writes a new file from front to back, and has it committed.
    pub fn write(&mut self, name: &str, size: u64) -> Result<Round, Failure> {
        let path = text(format!("/{name}"))?;
        let patterns = Patterns::new();
        let bytes: Vec<u8> =
            (0..DEPTH).flat_map(|block| patterns.at((block * BLOCK) as u64).to_vec()).collect();
        let mut meter = Meter::start();
        let mut file: Handle = std::ptr::null_mut();
        // SAFETY: the string has an end, and the handle is a local for the call to fill.
        let made = unsafe { (self.library.creat)(self.context, path.as_ptr(), 0o644, &mut file) };
        self.check("create", made)?;
        let mut at = 0;
        while at < size {
            let begun = clock::now();
            let len = (size - at).min(bytes.len() as u64);
            // SAFETY: the handle is open, and the memory holds what is to be written.
            let count = unsafe {
                (self.library.pwrite)(self.context, file, at, len, bytes.as_ptr().cast::<c_void>())
            };
            let count = self.check("write", count)?;
            at += u64::from(count);
            meter.note(count as usize, begun.elapsed());
        }
        // SAFETY: the handle is open.
        let committed = unsafe { (self.library.fsync)(self.context, file) };
        self.check("commit", committed)?;
        self.close(file)?;
        Ok(meter.finish())
    }

    /// Removes a file.
    pub fn remove(&mut self, name: &str) -> Result<(), Failure> {
        let path = text(format!("/{name}"))?;
        // SAFETY: the string has an end.
        let removed = unsafe { (self.library.unlink)(self.context, path.as_ptr()) };
        self.check("remove", removed).map(drop)
    }

    fn close(&mut self, file: Handle) -> Result<(), Failure> {
        // SAFETY: the handle is open and not used any more.
        let closed = unsafe { (self.library.close)(self.context, file) };
        self.check("close", closed).map(drop)
    }

    fn check(&self, what: &str, result: c_int) -> Result<u32, Failure> {
        u32::try_from(result).map_err(|_| self.failure(what))
    }

    fn failure(&self, what: &str) -> Failure {
        // SAFETY: the library returns nothing or a string that lives until the next call.
        let words = unsafe {
            let words = (self.library.error)(self.context);
            if words.is_null() { String::new() } else { CStr::from_ptr(words).to_string_lossy().into_owned() }
        };
        Failure::new(format!("libnfs: {what}: {words}"))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // SAFETY: the context is not used any more.
        unsafe { (self.library.destroy)(self.context) };
    }
}

fn text(text: String) -> Result<CString, Failure> {
    CString::new(text).map_err(|_| Failure::new("a name has a zero in it"))
}
