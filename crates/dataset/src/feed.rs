//! Turns files into the bytes of a tar, batch by batch: many small files at once, a large one in pieces.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};
use stoker_store::Store;

use crate::fault::{Fault, Result};
use crate::inputs::{Input, Inputs, Source};
use crate::{tar, tree};

/// Bytes of a batch.
const BATCH: u64 = 4 << 20;
/// Files of a batch.
const BATCH_FILES: usize = 1024;
/// Files of a volume that are read at once for a batch.
const READS: usize = 16;

/// What is read at once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Batch {
    /// Whole files.
    Files(Range<usize>),
    /// A range of one.
    Piece(usize, Range<u64>),
}

/// The batches of a shard.
pub fn batches(inputs: &Inputs, files: Range<usize>) -> Vec<Batch> {
    let mut batches = Vec::new();
    let (mut first, mut len) = (files.start, 0);
    let flush = |batches: &mut Vec<Batch>, files: Range<usize>| {
        if !files.is_empty() {
            batches.push(Batch::Files(files));
        }
    };
    for index in files.clone() {
        let size = inputs.get(index).size;
        if size > BATCH {
            flush(&mut batches, first..index);
            let pieces = (0..size.div_ceil(BATCH)).map(|piece| piece * BATCH);
            batches.extend(pieces.map(|at| Batch::Piece(index, at..size.min(at + BATCH))));
            (first, len) = (index + 1, 0);
        } else if len + size > BATCH || index - first == BATCH_FILES {
            flush(&mut batches, first..index);
            (first, len) = (index, size);
        } else {
            len += size;
        }
    }
    flush(&mut batches, first..files.end);
    batches
}

/// The bytes of a batch, with headers and padding.
pub async fn read(store: Arc<dyn Store>, inputs: Arc<Inputs>, batch: Batch) -> Result<Vec<u8>> {
    match inputs.source() {
        Source::Local(_) => {
            let read = tokio::task::spawn_blocking(move || read_local(&inputs, &batch));
            read.await.unwrap_or_else(|error| Err(Fault::io("")(io::Error::other(error))))
        }
        Source::Volume { volume, .. } => {
            let volume = volume.clone();
            read_volume(&*store, &volume, &inputs, &batch).await
        }
    }
}

/// Bytes of one file, with its header if they are the first and its padding if they are the last.
fn framed(
    input: &Input<'_>,
    range: &Range<u64>,
    bytes: impl FnOnce(&mut [u8]) -> Result<()>,
) -> Result<Vec<u8>> {
    let mut tar = if range.start == 0 { input.header() } else { Vec::new() };
    let (data, len) = (tar.len(), (range.end - range.start) as usize);
    tar.resize(data + len, 0);
    bytes(&mut tar[data..])?;
    if range.end == input.size {
        tar.resize(tar.len().next_multiple_of(tar::BLOCK as usize), 0);
    }
    Ok(tar)
}

fn read_local(inputs: &Inputs, batch: &Batch) -> Result<Vec<u8>> {
    match batch {
        Batch::Piece(index, range) => read_local_range(inputs, &inputs.get(*index), range),
        Batch::Files(files) => {
            let mut tar = Vec::new();
            for index in files.clone() {
                let input = inputs.get(index);
                tar.extend_from_slice(&read_local_range(inputs, &input, &(0..input.size))?);
            }
            Ok(tar)
        }
    }
}

fn read_local_range(inputs: &Inputs, input: &Input<'_>, range: &Range<u64>) -> Result<Vec<u8>> {
    let Source::Local(root) = inputs.source() else { unreachable!("a file of a volume") };
    let cannot = |error| Fault::io(inputs.path_of(input.name))(error);
    let file = File::open(root.join(std::ffi::OsStr::from_bytes(input.name))).map_err(cannot)?;
    let is_same = || {
        let meta = file.metadata().map_err(cannot)?;
        Ok(meta.len() == input.size && tree::mtime_ns(&meta) == input.mtime_ns)
    };
    if !is_same()? {
        return Err(inputs.changed(input.name));
    }
    let tar = framed(input, range, |into| match file.read_exact_at(into, range.start) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err(inputs.changed(input.name)),
        other => other.map_err(cannot),
    })?;
    // Written to meanwhile, it may be half old and half new.
    if is_same()? { Ok(tar) } else { Err(inputs.changed(input.name)) }
}

async fn read_volume(store: &dyn Store, volume: &str, inputs: &Inputs, batch: &Batch) -> Result<Vec<u8>> {
    match batch {
        Batch::Piece(index, range) => read_range(store, volume, inputs, *index, range.clone()).await,
        Batch::Files(files) => {
            let mut reads = Vec::with_capacity(files.len());
            for index in files.clone() {
                let whole = 0..inputs.get(index).size;
                reads.push(read_range(store, volume, inputs, index, whole));
            }
            let tars: Vec<Vec<u8>> = stream::iter(reads).buffered(READS).try_collect().await?;
            Ok(tars.concat())
        }
    }
}

async fn read_range(
    store: &dyn Store,
    volume: &str,
    inputs: &Inputs,
    index: usize,
    range: Range<u64>,
) -> Result<Vec<u8>> {
    let input = inputs.get(index);
    let key = inputs.key_of(input.name)?;
    let file = match store.open(volume, &key).await {
        Err(error) if error.kind == stoker_store::ErrorKind::NotFound => {
            return Err(inputs.changed(input.name));
        }
        other => other.map_err(Fault::of(volume, &key))?,
    };
    // An open file stays one version, so this one look is enough.
    if file.info().version.0 != input.version || file.info().size != input.size {
        return Err(inputs.changed(input.name));
    }
    let mut data = Vec::with_capacity((range.end - range.start) as usize);
    while (data.len() as u64) < range.end - range.start {
        let at = range.start + data.len() as u64;
        let bytes = file.read(at, (range.end - at) as usize).await.map_err(Fault::of(volume, &key))?;
        if bytes.is_empty() {
            return Err(inputs.changed(input.name));
        }
        data.extend_from_slice(&bytes);
    }
    framed(&input, &range, |into| {
        into.copy_from_slice(&data);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_cover_every_byte_once_in_order() {
        let mut inputs = Inputs::new(Source::Local("in".into()));
        for (number, size) in [10, BATCH, 1, 2 * BATCH + 1, 0, BATCH + 1].into_iter().enumerate() {
            inputs.push(format!("{number}.bin").as_bytes(), size, 0, [0; 12]).unwrap();
        }
        let expect = [
            Batch::Files(0..1),
            Batch::Files(1..2),
            Batch::Files(2..3),
            Batch::Piece(3, 0..BATCH),
            Batch::Piece(3, BATCH..2 * BATCH),
            Batch::Piece(3, 2 * BATCH..2 * BATCH + 1),
            Batch::Files(4..5),
            Batch::Piece(5, 0..BATCH),
            Batch::Piece(5, BATCH..BATCH + 1),
        ];
        assert_eq!(batches(&inputs, 0..6), expect);
        let mut inputs = Inputs::new(Source::Local("in".into()));
        for number in 0..BATCH_FILES + 1 {
            inputs.push(format!("{number}.bin").as_bytes(), 0, 0, [0; 12]).unwrap();
        }
        let expect = [Batch::Files(0..BATCH_FILES), Batch::Files(BATCH_FILES..BATCH_FILES + 1)];
        assert_eq!(batches(&inputs, 0..BATCH_FILES + 1), expect);
    }
}
