//! Bytes of a caller on their way into a writer.

use stoker_buffer::Buf;

use crate::error::Result;
use crate::receipt::Receipt;
use crate::store::Writer;
use crate::write::Finish;

/// Copies bytes into the buffers of a writer and fills each to the brim, however they come.
pub struct Filler {
    writer: Box<dyn Writer>,
    /// Filled in part.
    buf: Option<Buf>,
    len: u64,
}

impl Filler {
    /// Fills this writer.
    pub fn new(writer: Box<dyn Writer>) -> Filler {
        Filler { writer, buf: None, len: 0 }
    }

    /// Bytes so far.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True if there were none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds bytes. One that failed or was dropped half way took some of them: the file can only be given up.
    pub async fn put(&mut self, mut bytes: &[u8]) -> Result<()> {
        self.len += bytes.len() as u64;
        while !bytes.is_empty() {
            let mut buf = match self.buf.take() {
                Some(buf) => buf,
                None => self.writer.buffer().await?,
            };
            let (now, rest) = bytes.split_at(bytes.len().min(buf.capacity() - buf.len()));
            buf.fill(now);
            bytes = rest;
            match buf.len() == buf.capacity() {
                true => self.writer.write(buf).await?,
                false => self.buf = Some(buf),
            }
        }
        Ok(())
    }

    /// Hands over the last bytes; returns the writer, to be finished.
    pub async fn end(mut self) -> Result<Box<dyn Writer>> {
        if let Some(buf) = self.buf.take() {
            self.writer.write(buf).await?;
        }
        Ok(self.writer)
    }

    /// Hands over the last bytes and publishes.
    pub async fn finish(self, finish: Finish) -> Result<Receipt> {
        self.end().await?.finish(finish).await
    }
}
