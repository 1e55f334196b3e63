//! Facts of GPUs and machines from the pages of other exporters, such as DCGM's and those for IPMI and Redfish.
//!
//! A page is somebody else's: it is fetched with a deadline, cut at a length, and only the numbers of a fixed list are passed
//! on, under our names and with labels of a fixed list. So no exporter can make `/metrics` grow or break it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stoker_store::Counter;
use tokio::sync::watch;

use super::fetch::Http;
use super::pause;
use crate::clock;

/// How often pages are fetched.
const EVERY: Duration = Duration::from_secs(15);
/// Numbers that were fetched longer ago are not shown.
const AGE_MAX_MS: u64 = 60_000;
/// Longest page.
const PAGE_BYTES_MAX: usize = 4 << 20;
/// Numbers that are taken from one page.
const NUMBERS_MAX: usize = 1_024;
/// Longest value of a label.
const LABEL_LEN_MAX: usize = 64;
/// Labels that are passed on, by their foreign and our name.
const LABELS: [(&str, &str); 7] = [
    ("gpu", "gpu"),
    ("device", "device"),
    ("name", "sensor"),
    ("sensor", "sensor"),
    ("type", "type"),
    ("id", "sensor"),
    ("resource", "sensor"),
];

/// What is taken: foreign name, our name, factor to our unit, help.
const TAKEN: [(&str, &str, f64, &str); 25] = [
    ("DCGM_FI_DEV_GPU_TEMP", "gpu_temperature_celsius", 1.0, "Temperature of a GPU."),
    ("DCGM_FI_DEV_MEMORY_TEMP", "gpu_memory_temperature_celsius", 1.0, "Temperature of a GPU's memory."),
    ("DCGM_FI_DEV_POWER_USAGE", "gpu_power_watts", 1.0, "Power that a GPU draws."),
    ("DCGM_FI_DEV_GPU_UTIL", "gpu_busy_ratio", 0.01, "Share of the time that a GPU was busy."),
    (
        "DCGM_FI_DEV_MEM_COPY_UTIL",
        "gpu_memory_busy_ratio",
        0.01,
        "Share of the time that a GPU's memory was busy.",
    ),
    ("DCGM_FI_DEV_FB_USED", "gpu_memory_used_bytes", 1_048_576.0, "Memory of a GPU in use."),
    ("DCGM_FI_DEV_FB_FREE", "gpu_memory_free_bytes", 1_048_576.0, "Memory of a GPU that is free."),
    ("DCGM_FI_DEV_XID_ERRORS", "gpu_xid", 1.0, "The last XID error of a GPU."),
    (
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        "gpu_ecc_double_bit",
        1.0,
        "Double bit errors of a GPU since it was reset.",
    ),
    (
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
        "gpu_pcie_replays_total",
        1.0,
        "Transfers over PCIe that were repeated.",
    ),
    ("DCGM_FI_PROF_PCIE_TX_BYTES", "gpu_pcie_sent_bytes", 1.0, "Bytes per second that a GPU sent over PCIe."),
    (
        "DCGM_FI_PROF_PCIE_RX_BYTES",
        "gpu_pcie_received_bytes",
        1.0,
        "Bytes per second that a GPU got over PCIe.",
    ),
    ("ipmi_up", "bmc_up", 1.0, "1 if the machine's controller answered its exporter."),
    ("ipmi_temperature_celsius", "bmc_temperature_celsius", 1.0, "Temperature of a sensor of the machine."),
    ("ipmi_fan_speed_rpm", "bmc_fan_rpm", 1.0, "Speed of a fan of the machine."),
    ("ipmi_power_watts", "bmc_power_watts", 1.0, "Power of a sensor of the machine."),
    ("ipmi_dcmi_power_consumption_watts", "bmc_draw_watts", 1.0, "Power that the machine draws."),
    (
        "ipmi_sensor_state",
        "bmc_sensor_state",
        1.0,
        "0 fine, 1 warning, 2 critical, of a sensor of the machine.",
    ),
    ("redfish_up", "bmc_up", 1.0, "1 if the machine's controller answered its exporter."),
    (
        "redfish_chassis_temperature_celsius",
        "bmc_temperature_celsius",
        1.0,
        "Temperature of a sensor of the machine.",
    ),
    ("redfish_chassis_fan_rpm", "bmc_fan_rpm", 1.0, "Speed of a fan of the machine."),
    ("redfish_chassis_power_average_consumed_watts", "bmc_draw_watts", 1.0, "Power that the machine draws."),
    (
        "smartctl_device_percentage_used",
        "drive_smart_used_ratio",
        0.01,
        "Share of its life that a drive says it used.",
    ),
    (
        "smartctl_device_media_errors",
        "drive_smart_media_errors",
        1.0,
        "Media errors that a drive says it had.",
    ),
    ("smartctl_device_critical_warning", "drive_smart_warning", 1.0, "Warnings of a drive, as bits."),
];

/// The last page of one exporter.
#[derive(Default)]
struct Page {
    fetched_ms: u64,
    numbers: Vec<Counter>,
    is_up: bool,
}

/// All exporters of a configuration.
pub struct Exporters {
    urls: Vec<String>,
    pages: Mutex<Vec<Page>>,
}

impl Exporters {
    /// None was read yet.
    pub fn new(urls: &[String]) -> Exporters {
        let pages = urls.iter().map(|_| Page::default()).collect();
        Exporters { urls: urls.to_vec(), pages: Mutex::new(pages) }
    }

    /// Fetches pages until told to stop.
    pub async fn follow(self: Arc<Exporters>, http: Http, mut stopped: watch::Receiver<bool>) {
        loop {
            // At the same time: one that hangs must not make the pages of the others old.
            let fetches =
                self.urls.iter().enumerate().map(async |(at, url)| self.keep(at, fetch(&http, url).await));
            tokio::select! {
                biased;
                () = super::told(&mut stopped) => return,
                _ = futures_util::future::join_all(fetches) => {}
            }
            if pause(EVERY, &mut stopped).await {
                return;
            }
        }
    }

    fn keep(&self, at: usize, fetched: Result<Vec<Counter>, String>) {
        let mut pages = self.pages.lock().unwrap();
        let page = &mut pages[at];
        match fetched {
            Ok(numbers) => *page = Page { fetched_ms: clock::unix_ms(), numbers, is_up: true },
            Err(words) => {
                // Told once, when it begins.
                if page.is_up || page.fetched_ms == 0 {
                    tracing::warn!(url = self.urls[at], "an exporter gives no page: {words}");
                }
                page.is_up = false;
                page.fetched_ms = page.fetched_ms.max(1);
            }
        }
    }

    /// What they told last.
    pub fn counters(&self) -> Vec<Counter> {
        let now_ms = clock::unix_ms();
        let mut all: Vec<Counter> = Vec::new();
        let mut seen = HashSet::new();
        let mut uses: HashMap<&str, usize> = HashMap::new();
        for (url, page) in self.urls.iter().zip(&*self.pages.lock().unwrap()) {
            let help = "1 if the page of another exporter could be fetched.";
            // Two targets of one exporter differ only in what is not shown.
            let url = without_secrets(url);
            let count = uses.entry(url).or_default();
            *count += 1;
            let label = if *count == 1 { url.to_owned() } else { format!("{url}#{count}") };
            all.push(Counter::new("exporter_up", help, &[("url", &label)], f64::from(page.is_up)));
            if now_ms.saturating_sub(page.fetched_ms) <= AGE_MAX_MS {
                // Of two exporters for the same thing the first counts.
                let is_new = |one: &&Counter| seen.insert((one.name.clone(), one.labels.clone()));
                all.extend(page.numbers.iter().filter(is_new).cloned());
            }
        }
        all
    }
}

async fn fetch(http: &Http, url: &str) -> Result<Vec<Counter>, String> {
    let answer = http.get(url, PAGE_BYTES_MAX).await?;
    if answer.status != 200 {
        return Err(format!("it answers with status {}", answer.status));
    }
    Ok(numbers_of(&String::from_utf8_lossy(&answer.body)))
}

/// What is taken from a page; lines that make no sense are passed over.
fn numbers_of(page: &str) -> Vec<Counter> {
    let mut all: Vec<Counter> = Vec::new();
    let mut seen = HashSet::new();
    for (name, labels, value) in page.lines().filter_map(sample) {
        let Some((_, ours, factor, help)) = TAKEN.iter().find(|(foreign, ..)| *foreign == name) else {
            continue;
        };
        let known = |(foreign, ours): &(&str, &'static str)| {
            let value = labels.iter().find(|(name, _)| name == foreign)?.1.clone();
            Some((*ours, value.chars().take(LABEL_LEN_MAX).collect::<String>()))
        };
        let mut kept: Vec<(&str, String)> = LABELS.iter().filter_map(known).collect();
        // The first of the list counts: a name says more than a number.
        kept.sort_by_key(|(name, _)| *name);
        kept.dedup_by(|one, other| one.0 == other.0);
        let kept: Vec<(&str, &str)> = kept.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let number = Counter::new(ours, help, &kept, value * factor);
        // Two that differ only in labels that are not passed on would be one.
        if seen.insert((*ours, number.labels.clone())) {
            all.push(number);
        }
        if all.len() >= NUMBERS_MAX {
            break;
        }
    }
    all
}

/// A url without what may be a secret.
fn without_secrets(url: &str) -> &str {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if at > scheme => &url[at + 1..],
        _ => url,
    }
}

/// Labels of a line.
type Labels = Vec<(String, String)>;

/// Name, labels and value of a line; none if it is no sample.
fn sample(line: &str) -> Option<(&str, Labels, f64)> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let end = line.find(|c: char| c == '{' || c.is_whitespace())?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels_of(rest)?,
        None => (Vec::new(), rest),
    };
    // A time may follow.
    let value: f64 = rest.split_whitespace().next()?.parse().ok()?;
    Some((name, labels, value))
}

/// Labels behind their bracket, and what comes after them.
fn labels_of(mut rest: &str) -> Option<(Labels, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start_matches([' ', ',']);
        if let Some(behind) = rest.strip_prefix('}') {
            return Some((labels, behind));
        }
        let (name, behind) = rest.split_once('=')?;
        let (value, behind) = quoted(behind.trim_start().strip_prefix('"')?)?;
        labels.push((name.trim().to_owned(), value));
        rest = behind;
    }
}

/// A text up to its closing quote, and what comes after it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name, labels and value.
    type Expected<'a> = (&'a str, &'a [(&'a str, &'a str)], f64);

    fn check(page: &str, expect: &[Expected<'_>]) {
        let found = numbers_of(page);
        let expect: Vec<Counter> =
            expect.iter().map(|(name, labels, value)| Counter::new(name, "", labels, *value)).collect();
        let bare = |counter: Counter| Counter { help: String::new(), ..counter };
        assert_eq!(found.into_iter().map(bare).collect::<Vec<_>>(), expect, "{page}");
    }

    #[test]
    fn a_page_of_dcgm() {
        check(
            "# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).\n# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n\
             DCGM_FI_DEV_GPU_TEMP{gpu=\"0\",UUID=\"GPU-1\",device=\"nvidia0\",Hostname=\"a\"} 41\n\
             DCGM_FI_DEV_FB_USED{gpu=\"0\",UUID=\"GPU-1\",device=\"nvidia0\"} 2 1700000000\n\
             DCGM_FI_DEV_GPU_UTIL{gpu=\"1\"} 50\nDCGM_FI_DEV_SM_CLOCK{gpu=\"0\"} 1410\n",
            &[
                ("gpu_temperature_celsius", &[("device", "nvidia0"), ("gpu", "0")], 41.0),
                ("gpu_memory_used_bytes", &[("device", "nvidia0"), ("gpu", "0")], 2_097_152.0),
                ("gpu_busy_ratio", &[("gpu", "1")], 0.5),
            ],
        );
    }

    #[test]
    fn a_page_of_ipmi() {
        check(
            "ipmi_up{collector=\"ipmi\"} 1\nipmi_temperature_celsius{id=\"18\",name=\"Inlet \\\"Temp\\\"\"} 24\n",
            &[("bmc_up", &[], 1.0), ("bmc_temperature_celsius", &[("sensor", "Inlet \"Temp\"")], 24.0)],
        );
    }

    #[test]
    fn a_page_of_a_stranger_does_no_harm() {
        let endless = format!("ipmi_up{{name=\"{}\"}} 1\n", "é".repeat(100_000));
        for page in [
            "ipmi_up",
            "ipmi_up{",
            "ipmi_up{a",
            "ipmi_up{a=",
            "ipmi_up{a=\"",
            "ipmi_up{a=\"\\",
            "ipmi_up{a=\"b\"",
            "ipmi_up{a=\"b\"} ",
            "ipmi_up{} one",
            "{} 1",
            "\u{0}\u{1}",
            "ipmi_upé 1",
        ] {
            check(page, &[]);
        }
        assert_eq!(numbers_of(&endless)[0].labels[0].1.chars().count(), LABEL_LEN_MAX);
        // As many as there may be, and no number twice.
        let many: String =
            (0..NUMBERS_MAX * 2).map(|at| format!("ipmi_fan_speed_rpm{{name=\"f{at}\"}} 1\n")).collect();
        assert_eq!(numbers_of(&many).len(), NUMBERS_MAX);
        assert_eq!(numbers_of("ipmi_up{x=\"1\"} 1\nipmi_up{x=\"2\"} 0\n").len(), 1);
    }

    #[test]
    fn two_targets_of_one_exporter_are_told_apart() {
        let urls =
            ["http://e/ipmi?target=a", "http://e/ipmi?target=b", "http://u:p@e/ipmi"].map(String::from);
        let labels: Vec<String> =
            Exporters::new(&urls).counters().iter().map(|counter| counter.labels[0].1.clone()).collect();
        assert_eq!(labels, ["http://e/ipmi", "http://e/ipmi#2", "e/ipmi"]);
    }

    #[tokio::test]
    async fn one_that_is_slow_does_not_hold_the_others_up() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let [slow, well] = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
        let urls = [&slow, &well].map(|listener| format!("http://{}/", listener.local_addr().unwrap()));
        // The first one does not answer before the second one was asked.
        let (tell, told) = tokio::sync::oneshot::channel();
        let serve = async |listener: std::net::TcpListener| {
            listener.set_nonblocking(true).unwrap();
            let (mut stream, _) =
                tokio::net::TcpListener::from_std(listener).unwrap().accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await;
            stream
        };
        let page = b"HTTP/1.1 200 X\r\ncontent-length: 10\r\n\r\nipmi_up 1\n";
        let servers = tokio::spawn(async move {
            let slow = async {
                let mut stream = serve(slow).await;
                told.await.unwrap();
                stream.write_all(page).await.unwrap();
            };
            let well = async {
                let mut stream = serve(well).await;
                tell.send(()).unwrap();
                stream.write_all(page).await.unwrap();
            };
            tokio::join!(slow, well);
        });
        let exporters = Arc::new(Exporters::new(&urls));
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(exporters.clone().follow(Http::new().unwrap(), stopped));
        while exporters.pages.lock().unwrap().iter().any(|page| page.fetched_ms == 0) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(exporters.pages.lock().unwrap().iter().all(|page| page.is_up));
        servers.await.unwrap();
        stop.send_replace(true);
        task.await.unwrap();
    }

    #[test]
    fn names_that_are_passed_on_are_of_one_kind_and_documented() {
        let page = include_str!("../../../docs/metrics.md");
        for (foreign, ours, _, _) in TAKEN {
            assert!(ours.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{foreign}: {ours}");
            assert!(page.contains(&format!("`stoker_{ours}`")), "{ours}");
        }
    }
}
