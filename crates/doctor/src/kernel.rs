//! The kernel, and whether it lets us use io_uring.

use crate::finding::{Fault, Notes, Verdict};
use crate::machine::{Gap, Machine, if_there};
use crate::plan::Plan;

const DISABLED: &str = "/proc/sys/kernel/io_uring_disabled";
const RELEASE: &str = "/proc/sys/kernel/osrelease";

/// Before this, io_uring counts registered memory wrongly and lacks what the ring asks for first.
const RELEASE_MIN: (u32, u32) = (5, 15);
/// From this on the ring runs its completions where it submits.
const RELEASE_GOOD: (u32, u32) = (6, 1);

/// Makes the checks.
pub fn check(machine: &Machine, plan: &Plan, notes: &mut Notes) {
    notes.judge("kernel.release", "", release(machine));
    notes.judge("kernel.io_uring", "", io_uring(machine, plan));
}

fn release(machine: &Machine) -> Verdict {
    let text = machine.word(RELEASE)?;
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        return Err(Gap::senseless(RELEASE, &text));
    };
    let fault = match (major, minor) {
        release if release >= RELEASE_GOOD => return Ok(None),
        release if release >= RELEASE_MIN => Fault::info(
            format!("Linux {text} lacks what makes io_uring cheapest"),
            "from 6.1 on completions run on the thread that submits, which saves interrupts between cores",
        ),
        _ => Fault::warning(
            format!("Linux {text} is older than {}.{}", RELEASE_MIN.0, RELEASE_MIN.1),
            "io_uring is young there: Stoker may fall back to plain system calls, which are slower",
        ),
    };
    Ok(Some(
        fault
            .fix("install a kernel of a supported release of the distribution, 6.1 or newer")
            .saw(RELEASE, text),
    ))
}

fn io_uring(machine: &Machine, plan: &Plan) -> Verdict {
    let setting = if_there(machine.one_of(DISABLED, &["0", "1", "2"]))?;
    let why = "Stoker falls back to plain system calls on threads: correct, but with less throughput and more CPU per byte";
    let outcome = plan.uring.clone().map_err(Gap::Untold);
    let fault = match (setting, &outcome) {
        (_, Ok(Ok(()))) => return Ok(None),
        (Some("2"), _) => Fault::warning("io_uring is turned off for everybody", why)
            .fix("sysctl -w kernel.io_uring_disabled=0 && echo kernel.io_uring_disabled=0 > /etc/sysctl.d/90-stoker.conf"),
        (Some("1"), Ok(Err(_))) => Fault::warning("io_uring is only for one group of users, and we are not in it", why)
            .fix("sysctl -w kernel.io_uring_group=$(id -g stoker)"),
        (_, Ok(Err(number))) => refused(*number, why),
        (_, Err(gap)) => return Err(gap.clone()),
    };
    let fault = match setting {
        Some(setting) => fault.saw(DISABLED, setting),
        None => fault,
    };
    Ok(Some(match outcome {
        Ok(Err(number)) => fault.saw("io_uring_setup", format!("error {number}")),
        _ => fault,
    }))
}

/// Errors as Linux numbers them.
fn refused(number: i32, why: &str) -> Fault {
    const EPERM: i32 = 1;
    const ENOMEM: i32 = 12;
    const EACCES: i32 = 13;
    const ENOSYS: i32 = 38;
    match number {
        EPERM | EACCES => Fault::warning("io_uring is forbidden here, by a seccomp profile or a security module", why).fix(
            "allow io_uring_setup, io_uring_enter and io_uring_register in the seccomp profile of the container \
             (docker run --security-opt seccomp=PROFILE.json; in a pod securityContext.seccompProfile)",
        ),
        ENOSYS => Fault::warning("this kernel has no io_uring", why)
            .fix("run a kernel with CONFIG_IO_URING=y, or allow io_uring in the sandbox that runs this container"),
        ENOMEM => Fault::warning("there is not enough memory that may be locked for an io_uring", why)
            .fix("systemctl set-property stoker.service LimitMEMLOCK=infinity"),
        _ => Fault::warning("an io_uring cannot be set up", why),
    }
}
