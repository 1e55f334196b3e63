//! One file out of Stoker, checked against its checksum before it has its name.

use std::io::{self, Write};
use std::path::Path;

use crc_fast::{CrcAlgorithm, Digest};
use futures_util::stream::{self, StreamExt};
use stoker_client::Client;
use stoker_store::{Checksum, ChecksumKind, File, FileInfo, Key, Store};

use super::local::PartFile;
use super::upload::blocking;
use crate::failure::Failure;
use crate::out;
use crate::progress::Progress;

/// Bytes asked for at once.
const PIECE: u64 = 4 << 20;
/// Pieces under way for one file.
const PIECES_AHEAD: usize = 4;

/// How a file is made here.
#[derive(Clone, Copy, Default)]
pub struct DownloadOptions {
    /// Sets mode and modification time to those of the file in Stoker, where it has some.
    pub preserve: bool,
    /// Refuses to replace a file.
    pub no_clobber: bool,
}

/// Writes a key to a local file.
pub async fn file(
    client: &Client,
    volume: &str,
    key: &Key,
    path: &Path,
    how: DownloadOptions,
    progress: &Progress,
) -> Result<FileInfo, Failure> {
    if how.no_clobber && path.symlink_metadata().is_ok() {
        return Err(
            Failure::new(format!("{} exists", path.display())).hint("leave --no-clobber away to replace it")
        );
    }
    let cannot = |error: &io::Error| Failure::io(path.display(), error);
    if path.is_dir() {
        return Err(cannot(&io::ErrorKind::IsADirectory.into()));
    }
    let open = client.open(volume, key).await?;
    let mut part = PartFile::create(path).map_err(|error| cannot(&error))?;
    let sink = |bytes: Vec<bytes::Bytes>, mut part: PartFile| {
        bytes.iter().try_for_each(|bytes| part.file().write_all(bytes)).map(|()| part)
    };
    part = copy(&*open, part, sink, progress).await.map_err(|failure| failure.at(&cannot))?;
    let info = open.info().clone();
    part.finish(how.preserve.then_some(&info.attributes)).map_err(|error| cannot(&error))?;
    Ok(info)
}

/// Writes a key to stdout. Damage shows only at the end, by the exit code.
pub async fn stdout(
    client: &Client,
    volume: &str,
    key: &Key,
    progress: &Progress,
) -> Result<FileInfo, Failure> {
    let open = client.open(volume, key).await?;
    let sink = |bytes: Vec<bytes::Bytes>, ()| {
        let mut stdout = io::stdout().lock();
        bytes.iter().try_for_each(|bytes| stdout.write_all(bytes)).and_then(|()| stdout.flush())
    };
    copy(&*open, (), sink, progress).await.map_err(|failure| match failure {
        Broken::Local(error) if error.kind() == io::ErrorKind::BrokenPipe => Failure::PipeClosed,
        other => other.at(&|error| Failure::io("stdout", error)),
    })?;
    Ok(open.info().clone())
}

/// Which side failed.
enum Broken {
    Local(io::Error),
    Stoker(Failure),
}

impl Broken {
    fn at(self, cannot: &dyn Fn(&io::Error) -> Failure) -> Failure {
        match self {
            Broken::Local(error) => cannot(&error),
            Broken::Stoker(failure) => failure,
        }
    }
}

/// Reads pieces ahead, hands them to the sink in order, checks length and checksum.
async fn copy<S: Send + 'static>(
    file: &dyn File,
    mut state: S,
    sink: impl Fn(Vec<bytes::Bytes>, S) -> io::Result<S> + Clone + Send + 'static,
    progress: &Progress,
) -> Result<S, Broken> {
    let info = file.info();
    let offsets = (0..info.size.div_ceil(PIECE)).map(|piece| piece * PIECE);
    let mut pieces = stream::iter(offsets)
        .map(|offset| read_piece(file, offset, PIECE.min(info.size - offset) as usize))
        .buffered(PIECES_AHEAD);
    let mut crc64 = Digest::new(CrcAlgorithm::Crc64Nvme);
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(Broken::Stoker)?;
        let len: usize = piece.iter().map(bytes::Bytes::len).sum();
        piece.iter().for_each(|bytes| crc64.update(bytes));
        let sink = sink.clone();
        state = blocking(move || sink(piece, state)).await.map_err(Broken::Local)?;
        progress.add(len as u64);
    }
    let expected = info.checksums.iter().find(|sum| sum.kind == ChecksumKind::Crc64Nvme && sum.parts == 0);
    match expected {
        Some(Checksum { value, .. }) if value[..] != crc64.finalize().to_be_bytes() => {
            let cause = format!("{}: the bytes that came do not have the file's CRC-64/NVME", info.key);
            Err(Broken::Stoker(Failure::new(cause).hint("try again; if it stays, look at the node's log")))
        }
        Some(_) => Ok(state),
        None => {
            out::say(format!(
                "{}: every chunk was checked where it was read; the file has no checksum of the whole to compare with",
                info.key
            ));
            Ok(state)
        }
    }
}

/// Reads exactly that much, in as many answers as it takes.
async fn read_piece(file: &dyn File, mut offset: u64, len: usize) -> Result<Vec<bytes::Bytes>, Failure> {
    let mut parts = Vec::new();
    let mut rest = len;
    while rest > 0 {
        let bytes = file.read(offset, rest).await?;
        if bytes.is_empty() {
            let cause =
                format!("{}: ends at {offset}, before its length of {}", file.info().key, file.info().size);
            return Err(Failure::new(cause).hint("look at the node's log"));
        }
        rest -= bytes.len();
        offset += bytes.len() as u64;
        parts.push(bytes);
    }
    Ok(parts)
}
