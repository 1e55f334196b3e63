//! The overlay, compared with a plain vector of bytes.

use proptest::prelude::*;

use super::*;

/// The bytes; sums that are known of them are right.
fn checked(shared: Option<SummedBytes>) -> Option<Bytes> {
    let SummedBytes { bytes, crc64, crc32c } = shared?;
    assert!(crc64.is_none_or(|sum| sum == stoker_format::crc64(&bytes)));
    assert!(crc32c.is_none_or(|sum| sum == stoker_format::crc32c(&bytes)));
    Some(bytes)
}

fn shown(overlay: &Overlay, base: &[u8], offset: u64, len: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in overlay.parts(offset, len) {
        match part {
            Part::Fresh(fresh) => bytes.extend(fresh),
            Part::Base { start, len } => bytes.extend(&base[start as usize..(start + len) as usize]),
            Part::Zero(len) => bytes.extend(vec![0; len as usize]),
        }
    }
    bytes
}

/// What a node makes of the pieces.
fn edited(overlay: &Overlay, base: &[u8]) -> Vec<u8> {
    let fresh: Vec<u8> = overlay.fresh().flatten().copied().collect();
    let (mut bytes, mut at) = (Vec::new(), 0);
    for piece in overlay.pieces() {
        match piece {
            Piece::Keep { start, end } => bytes.extend(&base[start as usize..end as usize]),
            Piece::Take(len) => {
                bytes.extend(&fresh[at..at + len as usize]);
                at += len as usize;
            }
            Piece::Zero(len) => bytes.extend(vec![0; len as usize]),
            Piece::Rest => unreachable!("an overlay knows its length"),
        }
    }
    bytes
}

#[derive(Clone, Debug)]
enum Op {
    Write(u64, Vec<u8>),
    Truncate(u64),
    Punch(u64, u64),
    Share(u64),
    Publish,
    /// The front up to a share of it in 256.
    PublishFront(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..300u64, proptest::collection::vec(1..=255u8, 1..60)).prop_map(|(at, bytes)| Op::Write(at, bytes)),
        2 => (0..300u64).prop_map(Op::Truncate),
        3 => (0..300u64, 0..120u64).prop_map(|(at, len)| Op::Punch(at, len)),
        2 => (0..300u64).prop_map(Op::Share),
        1 => Just(Op::Publish),
        2 => (0..=256u64).prop_map(Op::PublishFront),
    ]
}

proptest! {
    #[test]
    fn it_is_a_file(base in proptest::collection::vec(1..=255u8, 0..200), ops in proptest::collection::vec(op(), 0..40)) {
        let (mut base, mut model) = (base.clone(), base);
        let mut overlay = Overlay::new(model.len() as u64);
        let mut shared = Vec::new();
        for op in ops {
            match op {
                Op::Write(at, bytes) => {
                    overlay.write(at, &bytes);
                    let end = at as usize + bytes.len();
                    model.resize(model.len().max(end), 0);
                    model[at as usize..end].copy_from_slice(&bytes);
                }
                Op::Truncate(size) => {
                    overlay.truncate(size);
                    model.resize(size as usize, 0);
                }
                Op::Punch(at, len) => {
                    overlay.punch(at, at + len);
                    model.iter_mut().skip(at as usize).take(len as usize).for_each(|byte| *byte = 0);
                }
                Op::Share(at) => {
                    let run = overlay.run_at(at).to_vec();
                    let bytes = checked(overlay.share_at(at, true));
                    prop_assert_eq!(bytes.as_deref().unwrap_or_default(), &run);
                    shared.extend(bytes.map(|bytes| (bytes, run)));
                }
                Op::PublishFront(share) => {
                    if let Some(front) = overlay.tail() {
                        let end = front + (overlay.size() - front) * share / 256;
                        base = edited(&overlay, &base)[..end as usize].to_vec();
                        overlay.settle_front(end);
                    }
                }
                Op::Publish => {
                    base = edited(&overlay, &base);
                    overlay.settle();
                    prop_assert!(overlay.is_clean());
                }
            }
            for (bytes, run) in &shared {
                prop_assert_eq!(&bytes[..], &run[..], "what others read does not change");
            }
            prop_assert_eq!(overlay.size(), model.len() as u64);
            prop_assert_eq!(overlay.bytes(), overlay.fresh().map(<[u8]>::len).sum::<usize>());
            prop_assert_eq!(&shown(&overlay, &base, 0, 1000), &model);
            prop_assert_eq!(&edited(&overlay, &base), &model);
            let middle = model.len() as u64 / 3;
            prop_assert_eq!(shown(&overlay, &base, middle, 17), model[middle as usize..].iter().copied().take(17).collect::<Vec<u8>>());
        }
    }
}

/// Where the second buffer of a file that grows begins.
const SECOND: u64 = EXTENT_MAX as u64;

fn far_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..9_000u64, proptest::collection::vec(1..=255u8, 1..3_000)).prop_map(|(at, bytes)| Op::Write(at, bytes)),
        // The file goes on where it ends.
        6 => proptest::collection::vec(1..=255u8, 1..3_000).prop_map(|bytes| Op::Write(u64::MAX, bytes)),
        2 => (0..9_000u64).prop_map(Op::Truncate),
        2 => (0..9_000u64).prop_map(Op::Share),
        2 => (0..=256u64).prop_map(Op::PublishFront),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn it_is_a_file_in_memory_of_others_too(ops in proptest::collection::vec(far_op(), 0..30), gives in proptest::collection::vec(any::<bool>(), 16)) {
        // What lies behind the first buffer; that one is full, so that the file goes on in memory of others.
        let (mut base, mut model, mut shared) = (Vec::new(), Vec::<u8>::new(), Vec::new());
        let mut overlay = Overlay::new(0);
        overlay.write(0, &vec![9; EXTENT_MAX]);
        let asked = std::cell::Cell::new(0);
        let rooms = || {
            asked.set(asked.get() + 1);
            let mut room = gives[asked.get() % gives.len()].then(|| Buf::heap(1))?;
            room.set_len(0);
            Some(room)
        };
        for op in ops {
            match op {
                Op::Write(at, bytes) => {
                    let at = at.min(model.len() as u64);
                    overlay.write_in(SECOND + at, &bytes, rooms);
                    let end = at as usize + bytes.len();
                    model.resize(model.len().max(end), 0);
                    model[at as usize..end].copy_from_slice(&bytes);
                }
                Op::Truncate(size) => {
                    overlay.truncate(SECOND + size);
                    model.resize(size as usize, 0);
                }
                Op::Share(at) => {
                    let run = overlay.run_at(SECOND + at).to_vec();
                    let bytes = checked(overlay.share_at(SECOND + at, true));
                    prop_assert_eq!(bytes.as_deref().unwrap_or_default(), &run);
                    shared.extend(bytes.map(|bytes| (bytes, run)));
                }
                Op::PublishFront(share) => {
                    if let Some(front) = overlay.tail() {
                        let front = front.max(SECOND) - SECOND;
                        let end = front + (model.len() as u64 - front) * share / 256;
                        base = model[..end as usize].to_vec();
                        overlay.settle_front(SECOND + end);
                    }
                }
                Op::Publish | Op::Punch(..) => {}
            }
            for (bytes, run) in &shared {
                prop_assert_eq!(&bytes[..], &run[..], "what others read does not change");
            }
            prop_assert_eq!(overlay.size(), SECOND + model.len() as u64);
            prop_assert_eq!(overlay.bytes(), overlay.fresh().map(<[u8]>::len).sum::<usize>());
            let mut got = Vec::new();
            for part in overlay.parts(SECOND, 1 << 20) {
                match part {
                    Part::Fresh(fresh) => got.extend(fresh),
                    Part::Base { start, len } => got.extend(&base[(start - SECOND) as usize..][..len as usize]),
                    Part::Zero(len) => got.extend(vec![0; len as usize]),
                }
            }
            prop_assert!(got == model);
        }
    }
}

#[test]
fn a_file_that_grows_is_seen() {
    let mut overlay = Overlay::new(10);
    assert_eq!(overlay.tail(), None);
    overlay.write(10, &[1; 5]);
    overlay.write(15, &[1; 5]);
    assert_eq!(overlay.tail(), Some(10));
    overlay.write(3, &[1]);
    assert_eq!(overlay.tail(), None);
    overlay.settle();
    overlay.write(30, &[1; 5]);
    assert_eq!(overlay.tail(), Some(30));
    overlay.truncate(40);
    assert_eq!(overlay.tail(), None);
}

#[test]
fn shared_buffers_are_let_go_when_they_are_published() {
    let mut overlay = Overlay::new(0);
    for at in 0..9 {
        overlay.write(at << 20, &[1; 1 << 20]);
    }
    let (first, second) = (checked(overlay.share_at(0, false)), overlay.share_at(4 << 20, false));
    assert_eq!(first.as_deref().map(<[u8]>::len), Some(4 << 20));
    assert!(overlay.share_at(8 << 20, false).is_none(), "it is not full");
    drop(second);
    overlay.settle();
    assert!(overlay.is_clean());
    assert!(first.is_some_and(|bytes| bytes.iter().all(|byte| *byte == 1)), "who reads it still does");
}

#[test]
fn what_was_punched_stays_so_over_what_others_wrote() {
    let mut overlay = Overlay::new(10);
    overlay.punch(2, 4);
    overlay.punch(4, 6);
    overlay.punch(8, 99);
    assert!(!overlay.is_clean() && overlay.extents() == 2 && overlay.bytes() == 0);
    overlay.rebase(20);
    let kept = |start, end| Piece::Keep { start, end };
    let zeros = Piece::Zero;
    assert_eq!(overlay.pieces(), [kept(0, 2), zeros(4), kept(6, 8), zeros(2), kept(10, 20)]);
    overlay.write(3, b"x");
    overlay.truncate(9);
    assert_eq!(overlay.pieces(), [kept(0, 2), zeros(1), Piece::Take(1), zeros(2), kept(6, 8), zeros(1)]);
    overlay.truncate(1 << 40);
    assert_eq!(overlay.pieces().last(), Some(&zeros((1 << 40) - 8)));
    assert_eq!(overlay.stretch(8), Some((Stretch::Zero, 9)), "{overlay:?}");
    overlay.settle();
    assert!(overlay.is_clean());
}

#[test]
fn changes_lie_over_what_others_wrote() {
    let mut overlay = Overlay::new(10);
    overlay.write(2, b"x");
    overlay.rebase(4);
    assert_eq!(overlay.size(), 4);
    overlay.write(4, b"y");
    overlay.rebase(20);
    assert_eq!(overlay.size(), 20);
    overlay.truncate(1);
    overlay.rebase(30);
    assert_eq!((overlay.size(), overlay.pieces()), (1, vec![Piece::Keep { start: 0, end: 1 }]));
}

/// Whatever others publish meanwhile, what was appended comes behind it, and what was written in the middle stays there.
#[test]
fn what_was_appended_follows_what_others_publish() {
    let mut overlay = Overlay::new(10);
    overlay.write(6, b"xyzu");
    overlay.append_in(b"one", || None);
    overlay.append_in(b"two", || None);
    overlay.rebase(14);
    assert_eq!(edited(&overlay, b"0123456789abcd"), b"012345xyzuabcdonetwo");
    assert_eq!(overlay.bytes(), 10);
    overlay.append_in(b"three", || None);
    overlay.rebase(15);
    assert_eq!(edited(&overlay, b"0123456789abcde"), b"012345xyzuabcdeonetwothree");
    // Cut off elsewhere, in front of what was written here.
    overlay.rebase(3);
    assert_eq!(edited(&overlay, b"012"), b"012\0\0\0xyzuonetwothree");

    // Who writes to a place behind the end, or cuts the file, means that place.
    let mut placed = Overlay::new(4);
    placed.append_in(b"ab", || None);
    placed.write(5, b"c");
    placed.rebase(8);
    assert_eq!(edited(&placed, b"01234567"), b"0123ac67");
    let mut cut = Overlay::new(4);
    cut.truncate(2);
    cut.append_in(b"ab", || None);
    cut.rebase(8);
    assert_eq!(edited(&cut, b"01234567"), b"01ab");
}
