//! Memory of Python objects: bytes, arrays, tensors.
//!
//! The stable interface of Python has the buffer protocol since 3.11; the functions are in every interpreter before that, and
//! the struct has been the same since 3.0. So that one wheel serves 3.10 too, they are declared here.

use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;

use pyo3::exceptions::PyValueError;
use pyo3::ffi::{Py_ssize_t, PyObject};
use pyo3::prelude::*;

#[repr(C)]
struct PyBuffer {
    buf: *mut c_void,
    obj: *mut PyObject,
    len: Py_ssize_t,
    itemsize: Py_ssize_t,
    readonly: c_int,
    ndim: c_int,
    format: *mut c_char,
    shape: *mut Py_ssize_t,
    strides: *mut Py_ssize_t,
    suboffsets: *mut Py_ssize_t,
    internal: *mut c_void,
}

const SIMPLE: c_int = 0;
const WRITABLE: c_int = 1;

// SAFETY: as in CPython's `Include/cpython/object.h` and `Include/pybuffer.h`; the struct above is theirs.
unsafe extern "C" {
    fn PyObject_GetBuffer(object: *mut PyObject, view: *mut PyBuffer, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut PyBuffer);
}

/// Memory of an object in one piece, which stays where it is until this is dropped.
pub struct Memory {
    view: Box<PyBuffer>,
}

// SAFETY: the pointer stays valid until `PyBuffer_Release`, which is only called with the interpreter attached. Two threads that
// write to the same memory are the caller's race, as with any buffer of Python.
unsafe impl Send for Memory {}
// SAFETY: as above; shared access reads.
unsafe impl Sync for Memory {}

impl Memory {
    /// Memory to be read.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Memory> {
        Memory::get(object, SIMPLE)
    }

    /// Memory to be filled.
    pub fn to_fill(object: &Bound<'_, PyAny>) -> PyResult<Memory> {
        Memory::get(object, WRITABLE)
    }

    fn get(object: &Bound<'_, PyAny>, flags: c_int) -> PyResult<Memory> {
        let mut view = Box::new(MaybeUninit::<PyBuffer>::zeroed());
        // SAFETY: the object is alive, and the struct is written to before it is used.
        let done = unsafe { PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), flags) };
        if done != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        // SAFETY: the call succeeded, so every field is set.
        let view = unsafe { view.assume_init() };
        if view.len < 0 || (view.buf.is_null() && view.len > 0) {
            return Err(PyValueError::new_err("an object without memory"));
        }
        Ok(Memory { view })
    }

    /// Its length.
    pub fn len(&self) -> usize {
        self.view.len as usize
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        if self.view.len == 0 {
            return &[];
        }
        // SAFETY: the view is held, so the memory is there and as long as it says.
        unsafe { std::slice::from_raw_parts(self.view.buf.cast(), self.len()) }
    }

    /// The bytes, to be filled.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        if self.view.len == 0 {
            return &mut [];
        }
        assert_eq!(self.view.readonly, 0, "asked for as memory to fill");
        // SAFETY: as above, and the object said that it may be written to.
        unsafe { std::slice::from_raw_parts_mut(self.view.buf.cast(), self.len()) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        Python::attach(|_| {
            // SAFETY: the view was got and is released once, with the interpreter attached.
            unsafe { PyBuffer_Release(&mut *self.view) };
        });
    }
}
