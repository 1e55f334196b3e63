//! One file into Stoker.

use std::fs::{File, Metadata};
use std::io::{self, Read, Stdin};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use stoker_client::Client;
use stoker_store::{
    Attributes, Buf, Condition, Finish, Key, Receipt, SetId, ShardRequest, Store, WriteRequest, Writer,
};

use crate::failure::Failure;
use crate::progress::Progress;

/// What every file of a run gets.
#[derive(Clone, Default)]
pub struct UploadOptions {
    /// Content type and the like.
    pub attributes: Attributes,
    /// Keeps mode and modification time.
    pub preserve: bool,
    /// Refuses to replace a file.
    pub no_clobber: bool,
}

/// Which shard of which set a file becomes.
pub struct ShardAt {
    /// The set.
    pub set: SetId,
    /// Its number in the set.
    pub number: u32,
    /// Who writes it, for people.
    pub writer: String,
}

enum Input {
    File(File),
    Stdin(Stdin),
}

struct Source {
    /// For messages.
    name: String,
    input: Input,
}

impl Source {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = match &mut self.input {
                Input::File(file) => file.read(bytes),
                Input::Stdin(stdin) => stdin.read(bytes),
            };
            match read {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }
}

/// Writes a local file to a key.
pub async fn file(
    client: &Client,
    path: &Path,
    volume: &str,
    key: &Key,
    how: &UploadOptions,
    progress: &Progress,
) -> Result<Receipt, Failure> {
    let (source, request) = open(path, how)?;
    let size = request.size;
    let writer = client.create(volume, key, request).await?;
    write(writer, source, size, progress).await
}

/// Writes a local file as a shard of a checkpoint set.
pub async fn shard(
    client: &Client,
    path: &Path,
    volume: &str,
    key: &Key,
    place: ShardAt,
    how: &UploadOptions,
    progress: &Progress,
) -> Result<Receipt, Failure> {
    let (source, WriteRequest { attributes, size, .. }) = open(path, how)?;
    let request = ShardRequest { number: place.number, writer: place.writer, attributes, size };
    let writer = client.set_shard(volume, key, place.set, request).await?;
    write(writer, source, size, progress).await
}

fn open(path: &Path, how: &UploadOptions) -> Result<(Source, WriteRequest), Failure> {
    let cannot = |error: &io::Error| Failure::io(path.display(), error);
    let file = File::open(path).map_err(|error| cannot(&error))?;
    let meta = file.metadata().map_err(|error| cannot(&error))?;
    // Files of the kernel say 0 and hold something; their length shows at the end.
    let size = Some(meta.len()).filter(|&size| meta.is_file() && size > 0);
    let request = request(how, size, Some(&meta));
    Ok((Source { name: path.display().to_string(), input: Input::File(file) }, request))
}

/// Writes stdin to a key.
pub async fn stdin(
    client: &Client,
    volume: &str,
    key: &Key,
    how: &UploadOptions,
    progress: &Progress,
) -> Result<Receipt, Failure> {
    let source = Source { name: "stdin".to_owned(), input: Input::Stdin(io::stdin()) };
    let writer = client.create(volume, key, request(how, None, None)).await?;
    write(writer, source, None, progress).await
}

fn request(how: &UploadOptions, size: Option<u64>, meta: Option<&Metadata>) -> WriteRequest {
    let mut attributes = how.attributes.clone();
    if let Some(meta) = meta.filter(|_| how.preserve) {
        attributes.mode = Some(meta.mode());
        attributes.mtime_ns = meta.mtime().checked_mul(1_000_000_000).map(|ns| ns + meta.mtime_nsec());
    }
    let condition = if how.no_clobber { Condition::absent() } else { Condition::default() };
    WriteRequest { attributes, condition, size, append: false }
}

async fn write(
    mut writer: Box<dyn Writer>,
    source: Source,
    announced: Option<u64>,
    progress: &Progress,
) -> Result<Receipt, Failure> {
    let name = source.name.clone();
    let (mut source, mut written) = (source, 0);
    loop {
        let buf = writer.buffer().await?;
        let left = announced.map_or(u64::MAX, |size| size - written);
        let filled = fill(source, buf, left).await.map_err(|error| Failure::io(&name, &error))?;
        source = filled.source;
        let len = filled.buf.len() as u64;
        writer.write(filled.buf).await?;
        written += len;
        progress.add(len);
        if filled.at_end {
            break;
        }
        if announced == Some(written) {
            let cause = format!("{name}: grew beyond {written} bytes while it was read");
            return Err(Failure::new(cause).hint("try again when nobody writes to it"));
        }
    }
    if let Some(size) = announced.filter(|&size| size != written) {
        let cause = format!("{name}: shrank from {size} to {written} bytes while it was read");
        return Err(Failure::new(cause).hint("try again when nobody writes to it"));
    }
    Ok(writer.finish(Finish::default()).await?)
}

struct Filled {
    source: Source,
    buf: Buf,
    /// Nothing is left to be read.
    at_end: bool,
}

/// Reads until there is no more room, `left` bytes were read or nothing more is there.
async fn fill(mut source: Source, mut buf: Buf, left: u64) -> io::Result<Filled> {
    blocking(move || {
        let room = left.min(buf.capacity() as u64) as usize;
        buf.set_len(room);
        let mut filled = 0;
        while filled < room {
            match source.read(&mut buf.as_mut_slice()[filled..])? {
                0 => break,
                read => filled += read,
            }
        }
        buf.set_len(filled);
        // Behind the announced end there should be nothing.
        let at_end = filled < room || (left == room as u64 && source.read(&mut [0])? == 0);
        Ok(Filled { source, buf, at_end })
    })
    .await
}

/// Runs what may block on a thread of its own.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(io::Error::other(error)),
    }
}
