//! Plain files as a source: what a drive gives without anything in between. Their bytes are not verified.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use stoker_format::BLOCK;

use crate::loader::Source;

/// Files that are open for reading.
#[derive(Debug, Default)]
pub struct PlainFiles(Vec<One>);

#[derive(Debug)]
struct One {
    file: File,
    size: u64,
    is_direct: bool,
}

impl PlainFiles {
    /// Opens files, past the page cache where their file systems let that happen.
    pub fn open<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>, direct: bool) -> io::Result<PlainFiles> {
        paths
            .into_iter()
            .map(|path| One::open(path.as_ref(), direct))
            .collect::<io::Result<_>>()
            .map(PlainFiles)
    }
}

impl One {
    fn open(path: &Path, direct: bool) -> io::Result<One> {
        let straight = File::options().read(true).custom_flags(libc::O_DIRECT).open(path);
        let (file, is_direct) = match (direct, straight) {
            (true, Ok(file)) => (file, true),
            _ => (File::open(path)?, false),
        };
        let size = file.metadata()?.len();
        Ok(One { file, size, is_direct })
    }
}

impl Source for PlainFiles {
    type Fault = io::Error;

    fn read(&self, file: usize, offset: u64, len: usize, room: &mut [u8]) -> io::Result<Range<usize>> {
        let one = self.0.get(file).ok_or(io::ErrorKind::NotFound)?;
        let skip = if one.is_direct { (offset % BLOCK as u64) as usize } else { 0 };
        let len = len.min(room.len().saturating_sub(skip + BLOCK));
        // A direct read asks for whole blocks, also behind the end of the file.
        let whole = if one.is_direct { (skip + len).next_multiple_of(BLOCK) } else { len };
        let start = offset - skip as u64;
        if len == 0 || offset >= one.size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        loop {
            match one.file.read_at(&mut room[..whole], start) {
                Ok(count) if count > skip => return Ok(skip..count.min(skip + len)),
                Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}
