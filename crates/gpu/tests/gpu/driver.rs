//! A driver without a GPU: its memory is that of the host, and a copy happens when somebody waits for it, not before.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard};

use stoker_gpu::{Api, Cuda, Device, GpuError, LoadError, Loader, Plan, Report, Settings};

use crate::source::{Parts, Targets, file};

/// A copy that was asked for: to, from, length.
type Copy = (u64, usize, usize);

#[derive(Default)]
struct State {
    next: usize,
    contexts: i64,
    /// What is alive: pinned memory with its length, streams and events.
    pinned: HashMap<usize, usize>,
    streams: HashMap<usize, Vec<Copy>>,
    /// The stream and how many of its copies are in front.
    events: HashMap<usize, (usize, usize)>,
    calls: HashMap<&'static str, usize>,
    /// The call of this name with this number fails with this code, and all after it.
    fails: Option<(&'static str, usize, c_int)>,
    current: i64,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);
/// One test at a time.
static ONE: Mutex<()> = Mutex::new(());

fn with<T>(call: &'static str, work: impl FnOnce(&mut State) -> T) -> Result<T, c_int> {
    let mut held = STATE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let state = held.get_or_insert_default();
    let count = state.calls.entry(call).or_default();
    *count += 1;
    match state.fails {
        Some((name, from, code)) if name == call && *count >= from => Err(code),
        _ => Ok(work(state)),
    }
}

fn code(done: Result<(), c_int>) -> c_int {
    done.err().unwrap_or(0)
}

fn give(out: *mut *mut c_void, made: Result<usize, c_int>) -> c_int {
    match made {
        Ok(handle) => {
            // SAFETY: the code under test passes a place for one handle.
            unsafe { *out = handle as *mut c_void };
            0
        }
        Err(code) => code,
    }
}

fn fresh(state: &mut State) -> usize {
    state.next += 1;
    state.next
}

unsafe extern "C" fn init(_: c_uint) -> c_int {
    code(with("init", |_| ()))
}
unsafe extern "C" fn error_string(_: c_int, out: *mut *const c_char) -> c_int {
    // SAFETY: as above.
    unsafe { *out = c"planted".as_ptr() };
    0
}
unsafe extern "C" fn device_get(out: *mut c_int, number: c_int) -> c_int {
    // SAFETY: as above.
    unsafe { *out = number };
    0
}
unsafe extern "C" fn device_count(out: *mut c_int) -> c_int {
    // SAFETY: as above.
    unsafe { *out = 1 };
    0
}
unsafe extern "C" fn device_name(out: *mut c_char, _: c_int, _: c_int) -> c_int {
    // SAFETY: the code under test passes more than two bytes.
    unsafe { out.write(b'G' as c_char) };
    0
}
unsafe extern "C" fn context_retain(out: *mut *mut c_void, _: c_int) -> c_int {
    give(out, with("context_retain", |state| state.contexts += 1).map(|()| 7))
}
unsafe extern "C" fn context_release(_: c_int) -> c_int {
    code(with("context_release", |state| state.contexts -= 1))
}
unsafe extern "C" fn context_push(_: *mut c_void) -> c_int {
    code(with("context_push", |state| state.current += 1))
}
unsafe extern "C" fn context_pop(out: *mut *mut c_void) -> c_int {
    give(out, with("context_pop", |state| state.current -= 1).map(|()| 7))
}
unsafe extern "C" fn host_alloc(out: *mut *mut c_void, len: usize, _: c_uint) -> c_int {
    let made = with("host_alloc", |state| {
        let memory = Vec::leak(vec![0u8; len + 4096]);
        let start = memory.as_ptr().addr().next_multiple_of(4096);
        state.pinned.insert(start, len);
        start
    });
    give(out, made)
}
unsafe extern "C" fn host_free(start: *mut c_void) -> c_int {
    code(with("host_free", |state| {
        let len = state.pinned.remove(&start.addr()).expect("pinned");
        // Whoever still copies from it gets nothing good.
        // SAFETY: leaked above, so it is still there.
        unsafe { start.cast::<u8>().write_bytes(0xDD, len) };
    }))
}
unsafe extern "C" fn stream_create(out: *mut *mut c_void, _: c_uint) -> c_int {
    give(
        out,
        with("stream_create", |state| {
            let handle = fresh(state);
            state.streams.insert(handle, Vec::new());
            handle
        }),
    )
}
unsafe extern "C" fn stream_destroy(stream: *mut c_void) -> c_int {
    code(with("stream_destroy", |state| drop(state.streams.remove(&stream.addr()).expect("a stream"))))
}
unsafe extern "C" fn event_create(out: *mut *mut c_void, _: c_uint) -> c_int {
    give(
        out,
        with("event_create", |state| {
            let handle = fresh(state);
            state.events.insert(handle, (0, 0));
            handle
        }),
    )
}
unsafe extern "C" fn event_destroy(event: *mut c_void) -> c_int {
    code(with("event_destroy", |state| assert!(state.events.remove(&event.addr()).is_some())))
}
unsafe extern "C" fn event_record(event: *mut c_void, stream: *mut c_void) -> c_int {
    code(with("event_record", |state| {
        let count = state.streams[&stream.addr()].len();
        state.events.insert(event.addr(), (stream.addr(), count));
    }))
}
unsafe extern "C" fn event_wait(event: *mut c_void) -> c_int {
    code(with("event_wait", |state| {
        let (stream, count) = state.events[&event.addr()];
        let Some(copies) = state.streams.get_mut(&stream) else { return };
        for copy in &mut copies[..count] {
            let (to, from, len) = std::mem::take(copy);
            if len > 0 {
                // SAFETY: the code under test keeps both until it waited; that is what is tested, and pinned memory is leaked.
                unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as usize as *mut u8, len) };
            }
        }
    }))
}
unsafe extern "C" fn copy_to_device(to: u64, from: *const c_void, len: usize, stream: *mut c_void) -> c_int {
    code(with("copy", |state| {
        let inside =
            |(start, room): (&usize, &usize)| *start <= from.addr() && from.addr() + len <= start + room;
        assert!(state.pinned.iter().any(inside), "a copy from memory that is not pinned");
        assert!(state.current > 0, "no device is current");
        state.streams.get_mut(&stream.addr()).expect("a stream").push((to, from.addr(), len));
    }))
}

const FAKE: Api = Api {
    init,
    error_string,
    device_get,
    device_count,
    device_name,
    context_retain,
    context_release,
    context_push,
    context_pop,
    host_alloc,
    host_free,
    stream_create,
    stream_destroy,
    event_create,
    event_destroy,
    event_record,
    event_wait,
    copy_to_device,
};

/// A fresh machine, for one test.
fn machine(fails: Option<(&'static str, usize, c_int)>) -> MutexGuard<'static, ()> {
    let one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    *STATE.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) =
        Some(State { fails, ..State::default() });
    one
}

fn nothing_is_left() {
    let held = STATE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let state = held.as_ref().expect("a machine");
    let left = (state.pinned.len(), state.streams.len(), state.events.len(), state.contexts, state.current);
    assert_eq!(left, (0, 0, 0, 0, 0), "pinned, streams, events, contexts, current");
}

const LEN: usize = 900_001;

fn load(threads: usize, source: &Parts, targets: &mut Targets) -> Result<Report, LoadError<String>> {
    let cuda = Cuda::open(FAKE, 0).map_err(LoadError::Gpu)?;
    let loader = Loader::new(Device::Cuda(cuda), Settings { threads, piece: 16 << 10, buffers: 2 });
    let plan = Plan::new(targets.segments(), 16 << 10).unwrap();
    // SAFETY: the targets are as long as their segments, and nobody else uses them.
    let first = unsafe { loader.load(source, &plan, &AtomicBool::new(false)) }?;
    // SAFETY: as above.
    unsafe { loader.load(source, &plan, &AtomicBool::new(false)) }?;
    Ok(first)
}

#[test]
fn copies_that_come_late_bring_the_right_bytes() {
    let _one = machine(None);
    let source = Parts::new(vec![file(0, LEN)], 5000);
    let mut targets = Targets::new(&[(0, 0, 3), (0, 3, 500_000), (0, 500_100, 399_901)]);
    let report = load(3, &source, &mut targets).unwrap();
    targets.check(&source.files);
    assert_eq!(report.bytes, 900_001 - 97);
    nothing_is_left();
}

#[test]
fn whatever_fails_is_told_and_nothing_is_left() {
    let source = Parts::new(vec![file(0, LEN)], usize::MAX);
    for call in [
        "init",
        "context_retain",
        "context_push",
        "stream_create",
        "event_create",
        "event_record",
        "event_wait",
        "copy",
    ] {
        for from in [1, 2, 30] {
            let _one = machine(Some((call, from, 700)));
            let mut targets = Targets::new(&[(0, 1, LEN as u64 - 1)]);
            let found = load(2, &source, &mut targets);
            let failed =
                STATE.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).as_ref().unwrap().calls[call]
                    >= from;
            match found {
                Ok(_) => assert!(!failed, "{call} {from} is not told"),
                Err(LoadError::Gpu(GpuError::Call { code: 700, .. } | GpuError::NoDevice(_))) => {
                    assert!(failed)
                }
                Err(other) => panic!("{call} {from}: {other:?}"),
            }
            targets.check_guards();
            // A context that is broken may not be pushed to be cleaned up; all else is.
            if call != "context_push" {
                nothing_is_left();
            }
        }
    }
}

#[test]
fn less_pinned_memory_is_fewer_threads_and_none_is_an_error() {
    let source = Parts::new(vec![file(0, LEN)], usize::MAX);
    let mut targets = Targets::new(&[(0, 0, LEN as u64)]);
    {
        // Two buffers for the first lane, and no more.
        let _one = machine(Some(("host_alloc", 3, 2)));
        let report = load(1, &source, &mut targets).unwrap();
        assert_eq!(report.threads, 1);
        targets.check(&source.files);
        nothing_is_left();
    }
    let _one = machine(Some(("host_alloc", 1, 2)));
    let found = load(4, &source, &mut targets);
    assert!(matches!(found, Err(LoadError::Gpu(GpuError::OutOfMemory { .. }))), "{found:?}");
    nothing_is_left();
}

#[test]
fn damage_is_never_copied_to_a_device() {
    let _one = machine(None);
    let mut source = Parts::new(vec![file(0, LEN)], usize::MAX);
    source.damage = Some((0, 700_000));
    let mut targets = Targets::new(&[(0, 0, LEN as u64)]);
    assert!(matches!(load(4, &source, &mut targets), Err(LoadError::Source(_))));
    targets.check_guards();
    nothing_is_left();
}

#[test]
fn a_device_that_is_not_there_is_named() {
    let _one = machine(None);
    let found = Cuda::open(FAKE, 3).unwrap_err();
    assert_eq!(found.to_string(), "no CUDA device: number 3 is not among the 1 that are visible");
    nothing_is_left();
}
