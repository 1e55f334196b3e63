//! Messages of standbys: what is sent is what is read, and any other bytes are refused.

use proptest::collection::vec;
use proptest::prelude::*;

use super::message::{FromStandby, StandbyAsk, ToStandby};
use crate::engine::embedded::entry::{Entry, EntryChange};
use crate::engine::embedded::lineage::{Lineage, Position};
use crate::engine::embedded::pieces::Piece;
use crate::epoch::Epoch;
use crate::kv::{Row, Write};
use crate::wire::{self, Blob};

proptest! {
    #[test]
    fn what_is_sent_is_what_is_read(
        entries in vec(vec(any::<u8>(), 0..40), 0..5),
        rows in vec((vec(any::<u8>(), 0..9), vec(any::<u8>(), 0..40), any::<u64>()), 0..5),
        seq in any::<u64>(),
    ) {
        let rows: Vec<Row> = rows.into_iter().map(|(key, value, seq)| Row { key, value, seq }).collect();
        let prev = Position { epoch: Epoch::default(), seq };
        let writes: Vec<Write> = rows.iter().map(|row| Write::Put(row.key.clone(), row.value.clone())).collect();
        for ask in [
            StandbyAsk::Append { prev, entries: entries.into_iter().map(Blob).collect() },
            StandbyAsk::SnapshotPiece { id: seq, index: 1, piece: Piece::Rows(rows) },
        ] {
            let sent = ToStandby { epoch: Epoch::default(), ask };
            let bytes = wire::encode(&sent);
            prop_assert_eq!(wire::decode::<ToStandby>(&bytes).unwrap(), sent);
            for length in 0..bytes.len() {
                prop_assert!(wire::decode::<ToStandby>(&bytes[..length]).is_err());
            }
        }
        let change = EntryChange::Rows { writes: (&writes).into(), name: None };
        let entry = Entry { seq, epoch: Epoch::default(), change };
        prop_assert_eq!(&wire::decode::<Entry<'static>>(&wire::encode(&entry)).unwrap(), &entry);
    }

    #[test]
    fn any_bytes_are_read_or_refused(mut bytes in vec(any::<u8>(), 0..200), version in any::<bool>()) {
        if let (Some(first), true) = (bytes.first_mut(), version) {
            *first = 1;
        }
        let _ = wire::decode::<ToStandby>(&bytes);
        let _ = wire::decode::<FromStandby>(&bytes);
        let _ = wire::decode::<Entry<'static>>(&bytes);
        let _ = wire::decode::<Lineage>(&bytes);
    }
}
