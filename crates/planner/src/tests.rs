//! What the models say where the answer is known, and what becomes of inputs that make no sense.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Map, Value};
use stoker_store::{DriveFacts, Measures, PartFacts};

use super::ledger::{ErrorSummary, outcome, prediction, quantile};
use super::slow::{Cause, Recorded, verdict};
use super::*;

fn inputs(kind: &str, texts: &[(&str, &str)]) -> Inputs {
    Inputs::from_texts(spec(kind, Model::Stoker).unwrap(), texts.iter().copied()).unwrap()
}

#[test]
fn inputs_that_make_no_sense_are_refused_by_name() {
    for (kind, name, text, message, hint) in [
        ("io", "gpus", "0", "cannot be zero", "default"),
        ("io", "gpus", "-8", "negative", "default"),
        ("io", "gpus", "1.5", "no whole number", "from 1"),
        ("io", "gpus", "4GiB", "is a size; `gpus` is a whole number", "128"),
        ("io", "sample_size", "-4MiB", "negative", "default"),
        ("io", "sample_size", "50ms", "is a time", "4MiB"),
        ("io", "step_time", "4MiB", "is a size", "50ms"),
        ("io", "step_time", "50000", "out of range", "50000ms"),
        ("io", "cached", "90", "out of range", "90%"),
        ("io", "step_time", "fast", "no number", "50ms"),
        ("io", "batch", "1e999", "no finite number", "whole"),
        ("io", "pattern", "block", "not known", "did you mean `blocks`?"),
        ("io", "gpu", "8", "no such input", "did you mean `gpus`?"),
        ("design", "rail_rate", "10furlongs", "no unit", "Gbit/s"),
    ] {
        let spec = spec(kind, Model::Stoker).unwrap();
        let misfits = Inputs::from_texts(spec, [(name, text)]).unwrap_err();
        let [one] = misfits.as_slice() else { panic!("{misfits:?}") };
        assert_eq!(one.field, name, "{text}");
        assert!(one.message.contains(message), "{name}={text}: {}", one.message);
        assert!(one.hint.contains(hint), "{name}={text}: {}", one.hint);
        let object: Map<String, Value> = [(name.to_owned(), Value::from(text))].into_iter().collect();
        assert_eq!(Inputs::from_json(spec, &object).unwrap_err(), misfits);
    }
    // All of them are told, not the first.
    let two = Inputs::from_texts(&io::SPEC, [("gpus", "0"), ("batch", "0")]).unwrap_err();
    assert_eq!(two.len(), 2);
    assert!(
        spec("kv", Model::Lab).is_err()
            && spec("nothing", Model::Stoker).is_err()
            && Model::parse("labs").is_err()
    );
}

#[test]
fn values_are_read_with_their_units() {
    let given = inputs(
        "io",
        &[
            ("gpus", "4k"),
            ("sample_size", "150KB"),
            ("step_time", "50ms"),
            ("cached", "40%"),
            ("rail_rate", "400Gbit/s"),
            ("pattern", "files"),
        ],
    );
    assert_eq!(given.get("gpus"), 4000.0);
    assert_eq!((given.get("sample_size"), given.get("step_time"), given.get("cached")), (150e3, 0.05, 0.4));
    assert_eq!((given.get("rail_rate"), given.word("pattern")), (50e9, "files"));
    // What is shown as JSON is read as the same.
    let again = Inputs::from_json(given.spec(), &given.to_json()).unwrap();
    assert_eq!(again.to_json(), given.to_json());
    assert_eq!(given.changed().len(), 5);
}

#[test]
fn a_loader_is_as_fast_as_its_slowest_part() {
    let constants = Constants::default();
    let all = inputs("io", &[]);
    for (change, value, part) in [
        ("drives", "1", "drive"),
        ("rail_rate", "1MB/s", "network"),
        ("lake_rate", "1MB/s", "lake"),
        ("decode_time", "1s", "loader"),
    ] {
        let mut texts = vec![("workers", "64"), ("cores", "512"), (change, value)];
        match part {
            "network" => texts.push(("remote", "100%")),
            "lake" => texts.push(("cold", "100%")),
            _ => {}
        }
        let step = io::step(&inputs("io", &texts), &constants);
        assert_eq!(io::PARTS[step.bottleneck()].0, part, "{change}={value}: {step:?}");
    }
    let files = io::step(
        &inputs("io", &[("pattern", "files"), ("sample_size", "16KiB"), ("gpus", "4096"), ("workers", "8")]),
        &constants,
    );
    assert_eq!(io::PARTS[files.bottleneck()].0, "metadata");
    let few =
        io::step(&inputs("io", &[("cores", "1"), ("decode_time", "10ms"), ("workers", "64")]), &constants);
    assert_eq!(io::PARTS[few.bottleneck()].0, "cpu");
    // Without anybody who reads ahead, nothing is hidden.
    let alone = io::step(&inputs("io", &[("workers", "0")]), &constants);
    assert_eq!(alone.wait_s, alone.io_s);
    let plan = io::plan(&all.with_word("pattern", "files").with("sample_size", 16384.0), &constants);
    assert!(plan.changes[0].what.contains("pack"), "{:?}", plan.changes);
}

#[test]
fn measured_constants_count_and_say_so() {
    let mut calibration = Calibration::default();
    calibration.take("drive_read", 1e9, "a test");
    calibration.take("drive_read", -1.0, "nobody");
    calibration.take("nothing", 1.0, "nobody");
    assert_eq!(calibration.values.len(), 1);
    let text = serde_json::to_string(&calibration).unwrap();
    assert_eq!(Calibration::parse(&text).unwrap(), calibration);
    let constants = Constants::with(calibration);
    let all = inputs("io", &[]);
    let (slow, fast) = (io::step(&all, &constants), io::step(&all, &Constants::default()));
    assert!((slow.times[0] / fast.times[0] - 7.0).abs() < 1e-9);
    let plan = io::plan(&all, &constants);
    let shown = plan.constants.iter().find(|one| one.name == "drive_read").unwrap();
    assert_eq!((shown.measured, shown.assumed, shown.from.as_str()), (Some(1e9), 7e9, "a test"));
    for (text, field) in [
        (r#"{"form":2}"#, "form"),
        (r#"{"form":1,"values":{"drive_reed":{"value":1,"from":""}}}"#, "drive_reed"),
        (r#"{"form":1,"values":{"drive_read":{"value":-1,"from":""}}}"#, "drive_read"),
        ("[", "calibration"),
    ] {
        assert_eq!(Calibration::parse(text).unwrap_err()[0].field, field, "{text}");
    }
}

#[test]
fn what_nodes_measured_becomes_constants() {
    let drive = |rate: u64, p99: u64| DriveFacts {
        read: Some(stoker_store::Calibration { small_p99_us: p99, bytes_per_s: rate }),
        ..DriveFacts::default()
    };
    let facts = PartFacts {
        drives: vec![drive(2_000_000_000, 90), drive(3_000_000_000, 110), drive(9_000_000_000, 50)],
        ..PartFacts::default()
    };
    let found = Calibration::of_measures(&[Measures { facts, ..Measures::default() }], 7);
    assert_eq!((found.value("drive_read"), found.value("drive_write"), found.at_ms), (Some(3e9), None, 7));
    assert!((found.value("drive_latency").unwrap() - 90e-6).abs() < 1e-12);
    assert!(found.values["drive_read"].from.contains("gate"));
}

#[test]
fn a_bench_of_the_ring_becomes_constants() {
    let text = r#"{"bench":"ring","workloads":[
        {"name":"read_4m","raw_mb_s":3760.0,"ratio":1.02},
        {"name":"append_4m","raw_mb_s":3970.0,"ratio":0.98,"stoker_p99_us":1300.0,"raw_p99_us":1000.0},
        {"name":"read_4k","raw_mb_s":707.0},
        {"name":"mixed_4m","ratio":0.77}]}"#;
    let found = Calibration::of_bench(text, 7).unwrap();
    let value = |name: &str| found.value(name).unwrap();
    assert_eq!((value("drive_read"), value("read_efficiency")), (3.76e9, 1.02));
    assert_eq!((value("write_efficiency"), value("write_latency_ratio")), (0.98, 1.3));
    assert_eq!((value("drive_iops").round(), found.value("read_latency_ratio")), (172_607.0, None));
    let slo = slo::plan(&inputs("slo", &[]), &Constants::with(found));
    assert_eq!((slo.value("here_read"), slo.value("here_write_share")), (Some(3.76e9), Some(0.98)));
    for text in [
        "[",
        "{}",
        r#"{"workloads":[{"name":"recovery"}]}"#,
        r#"{"workloads":[{"name":"read_4m","ratio":"x"}]}"#,
    ] {
        assert_eq!(Calibration::of_bench(text, 7).unwrap_err()[0].field, "bench", "{text}");
    }
}

#[test]
fn a_read_alone_is_a_line_for_each_place() {
    let constants = Constants::default();
    let at = |size: &str, cached: &str, cold: &str| {
        io::read_alone(
            &inputs("io", &[("sample_size", size), ("cached", cached), ("cold", cold)]),
            &constants,
        )
    };
    assert!((at("2GB", "0", "0") - (100e-6 + 1.0)).abs() < 1e-9);
    assert!((at("3GB", "100%", "100%") - (80e-6 + 1.0)).abs() < 1e-9);
    assert!((at("200MB", "0", "100%") - (40e-3 + 1.0)).abs() < 1e-9);
}

#[test]
fn a_checkpoint_has_no_more_writers_than_shards() {
    let constants = Constants::default();
    let time = |shards: &str| {
        let given = [("nodes", "4"), ("checkpoint_size", "300GB"), ("checkpoint_shards", shards)];
        design::checkpoints(&inputs("design", &given), &constants).time_s
    };
    // One writer brings 1.5 GB/s; many are held by the drives.
    assert!((time("1") - (200.0 + 0.05 + 0.0005)).abs() < 1e-6);
    assert!((time("1k") - time("2k") + 0.5).abs() < 1e-6 && time("1k") < 10.0);
}

/// What a loader that times its reads and opens tells, and a drive that it reads itself.
#[test]
fn timed_runs_are_divided_among_what_was_seen() {
    let base = Recorded {
        elapsed_s: 10.0,
        waited_s: 9.0,
        batches: 1000.0,
        samples: 64_000.0,
        cores: 2.0,
        read_s: 10.0,
        ..Recorded::default()
    };
    let mut sound = Calibration::default();
    sound.take("drive_read", 2e9, "a test");
    sound.take("drive_iops", 50_000.0, "a test");
    sound.take("drive_latency", 1e-4, "a test");
    let sound = Constants::with(sound);
    let small =
        Recorded { reads: 64_000.0, read_bytes: 64_000.0 * 4096.0, bytes_waited_s: 4.0, ..base.clone() };
    let large = Recorded { reads: 200.0, read_bytes: 200.0 * 1e6, bytes_waited_s: 8.0, ..base.clone() };
    for (cause, run) in [
        (Cause::RandomReads, Recorded { reads: 450_000.0, ..small.clone() }),
        (Cause::RandomReads, small.clone()),
        (Cause::ThrottledDrive, large.clone()),
        // A burst of reads is slow on a sound drive, too: nobody waits for it.
        (Cause::DecodeBound, Recorded { bytes_waited_s: 0.5, decode_s: 17.0, workers: 2.0, ..large.clone() }),
        (Cause::OneWorker, Recorded { bytes_waited_s: 0.5, decode_s: 8.0, ..large.clone() }),
        (
            Cause::SmallBatch,
            Recorded { bytes_waited_s: 0.5, batches: 64_000.0, workers: 0.0, ..large.clone() },
        ),
        (Cause::TinyFiles, Recorded { opens: 64_000.0, open_s: 90.0, bytes_waited_s: 8.0, ..small.clone() }),
        (Cause::ColdLake, Recorded { lake_bytes: 150e6, ..large.clone() }),
        (Cause::DriveBound, Recorded { read_bytes: 18e9, reads: 18_000.0, ..large }),
    ] {
        let found = verdict(&run, &sound);
        assert_eq!(found.cause, cause, "{found:?}");
    }
    // Nothing is said of a drive whose sound state nobody knows.
    assert_ne!(verdict(&small, &Constants::default()).cause, Cause::ThrottledDrive);
}

#[test]
fn checkpoints_and_losses_are_those_of_the_textbook() {
    // Young: the square root of 2 x 60 s x 1 day.
    assert!((design::young_daly(60.0, 86_400.0) - 3219.937887599698).abs() < 1e-9);
    // The interval is the cheapest one.
    let at = |every: f64| design::overhead(60.0, every, 86_400.0, 0.0);
    assert!(at(3220.0) < at(3000.0) && at(3220.0) < at(3500.0));
    // 100 drives, 1 % a year, always dirty: one copy is lost in 63 % of years.
    let one = design::loss_per_year(1, 100.0, 0.01, 1.0, 1e-5);
    assert!((one - (1.0 - (-1f64).exp())).abs() < 1e-12);
    let two = design::loss_per_year(2, 100.0, 0.01, 1.0, 1e-5);
    assert!((two - 99.0 * 0.01 * 1e-5).abs() < 1e-9);
    assert!(design::loss_per_year(3, 100.0, 0.01, 1.0, 1e-5) < two * 1e-4);
    let constants = Constants::default();
    let plan = design::plan(&inputs("design", &[("lake_rate", "1MB/s")]), &constants);
    assert!(
        plan.tone == Tone::Bad && plan.reasons.iter().any(|why| why.contains("lake takes")),
        "{:?}",
        plan.reasons
    );
    let files = design::plan(&inputs("design", &[("dataset", "files")]), &constants);
    assert!(files.value("metadata_use").unwrap() > 1.0);
    let sound = design::plan(&inputs("design", &[]), &constants);
    assert!(sound.value("loss_three").unwrap() < sound.value("loss_two").unwrap());
}

#[test]
fn data_stays_where_moving_it_never_pays() {
    let constants = Constants::default();
    let there =
        gravity::plan(&inputs("gravity", &[("gpu_hour_there", "3"), ("gpu_hour_here", "3")]), &constants);
    assert_eq!(there.value("break_even"), Some(f64::INFINITY));
    assert!(there.title.starts_with("Run where"), "{}", there.title);
    let here = gravity::plan(&inputs("gravity", &[("runs", "100"), ("gpu_hour_there", "4")]), &constants);
    // 9,000 dollars of egress, 512 x 24 x 1 saved in each run.
    assert_eq!((here.value("egress_first"), here.value("break_even")), (Some(9000.0), Some(1.0)));
    assert!(here.title.starts_with("Bring"), "{}", here.title);
}

#[test]
fn hits_grow_with_room() {
    assert!((kv::hit_rate(50.0, 100.0, 0.0) - 0.5).abs() < 1e-9);
    assert_eq!(kv::hit_rate(100.0, 100.0, 1.2), 1.0);
    // Against the sum itself.
    let sum = |count: u32| (1..=count).map(|rank| f64::from(rank).powf(-0.9)).sum::<f64>();
    let (found, wanted) = (kv::hit_rate(5000.0, 20_000.0, 0.9), sum(5000) / sum(20_000));
    assert!((found - wanted).abs() < 1e-4, "{found} {wanted}");
    let plan = kv::plan(&inputs("kv", &[]), &Constants::default());
    assert_eq!(plan.value("prefix_size"), Some(2.0 * 80.0 * 8.0 * 128.0 * 2.0 * 8192.0));
    let parts: f64 =
        ["hit_device", "hit_memory", "hit_flash"].iter().map(|name| plan.value(name).unwrap()).sum();
    assert!((parts - plan.value("hit").unwrap()).abs() < 1e-12);
    assert!(plan.value("mean").unwrap() <= plan.value("mean_without_flash").unwrap());
}

#[test]
fn targets_are_told_with_what_is_assumed() {
    let plan = slo::plan(&inputs("slo", &[]), &Constants::default());
    assert_eq!(plan.reasons.iter().filter(|why| why.contains("reached")).count(), 5);
    assert!(plan.assumptions[0].contains("not measured"));
    let slow = slo::plan(&inputs("slo", &[("hardware", "own"), ("drive_p99", "5ms")]), &Constants::default());
    assert!(slow.title.contains("1 MiB read P99"), "{}", slow.title);
}

#[test]
fn changes_are_compared() {
    let constants = Constants::default();
    for (change, _) in what_if::CHANGES {
        let touched = ["io", "design"]
            .into_iter()
            .filter_map(|kind| what_if::compare(&inputs(kind, &[]), &constants, change).unwrap());
        assert!(touched.count() > 0, "{change} changes nothing");
    }
    let (_, moved) = what_if::compare(&inputs("design", &[]), &constants, "class-one").unwrap().unwrap();
    assert!(moved.iter().any(|one| one.name == "loss" && one.after > one.before));
    assert!(what_if::changed(&inputs("io", &[]), "double-gpu").unwrap_err().hint.contains("double-gpus"));
}

#[test]
fn predictions_are_compared_with_what_happened() {
    let all = inputs("io", &[("gpus", "8")]);
    let plan = plan(&all, &Constants::default());
    let (id, line) = prediction(&plan, &all, 1_794_960_000_000, "job-1").unwrap();
    let utilization = plan.value("utilization").unwrap();
    let seen = |value: f64| {
        outcome(&id, 1_794_960_100_000, "a test", BTreeMap::from([("utilization".to_owned(), value)]))
            .unwrap()
    };
    let text = format!("{line}\n{}\n{line}\nnonsense\n{{\"form\":9}}\n", seen(utilization / 1.25));
    let ledger = Ledger::parse(&text);
    assert_eq!((ledger.entries.len(), ledger.skipped.len()), (1, 2), "{:?}", ledger.skipped);
    let [ErrorSummary { of, count: 1, median, bias, .. }] = &ledger.errors()[..] else { panic!() };
    assert!(of == "io utilization" && (median - 0.25).abs() < 1e-4 && *bias > 0.0, "{of} {median}");
    assert_eq!(ledger.errors_over_time()[0].of, "2026-11");
    assert_eq!(ledger.find(&id[..4]).map(|entry| entry.prediction.job.as_str()), Some("job-1"));
    assert!(ledger.find("").is_none() && line.len() <= ledger::LINE_LEN_MAX);
    assert_eq!((quantile(&[3.0, 1.0, 2.0], 0.5), quantile(&[0.0, 10.0], 0.9)), (2.0, 9.0));
}

/// Ten planted causes, and what a run would have measured with each.
#[test]
fn planted_causes_are_found() {
    let base = Recorded {
        elapsed_s: 100.0,
        waited_s: 60.0,
        workers: 8.0,
        batches: 1000.0,
        samples: 64_000.0,
        bytes: 64_000.0 * 150e3,
        reads: 2400.0,
        read_bytes: 64_000.0 * 150e3,
        drives: 4.0,
        drive_rate: 3e9,
        drive_latency_s: 1e-4,
        drive_reads: 2400.0,
        drive_read_s: 2400.0 * 1.6e-3,
        drive_bytes: 64_000.0 * 150e3,
        network_rate: 25e9,
        metadata_capacity: 50_000.0,
        ..Recorded::default()
    };
    let fine = Recorded { waited_s: 3.0, ..base.clone() };
    let cases = [
        (Cause::TinyFiles, Recorded { opens: 64_000.0, open_s: 520.0, reads: 64_000.0, ..base.clone() }),
        (Cause::OneWorker, Recorded { workers: 1.0, ..base.clone() }),
        (
            Cause::RandomReads,
            Recorded {
                samples: 4e6,
                bytes: 4e6 * 4096.0,
                reads: 4e6,
                read_bytes: 4e6 * 4096.0,
                drive_reads: 4e6,
                drive_read_s: 4e6 * 1.1e-4,
                drive_bytes: 4e6 * 4096.0,
                ..base.clone()
            },
        ),
        (Cause::ColdLake, Recorded { lake_bytes: 64_000.0 * 140e3, ..base.clone() }),
        (Cause::ThrottledDrive, Recorded { drive_read_s: 2400.0 * 20e-3, ..base.clone() }),
        (
            Cause::MetadataStorm,
            Recorded { opens: 64_000.0, open_s: 600.0, metadata_per_s: 48_000.0, ..base.clone() },
        ),
        (
            Cause::SmallBatch,
            Recorded { batches: 250_000.0, samples: 250_000.0, bytes: 250_000.0 * 4096.0, ..base.clone() },
        ),
        (Cause::DecodeBound, Recorded { decode_s: 700.0, ..base.clone() }),
        (Cause::NetworkBound, Recorded { network_bytes: 2.4e12, ..base.clone() }),
        (Cause::NothingWrong, fine),
        (
            Cause::DriveBound,
            Recorded { drive_bytes: 1.15e12, drive_reads: 280_000.0, drive_read_s: 300.0, ..base.clone() },
        ),
        (Cause::Unexplained, base),
    ];
    for (cause, run) in cases {
        let found = verdict(&run, &Constants::default());
        assert_eq!(found.cause, cause, "{found:?}");
        assert!(found.predicted >= found.utilization && found.predicted <= 1.0, "{found:?}");
        let text = serde_json::to_string(&run).unwrap();
        let again = Recorded::parse(&text.replace("\"form\":0", "\"form\":1")).unwrap();
        assert_eq!(verdict(&again, &Constants::default()).cause, cause);
    }
    let tiny = Recorded {
        opens: 64_000.0,
        open_s: 640.0,
        samples: 64_000.0,
        elapsed_s: 100.0,
        waited_s: 62.0,
        workers: 8.0,
        ..Recorded::default()
    };
    let title = verdict(&tiny, &Constants::default()).title;
    assert_eq!(
        title,
        "62 % of the time waited for data; 80 % of that was opens: pack the dataset (`stoker pack`): predicted 87.6 % utilization"
    );
}

#[test]
fn runs_that_make_no_sense_are_refused_by_name() {
    for (text, field) in [
        ("[]", "run"),
        ("{", "run"),
        (r#"{"elapsed_s":-1,"samples":1}"#, "elapsed_s"),
        (r#"{"elapsed":1}"#, "elapsed"),
        (r#"{"elapsed_s":1,"samples":1,"waited_s":9}"#, "waited_s"),
        (r#"{"samples":0}"#, "elapsed_s"),
        (r#"{"form":7,"elapsed_s":1,"samples":1}"#, "form"),
    ] {
        assert_eq!(Recorded::parse(text).unwrap_err()[0].field, field, "{text}");
    }
}

#[test]
fn a_report_needs_nothing_else() {
    for kind in KINDS {
        let page = report::html(&plan(&inputs(kind, &[]), &Constants::default()), "<now>", "a \"test\"");
        assert!(page.contains("&lt;now&gt;") && page.ends_with("</html>\n"), "{kind}");
        assert!(!page.contains("http") && !page.contains("<script") && !page.contains("NaN"), "{kind}");
    }
}

proptest! {
    /// Whatever fits the ranges gives numbers, and whatever text comes gives an answer.
    #[test]
    fn every_plan_is_made_of_numbers(parts in proptest::collection::vec(0.0f64..=1.0, 32), kind in 0usize..6) {
        let spec = spec(KINDS[kind], Model::Stoker).unwrap();
        let mut inputs = Inputs::defaults(spec);
        for (field, part) in spec.fields.iter().zip(&parts) {
            // Over the powers, where there are some.
            let value = if field.min > 0.0 { field.min * (field.max / field.min).powf(*part) } else { field.max * part };
            let is_whole = matches!(field.kind, Kind::Count | Kind::Choice(_));
            inputs = inputs.with(field.name, if is_whole { value.round() } else { value });
        }
        let plan = plan(&inputs, &Constants::default());
        for figure in &plan.figures {
            prop_assert!(!figure.value.is_nan(), "{} of {:?}", figure.name, inputs.to_json());
        }
        prop_assert!(!plan.title.is_empty());
    }

    #[test]
    fn no_text_panics(name in "\\PC{0,20}", text in "\\PC{0,40}") {
        for kind in KINDS {
            let spec = spec(kind, Model::Stoker).unwrap();
            let _ = Inputs::from_texts(spec, [(name.as_str(), text.as_str())]);
            for field in spec.fields {
                let _ = Inputs::from_texts(spec, [(field.name, text.as_str())]);
            }
        }
        let _ = (Ledger::parse(&text), Calibration::parse(&text), Recorded::parse(&text));
    }
}
