//! Programs that print what real ones do, on machines made of small files.

use std::os::unix::fs::symlink;

use serde_json::json;

use super::super::program::tests::script;
use super::*;

/// A machine, and programs that print files.
struct Bench(tempfile::TempDir);

impl Bench {
    fn new() -> Bench {
        let bench = Bench(tempfile::tempdir().unwrap());
        bench.write("root/proc/self/mountinfo", "1 0 259:1 / /data rw - xfs /dev/nvme0n1p1 rw\n2 0 9:0 / /md rw - ext4 /dev/md0 rw\n3 0 0:5 / /ram rw - tmpfs tmpfs rw\n4 0 8:0 / /ata rw - ext4 /dev/sda rw\n");
        let nvme = |n: u32| format!("root/sys/devices/pci0000:00/0000:0{n}:00.0/nvme/nvme{n}/nvme{n}n1");
        for n in 0..3 {
            bench.write(&format!("{}/size", nvme(n)), "1");
            bench.write(&format!("{}/device/model", nvme(n)), &format!("FAST {n}   \n"));
        }
        bench.write(&format!("{}/nvme0n1p1/partition", nvme(0)), "1");
        bench.write("root/sys/devices/virtual/block/md0/size", "1");
        bench.write("root/sys/devices/pci0000:00/ata1/sda/size", "1");
        let root = bench.0.path().join("root");
        for dir in ["sys/class/block", "sys/dev/block", "sys/devices/virtual/block/md0/slaves", "dev"] {
            std::fs::create_dir_all(root.join(dir)).unwrap();
        }
        for (at, to) in [
            ("sys/class/block/nvme0n1", nvme(0)),
            ("sys/dev/block/259:1", nvme(0) + "/nvme0n1p1"),
            ("sys/dev/block/9:0", "root/sys/devices/virtual/block/md0".into()),
            ("sys/dev/block/8:0", "root/sys/devices/pci0000:00/ata1/sda".into()),
            ("sys/devices/virtual/block/md0/slaves/nvme1n1", nvme(1)),
            ("sys/devices/virtual/block/md0/slaves/nvme2n1", nvme(2)),
        ] {
            symlink(to.strip_prefix("root").unwrap(), root.join(at)).unwrap();
        }
        bench.write("root/dev/nvme0n1", "");
        bench
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// A program that writes down how it was called and prints a file: that of the device, or `answer`.
    fn program(&self, name: &str, answer: &str, then: &str) {
        self.write(&format!("{name}.json"), answer);
        let text = format!(
            "echo {name} \"$@\" >> {0}/log\nfor device; do :; done\nif [ -e {0}/${{device##*/}}.json ]; then cat {0}/${{device##*/}}.json; else cat {0}/{name}.json; fi\n{then}",
            self.0.path().display()
        );
        script(self.0.path(), name, &text);
    }

    fn reader(&self) -> SmartReader {
        let at = |name: &str| self.0.path().join(name);
        SmartReader::new(&at("root"), &at("nvme"), &at("smartctl"))
    }

    fn calls(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.0.path().join("log")).unwrap_or_default();
        let mut calls: Vec<String> = text.lines().map(str::to_owned).collect();
        calls.sort();
        calls
    }
}

fn health(critical: &[&str], used_percent: u32, model: &str) -> Health {
    // What begins with a number is counted.
    let counted = |words: &&str| {
        let (count, what) = words.split_once(' ').unwrap_or_default();
        Some((count.parse().ok()?, what.to_owned()))
    };
    let is_word = |words: &&&str| counted(words).is_none();
    Health {
        critical: critical.iter().filter(is_word).map(|words| (*words).to_owned()).collect(),
        counted: critical.iter().filter_map(counted).collect(),
        used_percent,
        model: model.into(),
    }
}

/// `nvme smart-log -o json` of nvme-cli 2.
fn numeric(warning: u32, used: u32, errors: &str) -> String {
    format!(
        r#"{{"critical_warning":{warning},"temperature":311,"avail_spare":100,"spare_thresh":10,"percent_used":{used},"endurance_grp_critical_warning_summary":0,"data_units_read":1234567,"data_units_written":7654321,"host_read_commands":99,"host_write_commands":98,"controller_busy_time":3,"power_cycles":12,"power_on_hours":8760,"unsafe_shutdowns":2,"media_errors":{errors},"num_err_log_entries":0,"warning_temp_time":0,"critical_comp_time":0,"temperature_sensor_1":311}}"#
    )
}

/// The same when it is told to be verbose.
fn nested(key: &str, warning: u32) -> String {
    format!(
        r#"{{"critical_warning":{{"{key}":{warning},"available_spare":1,"temp_threshold":0,"reliability_degraded":1,"ro":0,"vmbu_failed":0,"pmr_ro":0}},"temperature":311,"avail_spare":3,"spare_thresh":10,"percent_used":104,"media_errors":0}}"#
    )
}

#[tokio::test]
async fn nvme_in_both_of_its_forms() {
    for (answer, expect) in [
        (numeric(0, 3, "0"), health(&[], 3, "FAST 0")),
        (
            numeric(0, 3, "\"340282366920938463463\""),
            health(&["18446744073709551615 media errors"], 3, "FAST 0"),
        ),
        (numeric(0, 3, "340282366920938463463"), health(&["18446744073709551615 media errors"], 3, "FAST 0")),
        (numeric(2, 0, "7"), health(&[NVME_BITS[1], "7 media errors"], 0, "FAST 0")),
        (numeric(9, 255, "2.0"), health(&[NVME_BITS[0], NVME_BITS[3], "2 media errors"], 255, "FAST 0")),
        (numeric(0x70, 1, "0"), health(&[NVME_BITS[4], NVME_BITS[5], "critical warning 0x70"], 1, "FAST 0")),
        (nested("value", 5), health(&[NVME_BITS[0], NVME_BITS[2]], 104, "FAST 0")),
        (nested("Value", 0), health(&[], 104, "FAST 0")),
    ] {
        let bench = Bench::new();
        bench.program("nvme", &answer, "");
        let reader = bench.reader();
        for drive in ["/data/ring", "/dev/nvme0n1"] {
            assert_eq!(reader.look(Path::new(drive)).await, Ok(expect.clone()), "{answer}");
        }
        assert_eq!(bench.calls(), ["nvme smart-log -o json /dev/nvme0n1"; 2]);
    }
}

/// What `smartctl -j` puts around everything.
fn smartctl(exit_status: u32, rest: Value) -> String {
    let mut all = json!({
        "json_format_version": [1, 0],
        "smartctl": {"version": [7, 4], "platform_info": "x86_64-linux", "argv": ["smartctl"], "exit_status": exit_status},
        "local_time": {"time_t": 1_767_225_600, "asctime": "Thu Jan  1 00:00:00 2026 UTC"},
    });
    all.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    all.to_string()
}

fn attribute(id: u32, name: &str, value: u32, raw: u64) -> Value {
    json!({"id": id, "name": name, "value": value, "worst": value, "thresh": 10, "when_failed": "",
           "flags": {"value": 51, "prefailure": true}, "raw": {"value": raw, "string": raw.to_string()}})
}

#[tokio::test]
async fn smartctl_of_every_kind_of_drive() {
    let sound = json!({"passed": true});
    let ata = |attributes: Vec<Value>, rest: Value| {
        let mut all =
            json!({"model_name": "SLOW 9", "ata_smart_attributes": {"revision": 1, "table": attributes}});
        all.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        all
    };
    let log = |warning: u32| json!({"critical_warning": warning, "percentage_used": 7, "available_spare": 100, "media_errors": 0});
    for (drive, answer, expect) in [
        (
            "/data",
            smartctl(0, json!({"smart_status": sound, "nvme_smart_health_information_log": log(0)})),
            health(&[], 7, "FAST 0"),
        ),
        (
            "/data",
            smartctl(
                8,
                json!({"smart_status": {"passed": false}, "nvme_smart_health_information_log": log(8)}),
            ),
            health(&[NVME_BITS[3]], 7, "FAST 0"),
        ),
        (
            "/ata",
            smartctl(
                0,
                ata(
                    vec![
                        attribute(5, "Reallocated_Sector_Ct", 100, 0),
                        attribute(177, "Wear_Leveling_Count", 88, 120),
                    ],
                    json!({"smart_status": sound}),
                ),
            ),
            health(&[], 12, "SLOW 9"),
        ),
        (
            "/ata",
            smartctl(
                0xd8,
                ata(
                    vec![
                        attribute(5, "Reallocated_Sector_Ct", 1, 800),
                        attribute(197, "Current_Pending_Sector", 100, 3),
                        attribute(198, "Offline_Uncorrectable", 100, 1),
                        attribute(9, "Power_On_Hours", 50, 9),
                    ],
                    json!({"smart_status": {"passed": false}, "endurance_used": {"current_percent": 61}}),
                ),
            ),
            health(
                &[
                    "it says that it fails",
                    "800 reallocated sectors",
                    "3 pending sectors",
                    "1 uncorrectable sectors",
                ],
                61,
                "SLOW 9",
            ),
        ),
        (
            "/ata",
            smartctl(8, json!({"smart_status": {"passed": false}})),
            health(&["it says that it fails"], 0, ""),
        ),
        (
            "/ata",
            smartctl(
                0,
                json!({"smart_status": sound, "scsi_percentage_used_endurance_indicator": 95, "scsi_model_name": "SAS 1"}),
            ),
            health(&[], 95, "SAS 1"),
        ),
    ] {
        let bench = Bench::new();
        // Faults of a drive are in the exit status, and no fault of the program.
        bench.program("smartctl", &answer, "exit 8");
        assert_eq!(bench.reader().look(Path::new(drive)).await, Ok(expect), "{answer}");
        let device = if drive == "/ata" { "sda" } else { "nvme0n1" };
        assert_eq!(bench.calls(), [format!("smartctl -j -H -A /dev/{device}")]);
    }
}

#[tokio::test]
async fn what_says_nothing_is_no_answer() {
    let refused = smartctl(2, json!({"smart_status": {"passed": true}}))
        .replace("\"exit_status\"", r#""messages":[{"string":"Smartctl open device: /dev/nvme0n1 failed: Permission denied","severity":"error"}],"exit_status""#);
    for (program, answer, then, expect) in [
        (
            "nvme",
            "",
            "echo 'smart log: Permission denied' >&2; exit 1",
            "exit status: 1: smart log: Permission denied",
        ),
        ("nvme", r#"{"error":"/dev/nvme0n1: Operation not permitted"}"#, "exit 1", "Operation not permitted"),
        ("nvme", r#"{"error":"x"}"#, "", "makes no sense"),
        ("nvme", r#"{"critical_warning":256,"percent_used":1}"#, "", "makes no sense"),
        ("nvme", r#"{"critical_warning":-1,"percent_used":1}"#, "", "makes no sense"),
        ("nvme", r#"{"critical_warning":0}"#, "", "makes no sense"),
        ("nvme", r#"{"critical_warning":{"available_spare":0},"percent_used":1}"#, "", "makes no sense"),
        ("nvme", "[1,2]", "", "makes no sense"),
        ("nvme", "\u{1b}[2Jnot json", "", "makes no sense: exit status: 0: [2Jnot json"),
        ("nvme", "{", "head -c 3000000 /dev/zero", "too long"),
        ("smartctl", &refused, "exit 2", "failed: Permission denied"),
        ("smartctl", &smartctl(0, json!({})), "", "says nothing of the drive"),
        ("smartctl", "{}", "", "says nothing of the drive"),
        ("smartctl", &"[".repeat(100_000), "", "makes no sense"),
        (
            "smartctl",
            &smartctl(0, json!({"nvme_smart_health_information_log": {"critical_warning": "x"}})),
            "",
            "makes no sense",
        ),
    ] {
        let bench = Bench::new();
        bench.program(program, answer, then);
        let why = bench.reader().look(Path::new("/data")).await.unwrap_err();
        assert!(why.contains(expect), "{why}");
    }
    let reader = Bench::new();
    let why = reader.reader().look(Path::new("/data")).await.unwrap_err();
    assert!(why.contains("neither nvme"), "{why}");
    assert!(
        reader.reader().look(Path::new("/ata")).await.unwrap_err().ends_with("smartctl is not installed")
    );
    assert!(reader.reader().look(Path::new("/ram")).await.unwrap_err().contains("no disk"));
    assert!(reader.reader().look(Path::new("/dev/none")).await.is_err());
}

#[tokio::test]
async fn several_disks_are_one_drive() {
    let bench = Bench::new();
    bench.program("nvme", "", "");
    bench.write("nvme1n1.json", &numeric(0, 3, "0"));
    bench.write("nvme2n1.json", &numeric(4, 30, "0"));
    let reader = bench.reader();
    let mut found = reader.look(Path::new("/md")).await.unwrap();
    assert_eq!(found.critical, [format!("nvme2n1: {}", NVME_BITS[2])]);
    assert_eq!(found.used_percent, 30);
    found.model.retain(char::is_numeric);
    assert!(["12", "21"].contains(&found.model.as_str()));
    assert_eq!(bench.calls(), ["nvme smart-log -o json /dev/nvme1n1", "nvme smart-log -o json /dev/nvme2n1"]);
    // One that says nothing does not hide that the other is broken, but that it is sound.
    bench.write("nvme1n1.json", "");
    assert_eq!(reader.look(Path::new("/md")).await.unwrap().critical.len(), 1);
    bench.write("nvme2n1.json", &numeric(0, 30, "0"));
    assert!(reader.look(Path::new("/md")).await.is_err());
}

#[tokio::test]
async fn a_reason_is_told_once() {
    let bench = Bench::new();
    let (reader, drive) = (bench.reader(), Path::new("/data"));
    assert_eq!(reader.read(drive).await, None);
    let why = reader.look(drive).await.unwrap_err();
    assert!(!reader.is_news(drive, Some(&why)));
    assert!(reader.is_news(drive, Some(&"another".to_owned())));
    bench.program("nvme", &numeric(0, 1, "0"), "");
    assert_eq!(reader.read(drive).await, Some(health(&[], 1, "FAST 0")));
    // After it could be read, the same trouble is news again.
    assert!(reader.is_news(drive, Some(&why)));
}
