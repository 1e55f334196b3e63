//! Arbitrary values of every structure, within the limits of the format.

use crate::sample;
use proptest::collection::vec;
use proptest::prelude::*;
use stoker_format::*;

pub fn bytes(len_max: usize) -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..=len_max)
}

pub fn chunk() -> impl Strategy<Value = ChunkId> {
    any::<[u8; 16]>().prop_map(ChunkId::from_bytes)
}

pub fn kind() -> impl Strategy<Value = RecordKind> {
    prop_oneof![Just(RecordKind::Chunk), Just(RecordKind::Name), Just(RecordKind::Dead)]
}

fn segment_kind() -> impl Strategy<Value = SegmentKind> {
    prop_oneof![Just(SegmentKind::None), Just(SegmentKind::User), Just(SegmentKind::Relocation)]
}

/// A record that fits the sample's place; the table is arbitrary, because the header does not look into it.
pub fn record() -> impl Strategy<Value = Record> {
    let sizes = (0..=5 * BLOCK as u32, 0..=20_u8);
    let header = (sizes, kind(), any::<u32>(), chunk(), any::<(u64, u32, u32, u32, u8, [u8; 16])>())
        .prop_flat_map(
            |((len, aux_per_block), kind, flags, chunk, (seq, volume, key, payload_crc, cipher, salt))| {
                let at = sample::place();
                let first = at.offset + header_len(len as usize, aux_per_block) as u32;
                let last = at.segment_size - BLOCK as u32 - len;
                (first..=last).prop_map(move |payload_offset| RecordHeader {
                    kind,
                    flags: RecordFlags(flags),
                    ring: at.ring,
                    generation: at.generation,
                    header_offset: at.offset,
                    payload_offset,
                    len,
                    seq: Seq(seq),
                    chunk,
                    volume: VolumeId(volume),
                    key: KeyId(key),
                    aux_per_block,
                    payload_crc,
                    cipher,
                    salt,
                })
            },
        );
    header.prop_flat_map(|header| {
        let blocks = block_count(header.len as usize);
        let aux_len = blocks * header.aux_per_block as usize;
        (vec(any::<u32>(), blocks), vec(any::<u8>(), aux_len)).prop_map(move |(table, aux)| Record {
            header,
            table,
            aux,
        })
    })
}

pub fn encode(record: &Record) -> Vec<u8> {
    sample::encode(&record.header, &record.table, &record.aux)
}

pub fn deaths() -> impl Strategy<Value = Vec<Death>> {
    vec((chunk(), any::<u64>()).prop_map(|(chunk, below)| Death { chunk, below: Seq(below) }), 0..20)
}

fn segment_size() -> impl Strategy<Value = u64> {
    (SEGMENT_SIZE_MIN / BLOCK as u64..=SEGMENT_SIZE_MAX / BLOCK as u64)
        .prop_map(|blocks| blocks * BLOCK as u64)
}

pub fn segment() -> impl Strategy<Value = SegmentHeader> {
    let state = prop_oneof![Just(SegmentState::Free), Just(SegmentState::Open)];
    let numbers = any::<(u32, u32, u32, u64, u64, u64, u64)>();
    (state, segment_kind(), any::<bool>(), any::<[u8; 16]>(), segment_size(), numbers).prop_map(
        |(state, kind, leasable, ring, segment_size, numbers)| SegmentHeader {
            state,
            kind,
            leasable,
            ring: RingId(ring),
            segment: SegmentId(numbers.0),
            volume: VolumeId(numbers.1),
            key: KeyId(numbers.2),
            generation: Generation(numbers.3),
            first_seq: Seq(numbers.4),
            nonce: numbers.5,
            opened_unix_ms: numbers.6,
            segment_size,
        },
    )
}

/// A footer without count and CRC, and its entries.
pub fn footer() -> impl Strategy<Value = (Footer, Vec<FooterEntry>)> {
    let numbers = (any::<[u8; 16]>(), any::<(u32, u32, u64, u64, u64, u64, u64)>());
    let footer = (segment_kind(), any::<bool>(), any::<(u32, u32)>(), numbers).prop_map(
        |(kind, leasable, (records_end, entries_offset), (ring, numbers))| Footer {
            ring: RingId(ring),
            segment: SegmentId(numbers.0),
            volume: VolumeId(numbers.1),
            generation: Generation(numbers.2),
            first_seq: Seq(numbers.3),
            last_seq: Seq(numbers.4),
            nonce: numbers.5,
            closed_unix_ms: numbers.6,
            kind,
            leasable,
            records_end,
            entry_size: 64,
            entry_count: 0,
            entries_offset,
            entries_crc: 0,
        },
    );
    (footer, vec(entry(), 0..130))
}

fn entry() -> impl Strategy<Value = FooterEntry> {
    (chunk(), kind(), any::<(u64, u32, u32, u32, u32, u32, u32, u32, u8)>()).prop_map(
        |(chunk, kind, numbers)| FooterEntry {
            chunk,
            seq: Seq(numbers.0),
            header_offset: numbers.1,
            payload_offset: numbers.2,
            len: numbers.3,
            volume: VolumeId(numbers.4),
            flags: RecordFlags(numbers.5),
            payload_crc: numbers.6,
            kind,
            aux_per_block: numbers.8,
            key: KeyId(numbers.7),
        },
    )
}

pub fn superblock() -> impl Strategy<Value = Superblock> {
    let ids = any::<([u8; 16], [u8; 16], [u8; 16], [u8; 16])>();
    let numbers = any::<(u64, u64, u64, u64, u32)>();
    let geometry = (segment_size(), SEGMENT_COUNT_MIN..=SEGMENT_COUNT_MAX, 0..=1_u64 << 40);
    let layout = prop_oneof![Just(Layout::Directory), Just(Layout::Flat)];
    let versions = (1..=u16::MAX, any::<(u16, u64, u64, u64)>());
    let label = vec(prop::char::range('\u{1}', '\u{ffff}'), 0..=10).prop_map(String::from_iter);
    (ids, numbers, geometry, layout, versions, label).prop_map(
        |(ids, numbers, geometry, layout, (format_version, features), label)| Superblock {
            cluster: ClusterId(ids.0),
            node: NodeId(ids.1),
            drive: DriveId(ids.2),
            ring: RingId(ids.3),
            incarnation: numbers.0,
            boot: numbers.1,
            update: numbers.2,
            segment_size: geometry.0,
            segment_count: geometry.1,
            layout,
            created_unix_ms: numbers.3,
            data_offset: geometry.2 * BLOCK as u64,
            label,
            key: KeyId(numbers.4),
            format_version,
            reader_version_min: features.0,
            features_incompat: features.1,
            features_ro_compat: features.2,
            features_compat: features.3,
        },
    )
}

pub fn name() -> impl Strategy<Value = NameRecord> {
    use NameOp::*;
    let op = prop::sample::select(vec![
        Put,
        Delete,
        Rename,
        MakeDir,
        RemoveDir,
        SetAttributes,
        Link,
        Symlink,
        PublishSet,
        Exchange,
    ]);
    (op, any::<(u32, [u8; 12], u64)>(), vec(field(), 0..12)).prop_map(
        |(op, (volume, version, catalog_seq), fields)| NameRecord {
            op,
            volume: VolumeId(volume),
            version: VersionId(version),
            catalog_seq,
            fields,
        },
    )
}

fn field() -> impl Strategy<Value = NameField> {
    let pair = || (bytes(20), bytes(40));
    prop_oneof![
        bytes(300).prop_map(NameField::Key),
        bytes(300).prop_map(NameField::OldKey),
        any::<u64>().prop_map(NameField::Size),
        any::<i64>().prop_map(NameField::MtimeNs),
        any::<u32>().prop_map(NameField::Mode),
        any::<(u32, bool)>().prop_map(|(id, user)| if user {
            NameField::Uid(id)
        } else {
            NameField::Gid(id)
        }),
        prop_oneof![bytes(40).prop_map(NameField::ETag), bytes(40).prop_map(NameField::ContentType)],
        pair().prop_map(|(name, value)| NameField::Meta { name, value }),
        pair().prop_map(|(name, value)| NameField::Tag { name, value }),
        pair().prop_map(|(name, value)| NameField::Xattr { name, value }),
        vec(run(), 0..5).prop_map(NameField::Runs),
        bytes(100).prop_map(NameField::Target),
        any::<u64>().prop_map(NameField::Parent),
        any::<u64>().prop_map(NameField::Inode),
        (any::<u8>(), bytes(64)).prop_map(|(algorithm, value)| NameField::Checksum { algorithm, value }),
        any::<[u8; 16]>().prop_map(NameField::Set),
        bytes(60).prop_map(NameField::Rest),
        (20..=u16::MAX, bytes(30)).prop_map(|(tag, bytes)| NameField::Unknown { tag, bytes }),
    ]
}

fn run() -> impl Strategy<Value = ChunkRun> {
    let lens = (0..=RECORD_LEN_MAX as u32).prop_flat_map(|chunk_len| (Just(chunk_len), 0..=chunk_len));
    (0..1_u64 << 62, any::<[u8; 12]>(), 0..1_u32 << 31, 1..1_u32 << 31, lens).prop_map(
        |(file_offset, version, first_index, count, (chunk_len, last_len))| ChunkRun {
            file_offset,
            version: VersionId(version),
            first_index,
            count,
            chunk_len,
            last_len,
        },
    )
}
