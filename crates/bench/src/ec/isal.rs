//! ISA-L, Intel's library of erasure codes, loaded if this machine has it.

use std::ffi::{CStr, c_int};

use stoker_ec::Scheme;

/// As the packages of distributions call it.
const NAMES: [&CStr; 2] = [c"libisal.so.2", c"libisal.so"];

/// Bytes of the tables of a factor.
const TABLE_LEN: usize = 32;

/// The functions that are used.
#[derive(Clone, Copy)]
pub struct Library {
    matrix: unsafe extern "C" fn(*mut u8, c_int, c_int),
    invert: unsafe extern "C" fn(*mut u8, *mut u8, c_int) -> c_int,
    tables: unsafe extern "C" fn(c_int, c_int, *const u8, *mut u8),
    encode: unsafe extern "C" fn(c_int, c_int, c_int, *const u8, *const *const u8, *const *mut u8),
}

/// A matrix, prepared.
pub struct Program {
    library: Library,
    columns: usize,
    rows: usize,
    tables: Vec<u8>,
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
                // SAFETY: the types in `Library` are those of the library's header, which have not changed since 2.8.
                let found = unsafe { libc::dlsym(library, $name.as_ptr()) };
                if found.is_null() {
                    return None;
                }
                // SAFETY: as above; a function and a pointer have the same size here.
                unsafe { std::mem::transmute(found) }
            }};
        }
        Some(Library {
            matrix: function!(c"gf_gen_cauchy1_matrix"),
            invert: function!(c"gf_invert_matrix"),
            tables: function!(c"ec_init_tables"),
            encode: function!(c"ec_encode_data"),
        })
    }

    /// What makes parity from data.
    pub fn encode(self, scheme: Scheme) -> Program {
        let columns = scheme.data();
        self.program(columns, &self.matrix(scheme)[columns * columns..])
    }

    /// What makes the first data shards from the `k` shards behind them. None if it finds no way.
    pub fn decode(self, scheme: Scheme, lost: usize) -> Option<Program> {
        let columns = scheme.data();
        let mut sources = self.matrix(scheme)[lost * columns..(lost + columns) * columns].to_vec();
        let mut inverse = vec![0; columns * columns];
        // SAFETY: both are square matrices of so many columns.
        let failed = unsafe { (self.invert)(sources.as_mut_ptr(), inverse.as_mut_ptr(), columns as c_int) };
        (failed == 0).then(|| self.program(columns, &inverse[..lost * columns]))
    }

    fn matrix(self, scheme: Scheme) -> Vec<u8> {
        let (rows, columns) = (scheme.width(), scheme.data());
        let mut matrix = vec![0; rows * columns];
        // SAFETY: it fills rows times columns.
        unsafe { (self.matrix)(matrix.as_mut_ptr(), rows as c_int, columns as c_int) };
        matrix
    }

    fn program(self, columns: usize, factors: &[u8]) -> Program {
        let rows = factors.len() / columns;
        let mut tables = vec![0; TABLE_LEN * factors.len()];
        // SAFETY: it reads as many factors and fills a table for each.
        unsafe { (self.tables)(columns as c_int, rows as c_int, factors.as_ptr(), tables.as_mut_ptr()) };
        Program { library: self, columns, rows, tables }
    }
}

impl Program {
    /// Makes the outputs from the sources, all of one length.
    pub fn run(&self, sources: &[&[u8]], outputs: &mut [&mut [u8]]) {
        let len = outputs[0].len();
        assert!(sources.len() == self.columns && outputs.len() == self.rows, "shards of the matrix");
        assert!(sources.iter().all(|source| source.len() == len), "sources of one length");
        assert!(outputs.iter().all(|output| output.len() == len), "outputs of one length");
        let sources: Vec<*const u8> = sources.iter().map(|source| source.as_ptr()).collect();
        let outputs: Vec<*mut u8> = outputs.iter_mut().map(|output| output.as_mut_ptr()).collect();
        let (len, columns, rows) = (len as c_int, self.columns as c_int, self.rows as c_int);
        // SAFETY: as many pointers as it was prepared for, each to so many bytes, which outlive the call.
        unsafe {
            (self.library.encode)(
                len,
                columns,
                rows,
                self.tables.as_ptr(),
                sources.as_ptr(),
                outputs.as_ptr(),
            );
        }
    }
}
