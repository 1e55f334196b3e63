//! The words of tools, read for one figure each. They are foreign bytes: whatever does not fit is no figure.

use std::path::PathBuf;

use serde_json::Value;

const NONE: &str = "its words hold no figure";

/// A number that can be a figure.
fn figure(text: &str) -> Option<f64> {
    text.parse::<f64>().ok().filter(|figure| figure.is_finite() && *figure > 0.0)
}

/// The mean bandwidth of `ib_write_bw --report_gbits`, in Gb/s: the fourth column of the last row of figures.
pub fn ib_write_bw(words: &str) -> Option<f64> {
    let row = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let whole = |at: usize| fields.get(at)?.parse::<u64>().ok();
        let _is_row_of_figures = (whole(0)?, whole(1)?);
        figure(fields.get(3)?)
    };
    words.lines().filter_map(row).next_back()
}

/// The bus bandwidth of `all_reduce_perf` in GB/s; wrong sums are a failure, however fast.
pub fn all_reduce(words: &str) -> Result<f64, String> {
    let value = |head: &str| {
        let line = words.lines().find_map(|line| line.trim().strip_prefix('#')?.trim().strip_prefix(head))?;
        line.trim().strip_prefix(':').map(str::trim)
    };
    if let Some(wrong) =
        value("Out of bounds values").filter(|wrong| !wrong.starts_with("0 ") && *wrong != "0")
    {
        return Err(format!("values out of bounds: {}", wrong.chars().take(40).collect::<String>()));
    }
    let bandwidth = value("Avg bus bandwidth").and_then(|text| text.split_whitespace().next());
    bandwidth.and_then(figure).ok_or_else(|| NONE.into())
}

/// What fio says of reads.
#[derive(PartialEq, Debug)]
pub struct FioRead {
    pub mb_s: f64,
    pub p99_us: f64,
}

/// `fio --output-format=json`. Some releases say words before the object.
pub fn fio(words: &str) -> Result<FioRead, String> {
    let json = words.find('{').map_or("", |at| &words[at..]);
    let value: Value = serde_json::from_str(json).map_err(|_| NONE.to_owned())?;
    let job = &value["jobs"][0];
    if let Some(error) = job["error"].as_i64().filter(|error| *error != 0) {
        return Err(format!("fio failed with error {error}"));
    }
    let read = &job["read"];
    let number = |value: &Value| value.as_f64().filter(|figure| figure.is_finite() && *figure > 0.0);
    let rate = number(&read["bw_bytes"]).ok_or(NONE)?;
    let p99 = number(&read["clat_ns"]["percentile"]["99.000000"]).ok_or(NONE)?;
    Ok(FioRead { mb_s: rate / 1e6, p99_us: p99 / 1e3 })
}

/// `Max Write: 812.50 MiB/sec (851.97 MB/sec)`, in MB/s.
pub fn ior(words: &str, head: &str) -> Result<f64, String> {
    let line = words.lines().find_map(|line| line.trim().strip_prefix(head));
    let mib_s = line.and_then(|line| {
        let mut fields = line.split_whitespace();
        let number = figure(fields.next()?)?;
        (fields.next()? == "MiB/sec").then_some(number)
    });
    mib_s.map(|mib_s| mib_s * 1.048_576).ok_or_else(|| NONE.into())
}

/// The `summary.json` of a run of MLPerf Storage. Its gigabytes are powers of two.
pub fn mlpstorage(words: &str) -> Result<f64, String> {
    let value: Value = serde_json::from_str(words).map_err(|_| NONE.to_owned())?;
    let gib_s = value["metric"]["save_checkpoint_io_mean_GB_per_second"].as_f64();
    let gib_s = gib_s.filter(|figure| figure.is_finite() && *figure > 0.0).ok_or(NONE)?;
    Ok(gib_s * 1.073_741_824)
}

/// Where volumes of Stoker are mounted by FUSE, by `/proc/self/mounts`.
pub fn stoker_mounts(mounts: &str) -> Vec<PathBuf> {
    let one = |line: &str| {
        let mut fields = line.split(' ').skip(1);
        let (point, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        let is_writable = options.split(',').any(|option| option == "rw");
        (kind == "fuse.stoker" && is_writable).then(|| PathBuf::from(unescaped(point)))
    };
    mounts.lines().filter_map(one).collect()
}

/// The kernel writes blanks and backslashes of names as three octal digits.
fn unescaped(text: &str) -> String {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let octal = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok();
        match (first, tail.get(..3).and_then(octal)) {
            (b'\\', Some(byte)) => {
                plain.push(byte);
                rest = &tail[3..];
            }
            _ => {
                plain.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}

/// Whether a name in `/dev` is that of a GPU.
pub fn is_gpu(name: &str) -> bool {
    name.strip_prefix("nvidia")
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

/// The memory of the machine by `/proc/meminfo`, in GiB.
pub fn memory_gib(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    const IB: &str = "\
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : mlx5_0
 local address: LID 0000 QPN 0x01ac PSN 0xc76db1
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      529037          0.00              92.46                0.176344
---------------------------------------------------------------------------------------
";

    const NCCL: &str = "\
#       size         count      type   redop    root     time   algbw   busbw #wrong
  1073741824     268435456     float     sum      -1   4027.3  266.61  466.57      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 448.212
#
";

    const FIO: &str = r#"fio: this platform does something
{ "fio version": "fio-3.36", "jobs": [ { "jobname": "gate", "error": 0, "read": { "bw_bytes": 2500000000,
  "clat_ns": { "percentile": { "50.000000": 61000, "99.000000": 152576 } } }, "write": { "bw_bytes": 0 } } ] }"#;

    const IOR: &str = "\
access    bw(MiB/s)  IOPS       Latency(s)  block(KiB) xfer(KiB)  open(s)    wr/rd(s)   close(s)   total(s)   iter
write     812.50     812.51     0.001230    65536      1024.00    0.000100   0.078765   0.000001   0.078768   0
Max Write: 812.50 MiB/sec (851.97 MB/sec)
Max Read:  2041.10 MiB/sec (2140.25 MB/sec)
";

    #[test]
    fn figures_are_found() {
        assert_eq!(ib_write_bw(IB), Some(92.46));
        assert_eq!(all_reduce(NCCL), Ok(448.212));
        assert_eq!(fio(FIO), Ok(FioRead { mb_s: 2500.0, p99_us: 152.576 }));
        assert_eq!(ior(IOR, "Max Write:").map(f64::round), Ok(852.0));
        assert_eq!(ior(IOR, "Max Read:").map(f64::round), Ok(2140.0));
        let summary = r#"{"metric":{"save_checkpoint_io_mean_GB_per_second":2.5}}"#;
        assert_eq!(mlpstorage(summary).map(|figure| (figure * 1e3).round()), Ok(2684.0));
    }

    #[test]
    fn words_that_do_not_fit_are_no_figure() {
        for words in
            ["", "0 0 0 0", "65536 10 1 NaN", "65536 10 1 -4", "65536 10 1 inf", "a b c d", "65536 10"]
        {
            assert_eq!(ib_write_bw(words), None, "{words}");
        }
        for words in
            ["", "# Avg bus bandwidth", "# Avg bus bandwidth : x", "# Avg bus bandwidth : 0", "\u{0}\u{7f}"]
        {
            assert!(all_reduce(words).is_err(), "{words}");
        }
        let wrong = NCCL.replace("0 OK", "17 FAILED");
        assert!(all_reduce(&wrong).unwrap_err().contains("17 FAILED"));
        let failed = FIO.replace("\"error\": 0", "\"error\": 5");
        assert_eq!(fio(&failed).unwrap_err(), "fio failed with error 5");
        for words in ["", "{", "{}", r#"{"jobs":[]}"#, r#"{"jobs":7}"#, "[[[[[["] {
            assert!(fio(words).is_err(), "{words}");
            assert!(mlpstorage(words).is_err(), "{words}");
            assert!(ior(words, "Max Write:").is_err(), "{words}");
        }
        assert!(ior("Max Write: fast", "Max Write:").is_err());
        assert!(ior("Max Write: 5 furlongs", "Max Write:").is_err());
    }

    #[test]
    fn mounts_and_machines_are_read() {
        let mounts = "data /mnt/my\\040data fuse.stoker rw,nodev 0 0\nx / ext4 rw 0 0\ny /r fuse.stoker ro,nodev 0 0\nbroken\n";
        assert_eq!(stoker_mounts(mounts), [PathBuf::from("/mnt/my data")]);
        assert_eq!(unescaped("a\\134b\\9\\04"), "a\\b\\9\\04");
        for (name, gpu) in
            [("nvidia0", true), ("nvidia15", true), ("nvidiactl", false), ("nvidia", false), ("sda", false)]
        {
            assert_eq!(is_gpu(name), gpu, "{name}");
        }
        assert_eq!(memory_gib("MemTotal:       33554432 kB\n"), Some(32));
        assert_eq!(memory_gib("MemTotal: much"), None);
    }
}
