//! Defaults stay; mistakes are found where they are.

use super::*;

/// Writes text that is refused, and the words for it.
fn check(text: &str, expect: &str) {
    let told = Slo::parse(text).expect_err(text);
    let hint = told.hint.as_ref().map(|hint| format!("\n{hint}")).unwrap_or_default();
    assert_eq!(format!("{told}{hint}"), expect, "{text}");
}

#[test]
fn nothing_said_is_the_defaults() {
    assert_eq!(Slo::parse("").unwrap(), Slo::default());
    assert_eq!(Slo::parse("[slo]\n[peers]\ncell = \"a\"").unwrap(), Slo::default());
    assert!(Slo::default().check().is_ok());
    let slo = Slo::default();
    assert_eq!(slo.objective(Indicator::DriveErrors).unwrap().target, 0.999);
    assert_eq!(slo.objective(Indicator::DrainLag).unwrap().threshold, Threshold::Set(600_000_000));
    assert_eq!(slo.objective(Indicator::Smart), None);
}

#[test]
fn what_is_said_counts() {
    let slo = Slo::parse(
        "[slo]\nperiod_s = 5\n[slo.objectives]\ncommit_p99 = { threshold = \"0.8ms\", target = 0.999 }\nread_p99.enabled = false\n[[slo.target]]\nname = \"ops\"\nformat = \"alertmanager\"\nurl = \"http://am:9093\"",
    )
    .unwrap();
    assert_eq!(slo.period_ms(), 5_000);
    let commit = slo.objective(Indicator::CommitP99).unwrap();
    assert_eq!((commit.threshold, commit.target, commit.samples_min), (Threshold::Set(800), 0.999, 100));
    assert_eq!(slo.objective(Indicator::ReadP99), None);
    assert_eq!(slo.target[0].format, Format::Alertmanager);
}

#[test]
fn times() {
    for (text, expect) in [
        ("800us", Some(800)),
        ("1.5ms", Some(1_500)),
        ("300s", Some(300_000_000)),
        ("10 min", Some(600_000_000)),
        ("1h", Some(3_600_000_000)),
        ("5", None),
        ("", None),
        ("ms", None),
        ("0s", None),
        ("1.2.3s", None),
        ("9999999999999999999h", None),
        ("-1s", None),
        ("1 day", None),
    ] {
        assert_eq!(time_us(text), expect, "{text}");
    }
}

#[test]
fn mistakes_are_found_where_they_are() {
    check(
        "[slo]\nmitigate_period = 3",
        "2:1: unknown setting `mitigate_period`; did you mean `mitigate_periods`?\nknown here: enabled, act, period_s, baseline_factor, mitigate_periods, quarantine_periods, recover_periods, stale_s, settle_s, gate_timeout_s, endurance_percent_max, flaps_max, flap_window_s, quarantine, anomaly, objectives, target, hook",
    );
    check(
        "# x\n[slo.objectives]\n  drive_raed_p99 = {}",
        "3:3: unknown setting `drive_raed_p99`; did you mean `drive_read_p99`?\nknown here: drive_read_p99, drive_write_p99, drive_errors, read_p99, commit_p99, copy_errors, drain_lag",
    );
    check(
        "[slo.objectives]\ndrive_errors = { threshold = \"1ms\" }",
        "2:18: unknown setting `threshold`\nknown here: enabled, target, samples_min",
    );
    check(
        "[[slo.target]]\nname = \"a\"\nformat = \"pagerdudy\"\nurl = \"https://x\"",
        "3:10: unknown value `pagerdudy`; did you mean `pagerduty`?\nknown here: alertmanager, pagerduty, servicenow, webhook",
    );
    check(
        "[slo.objectives]\nread_p99 = { threshold = \"soon\" }",
        "2:26: invalid value: string \"soon\", expected \"auto\" or a time, such as \"800us\", \"1.5ms\" or \"300s\"",
    );
    check("[slo]\nperiod_s = 0", "2:12: invalid value: integer `0`, expected a nonzero u64");
    check(
        "[slo]\nquarantine_periods = 3",
        "2:22: quarantine comes after mitigation: more than `mitigate_periods`",
    );
    check("[slo]\nstale_s = 19", "2:11: at least two periods, or nothing is ever bad in a row");
    check(
        "[slo]\nbaseline_factor = 0.5",
        "2:19: the factor is at least 1, or what the gate measured is a breach",
    );
    check(
        "[slo]\nbaseline_factor = nan",
        "2:19: the factor is at least 1, or what the gate measured is a breach",
    );
    check(
        "[slo.quarantine]\nrack_percent_max = 60",
        "2:20: at most 50: half of a rack cannot be out by our decision",
    );
    check("[slo.objectives]\nread_p99 = { target = 1.0 }", "2:23: a share from 0.5 to below 1, such as 0.99");
    check("[slo.anomaly]\ndeviations = 0.0", "2:14: at least 1 deviation");
    let target = |rest: &str| format!("[[slo.target]]\nname = \"a\"\nformat = \"webhook\"\n{rest}");
    check(&target("url = \"ftp://x\""), "4:7: an address such as https://alerts.example.com");
    check(&target("url = \"https://\""), "4:7: an address such as https://alerts.example.com");
    let two = format!("{}\n{}", target("url = \"http://x\""), target("url = \"http://x\""));
    check(&two, "6:8: there is a target `a` already");
    check(
        "[[slo.target]]\nname = \"a\"\nformat = \"pagerduty\"\nurl = \"https://x\"",
        "2:8: PagerDuty needs a `token_file` with the routing key",
    );
    check("[slo", "1:5: unclosed table, expected `]`");
}

#[test]
fn a_hook_is_checked_where_it_is() {
    let hook = |rest: &str| format!("[slo.hook]\n{rest}");
    let slo = Slo::parse(&hook("kind = \"slurm\"\nnames = { \"gpu 7\" = \"gpu-07\" }")).unwrap();
    let read = slo.hook.unwrap();
    assert_eq!((*read.kind.get_ref(), read.timeout_s.get_ref().get()), (HookKind::Slurm, 30));
    assert_eq!(read.names["gpu 7"].get_ref(), "gpu-07");
    for (rest, expect) in [
        ("program = \"x\"", "1:1: missing field `kind`"),
        (
            "kind = \"slrum\"",
            "2:8: unknown value `slrum`; did you mean `slurm`?\nknown here: slurm, kubernetes, command",
        ),
        (
            "kind = \"slurm\"\ntimeout = 3",
            "3:1: unknown setting `timeout`; did you mean `timeout_s`?\nknown here: kind, program, timeout_s, names, cordon, uncordon",
        ),
        ("kind = \"slurm\"\ntimeout_s = 601", "3:13: at most 600 seconds: other decisions wait for it"),
        ("kind = \"slurm\"\nprogram = \"\"", "3:11: the name or path of a program"),
        (
            "kind = \"slurm\"\ncordon = [\"x\", \"{node}\"]",
            "3:10: only a hook of the kind `command` has commands of its own",
        ),
        (
            "kind = \"kubernetes\"\n[slo.hook.names]\na = \"--all\"",
            "4:5: a name of a host does not begin with `-`: programs would take it for an option",
        ),
        (
            "kind = \"kubernetes\"\n[slo.hook.names]\na = \"b c\"",
            "4:5: a name of a host has letters, digits, `.`, `_` and `-`, and is not too long",
        ),
        ("kind = \"command\"", "2:8: a hook of the kind `command` needs `cordon`"),
        (
            "kind = \"command\"\ncordon = [\"x\", \"{node}\"]",
            "2:8: a hook of the kind `command` needs `uncordon`",
        ),
        (
            "kind = \"command\"\ncordon = [\"x\"]\nuncordon = [\"x\", \"{node}\"]",
            "3:10: it does not say which node: use `{node}`",
        ),
        (
            "kind = \"command\"\ncordon = [\"{node}\"]\nuncordon = [\"x\", \"{node}\"]",
            "3:10: the first word is a program",
        ),
        (
            "kind = \"command\"\nprogram = \"x\"",
            "3:11: the program is the first word of `cordon` and `uncordon`",
        ),
    ] {
        check(&hook(rest), expect);
    }
}

#[test]
fn names_of_hosts() {
    for good in ["gpu-07", "gpu07.rack_3.example.com", "7"] {
        assert_eq!(check_host(good), Ok(()), "{good}");
    }
    let long = "a".repeat(HOST_LEN_MAX + 1);
    for bad in
        ["", "-a", "--all", "a b", "a/b", "a,b", "a[1-9]", "a=b", "{node}", "m\u{fc}nchen", "a\n", &long]
    {
        assert!(check_host(bad).is_err(), "{bad}");
    }
}
