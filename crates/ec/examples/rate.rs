//! Encode and decode rates of every kernel of this machine, beside ISA-L if it is there.

#![expect(clippy::print_stdout, reason = "measures and prints")]
#![allow(clippy::unwrap_used, reason = "an example")]

use std::ffi::{c_int, c_uchar, c_void};

use stoker_ec::{Codec, Kernel, Layout, Scheme};

type Encode = unsafe extern "C" fn(c_int, c_int, c_int, *const c_uchar, *const *const u8, *const *mut u8);
type Tables = unsafe extern "C" fn(c_int, c_int, *const c_uchar, *mut c_uchar);
type Cauchy = unsafe extern "C" fn(*mut c_uchar, c_int, c_int);
type Invert = unsafe extern "C" fn(*mut c_uchar, *mut c_uchar, c_int) -> c_int;

struct Isal {
    encode: Encode,
    tables: Tables,
    cauchy: Cauchy,
    invert: Invert,
}

fn isal() -> Option<Isal> {
    unsafe {
        let library = libc::dlopen(c"libisal.so.2".as_ptr(), libc::RTLD_NOW);
        if library.is_null() {
            return None;
        }
        let f = |name: &std::ffi::CStr| -> *mut c_void { libc::dlsym(library, name.as_ptr()) };
        Some(Isal {
            encode: std::mem::transmute::<*mut c_void, Encode>(f(c"ec_encode_data")),
            tables: std::mem::transmute::<*mut c_void, Tables>(f(c"ec_init_tables")),
            cauchy: std::mem::transmute::<*mut c_void, Cauchy>(f(c"gf_gen_cauchy1_matrix")),
            invert: std::mem::transmute::<*mut c_void, Invert>(f(c"gf_invert_matrix")),
        })
    }
}

struct Stripe {
    memory: Vec<u8>,
    len: usize,
    skew: usize,
}

impl Stripe {
    fn new(width: usize, len: usize, seed: u64) -> Self {
        let mut x = seed | 1;
        let skew = 0;
        let stride = len;
        let mut memory = vec![0u8; stride * width + 64];
        memory.iter_mut().for_each(|b| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            *b = x as u8
        });
        let skew = (64 - memory.as_ptr() as usize % 64) % 64 + skew;
        Self { memory, len, skew }
    }
    fn shards(&mut self) -> Vec<&mut [u8]> {
        let len = self.len;
        self.memory[self.skew..].chunks_exact_mut(len).map(|c| &mut c[..len]).collect()
    }
}

/// Seconds that this thread computed.
fn cpu() -> f64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut now) };
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

fn time(seconds: f64, bytes: usize, mut f: impl FnMut()) -> f64 {
    f();
    let begun = cpu();
    let mut count = 0;
    while cpu() - begun < seconds {
        f();
        count += 1;
    }
    bytes as f64 * f64::from(count) / (cpu() - begun) / 1e9
}

fn median(mut v: Vec<f64>) -> f64 {
    v.sort_by(f64::total_cmp);
    v[v.len() / 2]
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let chunk: usize = args.get(1).map_or(4 << 20, |a| a.parse().unwrap());
    let stripes: usize = args.get(2).map_or(1, |a| a.parse().unwrap());
    let rounds: usize = args.get(3).map_or(5, |a| a.parse().unwrap());
    let seconds = 0.04;
    let isal = isal();
    for scheme in ["4+2", "8+2", "14+4", "10+3", "12+6", "16+8"]
        .into_iter()
        .filter(|s| args.get(4).is_none_or(|only| only.split(',').any(|o| o == *s)))
    {
        let scheme: Scheme = scheme.parse().unwrap();
        let (k, m, n) = (scheme.data(), scheme.parity(), scheme.width());
        let len = Layout::new(scheme, chunk).unwrap().shard_len();
        let mut sets: Vec<Stripe> = (0..stripes).map(|s| Stripe::new(n, len, 77 + s as u64)).collect();
        for lost in [0, 1, m] {
            let mut kernels: Vec<(String, Vec<f64>)> = Vec::new();
            if isal.is_some() {
                kernels.push(("isal".into(), Vec::new()));
            }
            for kernel in Kernel::available() {
                kernels.push((kernel.to_string(), Vec::new()));
            }
            // lost == 0: encode. Otherwise: the first `lost` data shards from the rest.
            let wanted: Vec<usize> = if lost == 0 { (k..n).collect() } else { (0..lost).collect() };
            let present: Vec<usize> = (0..n).filter(|s| !wanted.contains(s)).collect();
            for round in 0..rounds {
                for (at, (name, rates)) in kernels.iter_mut().enumerate() {
                    if name == "portable" && round > 0 {
                        continue;
                    }
                    let _ = at;
                    let rate = if name == "isal" {
                        let isal = isal.as_ref().unwrap();
                        let mut a = vec![0u8; n * k];
                        let mut tables = vec![0u8; 32 * k * wanted.len()];
                        unsafe { (isal.cauchy)(a.as_mut_ptr(), n as c_int, k as c_int) };
                        let rows: Vec<u8> = if lost == 0 {
                            a[k * k..].to_vec()
                        } else {
                            let mut b: Vec<u8> =
                                present[..k].iter().flat_map(|&s| a[s * k..(s + 1) * k].to_vec()).collect();
                            let mut inv = vec![0u8; k * k];
                            assert_eq!(
                                unsafe { (isal.invert)(b.as_mut_ptr(), inv.as_mut_ptr(), k as c_int) },
                                0
                            );
                            inv[..lost * k].to_vec()
                        };
                        let rows_n = wanted.len();
                        unsafe {
                            (isal.tables)(k as c_int, rows_n as c_int, rows.as_ptr(), tables.as_mut_ptr())
                        };
                        time(seconds, stripes * len * k, || {
                            for set in &mut sets {
                                let mut shards = set.shards();
                                let sources: Vec<*const u8> =
                                    present[..k].iter().map(|&s| shards[s].as_ptr()).collect();
                                let outputs: Vec<*mut u8> =
                                    wanted.iter().map(|&s| shards[s].as_mut_ptr()).collect();
                                unsafe {
                                    (isal.encode)(
                                        len as c_int,
                                        k as c_int,
                                        rows_n as c_int,
                                        tables.as_ptr(),
                                        sources.as_ptr(),
                                        outputs.as_ptr(),
                                    )
                                };
                            }
                        })
                    } else {
                        let kernel = Kernel::available().find(|k| k.name() == *name).unwrap();
                        let codec = Codec::with_kernel(scheme, kernel).unwrap();
                        let repair = (lost > 0).then(|| codec.repair(&present, &wanted).unwrap());
                        time(seconds, stripes * len * k, || {
                            for set in &mut sets {
                                let shards = set.shards();
                                let mut outputs = Vec::new();
                                let mut sources: Vec<&[u8]> = Vec::new();
                                for (s, shard) in shards.into_iter().enumerate() {
                                    if wanted.contains(&s) {
                                        outputs.push(shard);
                                    } else if sources.len() < k {
                                        sources.push(shard);
                                    }
                                }
                                match &repair {
                                    None => codec.encode(&sources, &mut outputs).unwrap(),
                                    Some(r) => r.run(&sources, &mut outputs).unwrap(),
                                }
                            }
                        })
                    };
                    rates.push(rate);
                }
            }
            let base = kernels.first().filter(|k| k.0 == "isal").map(|k| k.1.clone());
            for (name, rates) in kernels {
                let ratio =
                    base.as_ref().map(|base| median(rates.iter().zip(base).map(|(a, b)| a / b).collect()));
                println!(
                    "{scheme} lost {lost} {name:12} {:7.2} GB/s  ratio {:.3}",
                    median(rates),
                    ratio.unwrap_or(0.0)
                );
            }
        }
    }
}
