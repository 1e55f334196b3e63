//! Leases on the wire: places in the control part, tables of checksums as payload, descriptors beside the frame.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use stoker_format::BLOCK;
use stoker_store::{LEASE_EXTENTS_MAX, LeaseExtent, Leases};

use crate::message::Response;

/// An extent without its table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Place {
    /// Where it starts in the file.
    pub offset: u64,
    /// Its bytes.
    pub len: u32,
    /// Which of the descriptors shows it.
    pub descriptor: u32,
    /// Where it starts there.
    pub at: u64,
}

/// The answer and its payload.
pub(crate) fn encode(leases: &Leases) -> (Response, Bytes) {
    let place = |extent: &LeaseExtent| Place {
        offset: extent.offset,
        len: extent.len,
        descriptor: extent.descriptor as u32,
        at: extent.at,
    };
    let places = leases.extents.iter().map(place).collect();
    let tables = leases.extents.iter().flat_map(|extent| extent.table.iter());
    let payload: Vec<u8> = tables.flat_map(|crc| crc.to_le_bytes()).collect();
    (Response::Lease { places }, payload.into())
}

/// Extents and files, if the places fit one another, the tables and the descriptors. What the files hold is checked when
/// it is read.
pub(crate) fn decode(
    places: &[Place],
    payload: &[u8],
    descriptors: Vec<OwnedFd>,
) -> Option<(Vec<LeaseExtent>, Vec<File>)> {
    if places.is_empty() || places.len() > LEASE_EXTENTS_MAX {
        return None;
    }
    let mut extents = Vec::with_capacity(places.len());
    let (mut tables, mut next) = (payload, places[0].offset);
    for place in places {
        let blocks = (place.len as usize).div_ceil(BLOCK);
        let (table, rest) = tables.split_at_checked(blocks * 4)?;
        tables = rest;
        place.at.checked_add(u64::from(place.len) + BLOCK as u64)?;
        if place.offset != next || place.len == 0 || place.descriptor as usize >= descriptors.len() {
            return None;
        }
        next = place.offset.checked_add(u64::from(place.len))?;
        let crc = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        extents.push(LeaseExtent {
            offset: place.offset,
            len: place.len,
            descriptor: place.descriptor as usize,
            at: place.at,
            table: table.chunks_exact(4).map(crc).collect::<Arc<[u32]>>(),
        });
    }
    let files: Vec<File> = descriptors.into_iter().map(File::from).collect();
    // A pipe or a terminal would hold up its reader for ever.
    let plain = |file: &File| file.metadata().is_ok_and(|meta| meta.is_file());
    (tables.is_empty() && files.iter().all(plain)).then_some((extents, files))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> OwnedFd {
        tempfile::tempfile().unwrap().into()
    }

    fn extent(offset: u64, len: u32, descriptor: usize) -> LeaseExtent {
        let table = (0..len.div_ceil(BLOCK as u32)).map(|block| block * 7 + len).collect();
        LeaseExtent { offset, len, descriptor, at: 8192 + u64::from(len), table }
    }

    #[test]
    fn leases_read_back() {
        let extents = vec![extent(4 << 20, 4097, 1), extent((4 << 20) + 4097, 1, 0)];
        let leases = Leases { extents: extents.clone(), descriptors: Vec::new() };
        let (Response::Lease { places }, payload) = encode(&leases) else { panic!("a lease") };
        let (decoded, files) = decode(&places, &payload, vec![file(), file()]).unwrap();
        assert_eq!((decoded, files.len()), (extents, 2));
    }

    #[test]
    fn places_that_do_not_fit_are_refused() {
        let good = Place { offset: 0, len: 5000, descriptor: 0, at: 4096 };
        let check = |places: &[Place], payload: usize, descriptors: usize| {
            let descriptors = (0..descriptors).map(|_| file()).collect();
            decode(places, &vec![0; payload], descriptors).is_some()
        };
        assert!(check(&[good], 8, 1));
        assert!(!check(&[], 0, 1));
        assert!(!check(&[good], 4, 1), "half a table");
        assert!(!check(&[good], 12, 1), "more than a table");
        assert!(!check(&[good], 8, 0), "no descriptor");
        assert!(!check(&[Place { len: 0, ..good }], 0, 1));
        assert!(!check(&[Place { at: u64::MAX - 5000, ..good }], 8, 1));
        assert!(!check(&[Place { offset: u64::MAX - 10, ..good }], 8, 1));
        assert!(!check(&[good, good], 16, 1), "the same place twice");
        let pipe = std::io::pipe().unwrap().0;
        assert!(decode(&[good], &[0; 8], vec![pipe.into()]).is_none());
    }
}
