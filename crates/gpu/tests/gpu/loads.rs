//! Loads into host memory.

use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use stoker_gpu::{Device, LoadError, Loader, PlainFiles, Plan, Report, Settings, Source};

use crate::source::{Parts, Targets, file};

fn loader(threads: usize, piece: usize) -> Loader {
    Loader::new(Device::Host, Settings { threads, piece, buffers: 2 })
}

fn load<S: Source>(
    loader: &Loader,
    source: &S,
    targets: &mut Targets,
) -> Result<Report, LoadError<S::Fault>> {
    let plan = Plan::new(targets.segments(), loader.settings().piece).unwrap();
    // SAFETY: the targets are as long as their segments, and nobody else uses them.
    unsafe { loader.load(source, &plan, &AtomicBool::new(false)) }
}

/// Ranges of two files that share nothing: lengths of bytes and of the gaps between.
fn ranges() -> impl Strategy<Value = Vec<(usize, u64, u64)>> {
    let lens = prop::collection::vec(
        (0u64..3, prop_oneof![0u64..40, 4090u64..4100, 0u64..90_000], 0usize..2),
        1..20,
    );
    lens.prop_map(|lens| {
        let (mut at, mut ranges) = ([3u64, 0], Vec::new());
        for (gap, len, file) in lens {
            let start = at[file] + gap * 8191;
            ranges.push((file, start, len));
            at[file] = start + len;
        }
        ranges
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn every_byte_comes_to_its_place(
        ranges in ranges(),
        piece in prop_oneof![Just(4096usize), Just(10_000), Just(1 << 20)],
        part in prop_oneof![1000usize..5000, Just(usize::MAX)],
        threads in 1usize..5,
    ) {
        let len = ranges.iter().map(|range| range.1 + range.2).max().unwrap_or(0) as usize;
        let source = Parts::new(vec![file(0, len), file(1, len)], part);
        let mut targets = Targets::new(&ranges);
        let loader = loader(threads, piece);
        for _ in 0..2 {
            let report = load(&loader, &source, &mut targets).unwrap();
            prop_assert_eq!(report.bytes, ranges.iter().map(|range| range.2).sum::<u64>());
            targets.check(&source.files);
        }
    }

    #[test]
    fn damage_is_never_loaded(at in 0usize..300_000, part in 3000usize..100_000) {
        let mut source = Parts::new(vec![file(0, 300_000), file(1, 10)], part);
        source.damage = Some((0, at));
        let mut targets = Targets::new(&[(0, 0, 300_000)]);
        let found = load(&loader(3, 40_000), &source, &mut targets);
        prop_assert!(matches!(found, Err(LoadError::Source(_))), "{found:?}");
        targets.check_guards();
    }
}

#[test]
fn nothing_to_load_is_no_error() {
    let source = Parts::new(vec![Vec::new()], 10);
    let report = load(&loader(4, 1 << 20), &source, &mut Targets::new(&[(0, 0, 0)])).unwrap();
    assert_eq!((report.bytes, report.reads, report.threads), (0, 0, 0));
}

#[test]
fn a_load_that_is_cancelled_ends() {
    struct Cancelling<'a>(Parts, &'a AtomicBool);
    impl Source for Cancelling<'_> {
        type Fault = String;
        fn read(
            &self,
            file: usize,
            offset: u64,
            len: usize,
            room: &mut [u8],
        ) -> Result<std::ops::Range<usize>, String> {
            if self.0.reads.load(Ordering::Relaxed) == 20 {
                self.1.store(true, Ordering::Relaxed);
            }
            self.0.read(file, offset, len, room)
        }
    }
    let cancel = AtomicBool::new(false);
    let source = Cancelling(Parts::new(vec![file(0, 4 << 20)], usize::MAX), &cancel);
    let loader = loader(2, 4096);
    let mut targets = Targets::new(&[(0, 0, 4 << 20)]);
    let plan = Plan::new(targets.segments(), 4096).unwrap();
    // SAFETY: as in `load`.
    let found = unsafe { loader.load(&source, &plan, &cancel) };
    assert_eq!(found, Err(LoadError::Cancelled));
    assert!(source.0.reads.load(Ordering::Relaxed) < 100, "it goes on");
}

#[test]
fn plain_files_of_odd_lengths() {
    let folder = tempfile::tempdir().unwrap();
    let files = [file(0, 1), file(1, 4096), file(2, 70_001)];
    let paths: Vec<_> = files
        .iter()
        .enumerate()
        .map(|(number, bytes)| {
            let path = folder.path().join(number.to_string());
            std::fs::write(&path, bytes).unwrap();
            path
        })
        .collect();
    for direct in [true, false] {
        let source = PlainFiles::open(&paths, direct).unwrap();
        let mut targets = Targets::new(&[(0, 0, 1), (1, 1, 4095), (2, 1, 5000), (2, 5002, 64_999)]);
        load(&loader(3, 8192), &source, &mut targets).unwrap();
        targets.check(&files);
    }
    // One that was cut short meanwhile is an error.
    let source = PlainFiles::open(&paths, true).unwrap();
    std::fs::File::options().write(true).open(&paths[2]).unwrap().set_len(100).unwrap();
    let found = load(&loader(3, 8192), &source, &mut Targets::new(&[(2, 0, 70_001)]));
    assert!(matches!(found, Err(LoadError::Source(_))), "{found:?}");
    let short = std::fs::File::open(&paths[2]).unwrap();
    assert_eq!(short.read_at(&mut [0; 200], 0).unwrap(), 100);
}
