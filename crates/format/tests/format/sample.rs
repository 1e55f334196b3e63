//! One value of every structure, with a different value in every field.

use stoker_format::*;

pub const NONCE: u64 = 0x1122_3344_5566_7788;
pub const SEGMENT_SIZE: u32 = 1 << 20;
pub const PAYLOAD: &[u8] = b"Stoker keeps GPUs fed.\n";

pub fn ring() -> RingId {
    RingId(std::array::from_fn(|i| 0xa0 + i as u8))
}

pub fn version() -> VersionId {
    VersionId(std::array::from_fn(|i| 0x30 + i as u8))
}

pub fn header() -> RecordHeader {
    RecordHeader {
        kind: RecordKind::Chunk,
        flags: RecordFlags::NEVER_DRAIN.with(RecordFlags::PINNED),
        ring: ring(),
        generation: Generation(7),
        header_offset: 0x2040,
        payload_offset: 0x3000,
        len: PAYLOAD.len() as u32,
        seq: Seq(0x0102_0304_0506),
        chunk: ChunkId::new(version(), 9),
        volume: VolumeId(5),
        key: KeyId(0),
        aux_per_block: 0,
        payload_crc: crc32c(PAYLOAD),
        cipher: 0,
        salt: [0; 16],
    }
}

pub fn place() -> RecordPlace {
    RecordPlace {
        ring: ring(),
        generation: Generation(7),
        nonce: NONCE,
        offset: 0x2040,
        segment_size: SEGMENT_SIZE,
    }
}

/// A record of three blocks, the last one short, with aux bytes.
pub fn header_with_aux() -> (RecordHeader, Vec<u32>, Vec<u8>) {
    let payload: Vec<u8> = (0..2 * BLOCK + 100).map(|i| (i * 31) as u8).collect();
    let header = RecordHeader {
        kind: RecordKind::Name,
        flags: RecordFlags::ENCRYPTED,
        len: payload.len() as u32,
        key: KeyId(77),
        aux_per_block: 16,
        payload_crc: crc32c(&payload),
        ..header()
    };
    (header, block_table(&payload), (0..48).collect())
}

/// The same, sealed.
pub fn header_sealed() -> (RecordHeader, Vec<u32>, Vec<u8>) {
    let (header, table, aux) = header_with_aux();
    let salt = std::array::from_fn(|at| 0xc0 + at as u8);
    (RecordHeader { cipher: CIPHER_AES_256_GCM, salt, ..header }, table, aux)
}

pub fn encode(header: &RecordHeader, table: &[u32], aux: &[u8]) -> Vec<u8> {
    let mut out = vec![0xee; header_span(header.len as usize, header.aux_per_block)];
    header.encode(NONCE, table, aux, &mut out);
    out
}

pub fn encoded_header() -> Vec<u8> {
    encode(&header(), &block_table(PAYLOAD), &[])
}

pub fn deaths() -> Vec<Death> {
    (1..=2).map(|i| Death { chunk: ChunkId::new(version(), i), below: Seq(0x100 + u64::from(i)) }).collect()
}

pub fn segment() -> SegmentHeader {
    SegmentHeader {
        state: SegmentState::Open,
        kind: SegmentKind::User,
        leasable: true,
        ring: ring(),
        segment: SegmentId(3),
        volume: VolumeId(5),
        generation: Generation(7),
        first_seq: Seq(1000),
        nonce: NONCE,
        opened_unix_ms: 1_700_000_000_000,
        segment_size: u64::from(SEGMENT_SIZE),
        key: KeyId(77),
    }
}

pub fn entries() -> Vec<FooterEntry> {
    let chunk = FooterEntry {
        chunk: ChunkId::new(version(), 9),
        seq: Seq(1001),
        header_offset: 0x2040,
        payload_offset: 0x3000,
        len: 23,
        volume: VolumeId(5),
        flags: RecordFlags::CLEAN_HINT,
        payload_crc: 0xdead_beef,
        kind: RecordKind::Chunk,
        aux_per_block: 16,
        key: KeyId(77),
    };
    vec![chunk, FooterEntry { kind: RecordKind::Dead, seq: Seq(900), ..chunk }]
}

/// As `encode_footer` stores it: the count and the CRC belong to [`entries`].
pub fn footer() -> Footer {
    Footer {
        ring: ring(),
        segment: SegmentId(3),
        volume: VolumeId(5),
        generation: Generation(7),
        first_seq: Seq(1000),
        last_seq: Seq(1001),
        nonce: NONCE,
        closed_unix_ms: 1_700_000_001_000,
        kind: SegmentKind::Relocation,
        leasable: true,
        records_end: 0x4000,
        entry_size: 64,
        entry_count: 2,
        entries_offset: SEGMENT_SIZE - footer_span(2) as u32,
        entries_crc: 0xa5ec_450e_f48a_a290,
    }
}

pub fn superblock() -> Superblock {
    Superblock {
        cluster: ClusterId([0xc1; 16]),
        node: NodeId([0xc2; 16]),
        drive: DriveId([0xc3; 16]),
        ring: ring(),
        incarnation: 2,
        boot: 41,
        update: 97,
        segment_size: SEGMENT_SIZE_DEFAULT,
        segment_count: 512,
        layout: Layout::Flat,
        created_unix_ms: 1_700_000_000_000,
        data_offset: FLAT_DATA_OFFSET,
        label: "bay-3 größer".to_owned(),
        key: KeyId(77),
        format_version: FORMAT_VERSION,
        reader_version_min: 1,
        features_incompat: 0,
        features_ro_compat: 0x20,
        features_compat: 0x300,
    }
}

pub fn run() -> ChunkRun {
    ChunkRun {
        file_offset: 1 << 33,
        version: version(),
        first_index: 2048,
        count: 3,
        chunk_len: 4 << 20,
        last_len: 12345,
    }
}

/// Has every field that there is.
pub fn name() -> NameRecord {
    let pair = |name: &str| (name.as_bytes().to_vec(), b"value".to_vec());
    let ((meta, value), (tag, _), (xattr, _)) = (pair("meta"), pair("tag"), pair("user.x"));
    NameRecord {
        op: NameOp::Put,
        volume: VolumeId(5),
        version: version(),
        catalog_seq: 0x0a0b_0c0d,
        fields: vec![
            NameField::Key(b"run/step-1000/model.pt".to_vec()),
            NameField::OldKey(b"run/tmp".to_vec()),
            NameField::Size(run().file_offset + run().byte_len()),
            NameField::MtimeNs(-1),
            NameField::Mode(0o100_644),
            NameField::Uid(1000),
            NameField::Gid(100),
            NameField::ETag(b"d41d8cd98f00b204e9800998ecf8427e-3".to_vec()),
            NameField::ContentType(b"application/octet-stream".to_vec()),
            NameField::Meta { name: meta, value: value.clone() },
            NameField::Tag { name: tag, value: value.clone() },
            NameField::Xattr { name: xattr, value },
            NameField::Runs(vec![run(), ChunkRun { count: 1, ..run() }]),
            NameField::Target(b"../elsewhere".to_vec()),
            NameField::Parent(1),
            NameField::Inode(99),
            NameField::Checksum { algorithm: 2, value: vec![0xde, 0xad] },
            NameField::Set([0x5e; 16]),
            NameField::Unknown { tag: 900, bytes: b"later".to_vec() },
            NameField::Rest(b"of the node".to_vec()),
        ],
    }
}
