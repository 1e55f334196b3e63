use std::pin::Pin;
use std::task::{Context, Poll};

use super::*;

#[test]
fn slots_come_back_and_the_arena_never_grows() {
    let pool = Pool::new(4 << 20).unwrap();
    let first = pool.take(1 << 20).unwrap();
    let second = pool.take(1 << 20).unwrap();
    let third = pool.take(1 << 20).unwrap();
    assert!(pool.take(1 << 20).is_none());
    assert_eq!(pool.dry(), 1);
    drop(second);
    assert!(pool.take(1 << 20).is_some());
    drop((first, third));
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn a_reserve_is_left_to_others() {
    let pool = Pool::new(8 << 20).unwrap();
    let poll = |future: &mut Pin<Box<dyn Future<Output = Buf> + '_>>| {
        future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    };
    let reserve = 2 << 20;
    let mut held = Vec::new();
    let mut waiting: Pin<Box<dyn Future<Output = Buf> + '_>> = loop {
        let mut wish: Pin<Box<dyn Future<Output = Buf> + '_>> = Box::pin(pool.get_leaving(1 << 20, reserve));
        match poll(&mut wish) {
            Poll::Ready(buf) => held.push(buf),
            Poll::Pending => break wish,
        }
    };
    assert!(held.len() >= 4 && pool.in_use() <= pool.size() - reserve);
    let read = pool.take(1 << 20).expect("the reserve is for this one");
    drop(read);
    assert!(poll(&mut waiting).is_pending());
    held.pop();
    assert!(poll(&mut waiting).is_ready());
    // What would not fit beside the reserve is not refused for ever.
    drop((waiting, held));
    let mut whole: Pin<Box<dyn Future<Output = Buf> + '_>> = Box::pin(pool.get_leaving(4 << 20, 6 << 20));
    assert!(poll(&mut whole).is_ready());
}

#[test]
fn sums_are_of_the_bytes_in_use_or_not_there() {
    let bytes: Vec<u8> = (0..100_000u32).map(|n| (n * 7) as u8).collect();
    for len in [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 65_537, 100_000] {
        for step in [1_000, 4_096, 30_000, 100_000] {
            let mut buf = Buf::heap(bytes.len());
            buf.set_len(0);
            bytes[..len].chunks(step).for_each(|piece| buf.fill(piece));
            assert_eq!(buf.as_slice(), &bytes[..len]);
            assert_eq!(buf.crc64(), (len > 0).then(|| stoker_format::crc64(&bytes[..len])));
            let table = (len > 0).then(|| stoker_format::block_table(&bytes[..len]));
            assert_eq!(buf.take_block_table(), table);
            let mut buf = Buf::heap(bytes.len());
            buf.set_len(0);
            buf.sum_crc64();
            bytes[..len].chunks(step).for_each(|piece| buf.fill(piece));
            assert_eq!(buf.as_slice(), &bytes[..len]);
            assert_eq!((buf.crc64(), buf.crc32c()), (Some(stoker_format::crc64(&bytes[..len])), None));
            assert_eq!(buf.take_block_table(), None, "nobody wanted it");
            buf.set_len(0);
            buf.sum_crc32c();
            bytes[..len].chunks(step).for_each(|piece| buf.fill(piece));
            assert_eq!(buf.as_slice(), &bytes[..len]);
            assert_eq!((buf.crc64(), buf.crc32c()), (None, Some(stoker_format::crc32c(&bytes[..len]))));
            assert_eq!(buf.take_block_table(), None);
        }
    }
    let mut buf = Buf::heap(10);
    buf.set_len(0);
    buf.fill(b"abc");
    buf.as_mut_slice()[0] = b'x';
    assert_eq!(buf.crc64(), None);
    buf.fill(b"def");
    assert_eq!((buf.crc64(), buf.take_block_table()), (None, None));
    assert_eq!(buf.as_slice(), b"xbcdef");
}

#[test]
fn bytes_written_in_place_are_summed_by_blocks() {
    let bytes: Vec<u8> = (0..30_000u32).map(|n| (n * 7) as u8).collect();
    for step in [1, 999, 4_096, 10_000, 30_000] {
        let mut buf = Buf::heap(bytes.len());
        buf.set_len(0);
        for piece in bytes.chunks(step) {
            buf.spare_mut()[..piece.len()].copy_from_slice(piece);
            buf.grow(piece.len());
        }
        assert_eq!(buf.as_slice(), bytes);
        assert_eq!((buf.crc32c(), buf.crc64()), (Some(stoker_format::crc32c(&bytes)), None));
        assert_eq!(buf.take_block_table(), Some(stoker_format::block_table(&bytes)));
    }
    let mut buf = Buf::heap(10);
    buf.set_len(0);
    buf.fill(b"abc");
    buf.spare_mut()[..3].copy_from_slice(b"def");
    buf.grow(3);
    assert_eq!((buf.as_slice(), buf.crc64()), (&b"abcdef"[..], None));
    assert_eq!(buf.crc32c(), Some(stoker_format::crc32c(b"abcdef")));
}

#[test]
fn bytes_written_in_place_can_have_all_sums() {
    let bytes: Vec<u8> = (0..100_000u32).map(|n| (n * 7) as u8).collect();
    for step in [1, 999, 4_096, 50_000, 100_000] {
        let mut buf = Buf::heap(bytes.len());
        buf.set_len(0);
        for piece in bytes.chunks(step) {
            buf.spare_mut()[..piece.len()].copy_from_slice(piece);
            buf.grow_summed(piece.len());
        }
        assert_eq!(buf.as_slice(), bytes);
        assert_eq!(buf.crc32c(), Some(stoker_format::crc32c(&bytes)));
        assert_eq!(buf.crc64(), Some(stoker_format::crc64(&bytes)));
        assert_eq!(buf.take_block_table(), Some(stoker_format::block_table(&bytes)));
    }
}

#[test]
fn bytes_summed_as_a_whole_have_no_table() {
    let bytes: Vec<u8> = (0..30_000u32).map(|n| (n * 7) as u8).collect();
    for step in [1, 999, 4_096, 30_000] {
        let mut buf = Buf::heap(bytes.len());
        buf.set_len(0);
        for piece in bytes.chunks(step) {
            buf.spare_mut()[..piece.len()].copy_from_slice(piece);
            buf.grow_whole(piece.len());
        }
        assert_eq!((buf.crc32c(), buf.crc64()), (Some(stoker_format::crc32c(&bytes)), None));
        buf.sum();
        assert_eq!(buf.crc32c(), Some(stoker_format::crc32c(&bytes)));
        assert_eq!(buf.take_block_table(), Some(stoker_format::block_table(&bytes)));
        let mut again = Buf::heap(bytes.len());
        again.set_len(0);
        again.spare_mut()[..bytes.len()].copy_from_slice(&bytes);
        again.grow_whole(bytes.len());
        again.as_mut_slice()[0] ^= 1;
        assert_eq!(again.crc32c(), None);
        again.set_len(0);
        again.spare_mut()[0] = 7;
        again.grow_whole(1);
        assert_eq!((again.crc32c(), again.take_block_table()), (Some(stoker_format::crc32c(&[7])), None));
    }
}

#[test]
fn headroom_is_in_front_of_the_data() {
    let pool = Pool::new(2 << 20).unwrap();
    let mut buf = pool.take(5000).unwrap();
    buf.as_mut_slice().fill(7);
    buf.head_mut(BLOCK).unwrap().fill(9);
    assert!(buf.as_slice().iter().all(|&b| b == 7));
    assert!(buf.io_ptr(BLOCK).addr().is_multiple_of(BLOCK));
    assert!(buf.head_mut(HEADROOM + 1).is_none());
    assert!(Buf::heap(10).head_mut(1).is_none());
}

#[test]
fn lent_bytes_outlive_the_buffer() {
    let pool = Pool::new(8 << 20).unwrap();
    let mut buf = pool.take(5000).unwrap();
    buf.set_len(0);
    buf.fill(&[7; 5000]);
    let (one, two) = (buf.lend(), buf.lend());
    // A drive puts a header in front and zeroes behind.
    buf.head_mut(100).unwrap().fill(1);
    buf.zero_tail();
    assert!(buf.take_block_table().is_some());
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| buf.as_mut_slice()[0] = 1)).is_err());
    drop(one);
    drop(buf);
    assert_eq!(pool.in_use(), Pool::slot_bytes(5000));
    assert_eq!(two.as_ref(), [7; 5000]);
    drop(two);
    assert_eq!(pool.in_use(), 0);
    let mut back = pool.take(16).unwrap();
    drop(back.lend());
    back.as_mut_slice()[0] = 9;
    assert_eq!(back.as_slice()[0], 9);
}
