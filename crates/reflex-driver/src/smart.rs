//! What drives say about themselves, through `nvme` or `smartctl`, whichever the machine has.
//!
//! A drive of which nothing can be read is neither healthy nor broken: there is no answer then, and the reason is told once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::Value;
use stoker_doctor::{Disk, Machine, disks_behind};

use super::program::{self, Failed, Limits, Output, one_line};

/// How long a program may take, and what it may say.
const LIMITS: Limits = Limits { time: Duration::from_secs(10), bytes: 1 << 20 };
/// Disks behind one drive that are asked.
const DISKS_MAX: usize = 32;
/// Warnings of one drive that are told.
const CRITICAL_MAX: usize = 16;
/// Drives of which is remembered what was told.
const TOLD_MAX: usize = 1_024;

/// Bits of the critical warnings of NVMe, lowest first.
const NVME_BITS: [&str; 6] = [
    "little spare is left",
    "its temperature is beyond a limit",
    "its reliability is degraded",
    "it is read-only",
    "its backup of volatile memory failed",
    "its persistent memory is read-only or unreliable",
];
/// Counters of ATA that stay zero on a sound drive.
const ATA_BAD: [(u64, &str); 4] = [
    (5, "reallocated sectors"),
    (187, "reported uncorrectable errors"),
    (197, "pending sectors"),
    (198, "uncorrectable sectors"),
];
/// Attributes of ATA that count down from 100 to 0 as a drive wears out; their numbers differ between vendors.
const ATA_WEAR: [&str; 5] = [
    "Wear_Leveling_Count",
    "Media_Wearout_Indicator",
    "SSD_Life_Left",
    "Percent_Lifetime_Remain",
    "Remaining_Lifetime_Perc",
];

/// How a drive is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Health {
    /// What is wrong, in words; none of it is good.
    pub critical: Vec<String>,
    /// Errors that were counted since it was made, and of what; an old drive may have some and be sound.
    pub counted: Vec<(u64, String)>,
    /// Endurance that is used up, in percent; may be beyond 100.
    pub used_percent: u32,
    /// What it is, for whoever replaces it.
    pub model: String,
}

/// Asks drives.
pub struct SmartReader {
    machine: Machine,
    nvme: PathBuf,
    smartctl: PathBuf,
    /// What was told of each drive last.
    told: Mutex<BTreeMap<PathBuf, String>>,
}

impl Default for SmartReader {
    fn default() -> SmartReader {
        SmartReader::new(Path::new("/"), Path::new("nvme"), Path::new("smartctl"))
    }
}

impl SmartReader {
    /// Of the machine whose `/` is that directory, with these programs, which are looked for like a shell would.
    pub fn new(root: &Path, nvme: &Path, smartctl: &Path) -> SmartReader {
        let told = Mutex::default();
        SmartReader { machine: Machine::at(root), nvme: nvme.into(), smartctl: smartctl.into(), told }
    }

    /// How the disks behind a drive are, which is a directory, a file or a block device. None if that cannot be said.
    pub async fn read(&self, drive: &Path) -> Option<Health> {
        let found = self.look(drive).await;
        if self.is_news(drive, found.as_ref().err())
            && let Err(why) = &found
        {
            tracing::info!(drive = %drive.display(), "what it says about its health cannot be read: {why}");
        }
        found.ok()
    }

    /// The same with the reason.
    pub async fn look(&self, drive: &Path) -> Result<Health, String> {
        let (machine, path) = (self.machine.clone(), drive.to_owned());
        let disks = tokio::task::spawn_blocking(move || disks_behind(&machine, &path));
        let disks = disks.await.map_err(|error| error.to_string())?.map_err(|gap| gap.to_string())?;
        if disks.is_empty() {
            return Err("it is on no disk of this machine".into());
        }
        let asked = join_all(disks.iter().take(DISKS_MAX).map(|disk| self.ask(disk))).await;
        joined(&disks, asked)
    }

    /// Whether this was not said of the drive already; a drive that can be read is news of nothing.
    fn is_news(&self, drive: &Path, why: Option<&String>) -> bool {
        let mut told = self.told.lock().unwrap();
        let Some(why) = why else {
            told.remove(drive);
            return false;
        };
        if told.len() >= TOLD_MAX && !told.contains_key(drive) {
            return false;
        }
        told.insert(drive.to_owned(), why.clone()).as_ref() != Some(why)
    }

    async fn ask(&self, disk: &Disk) -> Result<Health, String> {
        // The kernel writes `!` where a device's name has a slash.
        let device = format!("/dev/{}", disk.name.replace('!', "/"));
        let model = self.machine.word(disk.sys.join("device/model")).unwrap_or_default();
        if disk.is_nvme() {
            match program::run(&self.nvme, &["smart-log", "-o", "json", &device], LIMITS).await {
                Err(Failed::Missing) => {}
                ran => {
                    let output = whole(&self.nvme, ran)?;
                    if !output.status.success() {
                        return Err(format!("{}: {}", self.nvme.display(), output.words()));
                    }
                    let health = of_nvme(&parsed(&self.nvme, &output)?)
                        .ok_or_else(|| senseless(&self.nvme, &output))?;
                    return Ok(Health { model: one_line(model.as_bytes()), ..health });
                }
            }
        }
        let output = match program::run(&self.smartctl, &["-j", "-H", "-A", &device], LIMITS).await {
            Err(Failed::Missing) if disk.is_nvme() => {
                return Err("neither nvme (nvme-cli) nor smartctl (smartmontools) is installed".into());
            }
            ran => whole(&self.smartctl, ran)?,
        };
        // Its exit status tells faults of the drive, too; the answer says which.
        let answer = parsed(&self.smartctl, &output)?;
        let mut health = of_smartctl(&answer).map_err(|why| format!("{}: {why}", self.smartctl.display()))?;
        let told = answer["model_name"].as_str().or(answer["scsi_model_name"].as_str());
        let name = if model.is_empty() { told.unwrap_or_default() } else { &model };
        health.model = one_line(name.as_bytes());
        Ok(health)
    }
}

fn whole(program: &Path, ran: Result<Output, Failed>) -> Result<Output, String> {
    match ran {
        Ok(output) if output.is_cut => Err(format!("{}: its answer is too long", program.display())),
        Ok(output) => Ok(output),
        Err(Failed::Missing) => Err(format!("{} is not installed", program.display())),
        Err(Failed::Other(why)) => Err(why),
    }
}

fn parsed(program: &Path, output: &Output) -> Result<Value, String> {
    serde_json::from_slice(&output.stdout).map_err(|_| senseless(program, output))
}

fn senseless(program: &Path, output: &Output) -> String {
    format!("{}: its answer makes no sense: {}", program.display(), output.words())
}

/// All disks of a drive as one. A disk that says nothing hides that others are sound, but not that one is broken.
fn joined(disks: &[Disk], asked: Vec<Result<Health, String>>) -> Result<Health, String> {
    let mut all = Health::default();
    let mut untold = None;
    let mut models: Vec<String> = Vec::new();
    let has_several = asked.len() > 1;
    for (disk, one) in disks.iter().zip(asked) {
        match one {
            Ok(one) => {
                let with_name = |words| if has_several { format!("{}: {words}", disk.name) } else { words };
                all.critical.extend(one.critical.into_iter().map(with_name));
                all.counted.extend(one.counted.into_iter().map(|(count, words)| (count, with_name(words))));
                all.used_percent = all.used_percent.max(one.used_percent);
                if !one.model.is_empty() && !models.contains(&one.model) {
                    models.push(one.model);
                }
            }
            Err(why) => untold = untold.or(Some(why)),
        }
    }
    all.critical.truncate(CRITICAL_MAX);
    all.counted.truncate(CRITICAL_MAX);
    all.model = models.join(", ");
    match untold {
        Some(why) if all.critical.is_empty() => Err(why),
        _ => Ok(all),
    }
}

/// A number, however the release of the program writes it: large ones are strings or floats in some, and have 128 bits.
fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => {
            let float = || number.as_f64().filter(|float| *float >= 0.0).map(|float| float as u64);
            number.as_u64().or_else(float)
        }
        Value::String(text) => {
            text.trim().parse::<u128>().ok().map(|large| u64::try_from(large).unwrap_or(u64::MAX))
        }
        _ => None,
    }
}

/// Warnings and endurance of the log of NVMe, as `nvme` writes it in its two forms, and as `smartctl` does.
fn of_nvme(log: &Value) -> Option<Health> {
    let warning = &log["critical_warning"];
    let nested = ["value", "Value"].iter().find_map(|key| warning.get(key));
    // Both are one byte.
    let byte = |value: &Value| number(value).and_then(|value| u8::try_from(value).ok());
    let bits = byte(nested.unwrap_or(warning))?;
    let used = ["percent_used", "percentage_used"].iter().find_map(|key| log.get(key)).and_then(byte)?;
    let named = NVME_BITS.iter().enumerate().filter(|(bit, _)| bits >> bit & 1 == 1);
    let mut critical: Vec<String> = named.map(|(_, words)| (*words).to_owned()).collect();
    if bits >> NVME_BITS.len() != 0 {
        critical.push(format!("critical warning {bits:#04x}"));
    }
    let errors = number(&log["media_errors"]).filter(|errors| *errors > 0);
    let counted = errors.map(|errors| (errors, "media errors".to_owned())).into_iter().collect();
    Some(Health { critical, counted, used_percent: used.into(), model: String::new() })
}

/// What `smartctl` says of a drive of any kind; its model is left out.
fn of_smartctl(answer: &Value) -> Result<Health, String> {
    const NOT_ASKED: u64 = 0b11;
    let said = || {
        let messages = answer["smartctl"]["messages"].as_array().into_iter().flatten();
        let words: Vec<&str> = messages.filter_map(|message| message["string"].as_str()).collect();
        if words.is_empty() {
            "it says nothing of the drive".to_owned()
        } else {
            one_line(words.join("; ").as_bytes())
        }
    };
    // The lowest bits say that the drive was not even asked.
    if number(&answer["smartctl"]["exit_status"]).is_none_or(|status| status & NOT_ASKED != 0) {
        return Err(said());
    }
    let passed = answer["smart_status"]["passed"].as_bool();
    let log = &answer["nvme_smart_health_information_log"];
    let mut health = Health::default();
    if log.is_object() {
        health = of_nvme(log).ok_or("the log of NVMe makes no sense")?;
    } else {
        let table = answer["ata_smart_attributes"]["table"].as_array();
        if passed.is_none() && table.is_none() {
            return Err(said());
        }
        of_ata(table.map_or(&[], Vec::as_slice), &mut health);
        let told = [
            &answer["endurance_used"]["current_percent"],
            &answer["scsi_percentage_used_endurance_indicator"],
        ];
        if let Some(used) = told.into_iter().find_map(number) {
            health.used_percent = u32::try_from(used).unwrap_or(u32::MAX);
        }
    }
    if passed == Some(false) && health.critical.is_empty() {
        health.critical.push("it says that it fails".into());
    }
    Ok(health)
}

fn of_ata(table: &[Value], health: &mut Health) {
    for attribute in table {
        let raw = number(&attribute["raw"]["value"]).unwrap_or(0);
        let id = number(&attribute["id"]);
        let bad = ATA_BAD.iter().find(|(known, _)| id == Some(*known) && raw > 0);
        health.counted.extend(bad.map(|(_, words)| (raw, (*words).to_owned())));
        let is_wear = attribute["name"].as_str().is_some_and(|name| ATA_WEAR.contains(&name));
        // Other scales than the usual one cannot be told from here.
        let left = number(&attribute["value"]).filter(|left| is_wear && *left <= 100);
        if let Some(left) = left {
            health.used_percent = health.used_percent.max(100 - left as u32);
        }
    }
    health.counted.truncate(CRITICAL_MAX);
}

#[cfg(test)]
mod tests;
