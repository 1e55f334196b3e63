//! Clocks: what the kernel reads the time from, whether it is kept right, how far others are away.

use crate::finding::{Fault, Notes, Verdict};
use crate::machine::{Gap, Machine, if_there};
use crate::plan::Plan;

const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
const AVAILABLE: &str = "/sys/devices/system/clocksource/clocksource0/available_clocksource";

/// Further apart, times of files and logs contradict each other.
const OFFSET_WARN_MS: u64 = 1_000;
/// Further apart, certificates and signatures of S3 are soon refused: they allow 15 minutes.
const OFFSET_ERROR_MS: u64 = 300_000;

/// Makes the checks.
pub fn check(machine: &Machine, plan: &Plan, notes: &mut Notes) {
    notes.judge("clock.source", "", source(machine));
    notes.judge("clock.synchronised", "", synchronised(plan));
    for (name, offset_ms) in &plan.offsets_ms {
        notes.judge("clock.offset", name.clone(), Ok(offset(name, *offset_ms)));
    }
}

fn source(machine: &Machine) -> Verdict {
    let source = machine.word(SOURCE)?;
    if !source.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte)) {
        return Err(Gap::senseless(SOURCE, &source));
    }
    let available = if_there(machine.word(AVAILABLE))?.unwrap_or_default();
    let slow = matches!(source.as_str(), "hpet" | "acpi_pm" | "pit" | "jiffies" | "refined-jiffies");
    let fix = match available.split_whitespace().find(|name| matches!(*name, "tsc" | "kvm-clock")) {
        Some(fast) => format!("echo {fast} > {SOURCE}"),
        None => "dmesg | grep -i tsc; update the BIOS, boot with tsc=reliable if the machine's maker says so"
            .to_owned(),
    };
    Ok(slow.then(|| {
        Fault::warning(
            format!("the kernel reads the time from `{source}`"),
            "each look at the clock is a slow access to a chip; every request takes several",
        )
        .fix(fix)
        .saw(SOURCE, &source)
        .saw(AVAILABLE, &available)
    }))
}

fn synchronised(plan: &Plan) -> Verdict {
    let clock = plan.clock.as_ref().map_err(|why| Gap::Untold(why.clone()))?;
    Ok((!clock.is_synchronised).then(|| {
        Fault::warning(
            "nothing keeps the clock right",
            "it drifts by seconds a week: certificates and signatures are refused one day, logs of several nodes cannot be compared",
        )
        .fix("apt-get install chrony || dnf install chrony; systemctl enable --now chronyd")
        .saw("adjtimex", "not synchronised")
    }))
}

fn offset(name: &str, offset_ms: i64) -> Option<Fault> {
    let away = offset_ms.unsigned_abs();
    let direction = if offset_ms < 0 { "behind" } else { "ahead of" };
    let what = format!("the clock of {name} is {}.{:03} s {direction} ours", away / 1_000, away % 1_000);
    let why = "deadlines of sets and ages are by the clock of the catalog, certificates and signatures by that of each node";
    let fault = match away {
        _ if away > OFFSET_ERROR_MS => Fault::error(what, why),
        _ if away > OFFSET_WARN_MS => Fault::warning(what, why),
        _ => return None,
    };
    Some(fault.fix("chronyc tracking on both machines; chronyc makestep on the one that is wrong"))
}
