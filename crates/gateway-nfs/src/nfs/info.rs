//! What a file system is like.

use stoker_files::LINKS_MAX;

use super::attr;
use super::{Asked, Outcome, Status, TRANSFER_MAX, read_handle};
use crate::xdr::{self, Reader};

/// Bytes of a directory that are asked for at once.
const DIRECTORY_BYTES: u32 = 64 << 10;
const SIZE_MAX: u64 = 50 << 40;
const FILES_FREE: u64 = 1 << 32;

/// Hard links, symbolic links, one answer for all of a volume, times can be set.
const PROPERTIES: u32 = 0x01 | 0x02 | 0x08 | 0x10;

impl Asked<'_> {
    pub(super) async fn fsstat(&mut self, mut input: Reader) -> xdr::Result<()> {
        let handle = read_handle(&mut input)?;
        let found = async {
            let at = self.at(&handle).await?;
            let space = at.volume.files.space().await?;
            Outcome::Ok((at, space))
        };
        match found.await {
            Ok((at, space)) => {
                self.status(Status::Ok);
                attr::write_after(&mut self.out, &at.volume, at.volume.files.peek(at.ino).ok().as_ref());
                for number in [space.bytes, space.free, space.free] {
                    self.out.u64(number);
                }
                for number in [space.files.saturating_add(FILES_FREE), FILES_FREE, FILES_FREE] {
                    self.out.u64(number);
                }
                // It may change at any moment.
                self.out.u32(0);
            }
            Err(status) => {
                self.status(status);
                self.out.bool(false);
            }
        }
        Ok(())
    }

    pub(super) async fn fsinfo(&mut self, mut input: Reader) -> xdr::Result<()> {
        let handle = read_handle(&mut input)?;
        match self.at(&handle).await {
            Ok(at) => {
                self.status(Status::Ok);
                attr::write_after(&mut self.out, &at.volume, at.volume.files.peek(at.ino).ok().as_ref());
                // Most, wanted and multiple of reads, then of writes; then wanted of directories.
                let words =
                    [TRANSFER_MAX, TRANSFER_MAX, 4096, TRANSFER_MAX, TRANSFER_MAX, 4096, DIRECTORY_BYTES];
                words.into_iter().for_each(|word| self.out.u32(word));
                self.out.u64(SIZE_MAX);
                // Times are exact to the nanosecond.
                self.out.u32(0);
                self.out.u32(1);
                self.out.u32(PROPERTIES);
            }
            Err(status) => {
                self.status(status);
                self.out.bool(false);
            }
        }
        Ok(())
    }

    pub(super) async fn pathconf(&mut self, mut input: Reader) -> xdr::Result<()> {
        let handle = read_handle(&mut input)?;
        match self.at(&handle).await {
            Ok(at) => {
                self.status(Status::Ok);
                attr::write_after(&mut self.out, &at.volume, at.volume.files.peek(at.ino).ok().as_ref());
                self.out.u32(LINKS_MAX);
                self.out.u32(255);
                // Long names are refused, only root gives files away, and names are what they are.
                for truth in [true, true, false, true] {
                    self.out.bool(truth);
                }
            }
            Err(status) => {
                self.status(status);
                self.out.bool(false);
            }
        }
        Ok(())
    }
}
