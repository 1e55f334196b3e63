//! Files with secrets, and certificates that end.

use std::path::Path;

use crate::finding::{Fault, Notes, Verdict};
use crate::machine::{Gap, Machine, if_there};
use crate::plan::{Certificate, Plan};

const DAY_S: u64 = 86_400;
/// So long before its end a certificate that people renew should be renewed.
const EXPIRY_WARN_S: u64 = 21 * DAY_S;

const OTHERS_READ: u32 = 0o004;
const OTHERS_WRITE: u32 = 0o002;
const OTHERS_ENTER: u32 = 0o001;
const GROUP_READ: u32 = 0o040;
const GROUP_WRITE: u32 = 0o020;

/// Makes the checks.
pub fn check(machine: &Machine, plan: &Plan, now_s: u64, notes: &mut Notes) {
    for path in &plan.keys {
        notes.judge("secrets.file", path.display().to_string(), file(machine, path));
    }
    for path in &plan.data {
        notes.judge("secrets.data", path.display().to_string(), data(machine, path));
    }
    if let Some(dir) = &plan.dir {
        notes.judge("secrets.directory", dir.display().to_string(), directory(machine, dir));
    }
    for certificate in &plan.certificates {
        notes.judge("secrets.certificate", certificate.name.clone(), expiry(certificate, now_s));
    }
}

fn file(machine: &Machine, path: &Path) -> Verdict {
    let mode = machine.permissions(path)?.mode;
    let what = |who: &str| format!("{who} can read or write it (mode {mode:04o})");
    let why = "whoever has it acts as this node, or as the user whose key it is";
    let fault = if mode & (OTHERS_READ | OTHERS_WRITE) != 0 {
        Fault::error(what("everybody on this machine"), why)
    } else if mode & (GROUP_READ | GROUP_WRITE) != 0 {
        Fault::warning(what("its group"), why)
    } else {
        return Ok(None);
    };
    Ok(Some(
        fault.fix(format!("chmod 600 {}", path.display())).saw(path.display(), format!("mode {mode:04o}")),
    ))
}

/// Older releases made segments and objects of a directory lake that everybody could read. A directory that
/// others cannot enter closes all that is in it.
fn data(machine: &Machine, path: &Path) -> Verdict {
    let Some(mode) = if_there(machine.permissions(path))?.map(|found| found.mode) else { return Ok(None) };
    let open = |mode: u32| mode & OTHERS_READ != 0;
    let wide = match machine.names(path) {
        Ok(_) if mode & OTHERS_ENTER == 0 => None,
        Ok(names) => {
            let mut inside = names.iter().map(|name| path.join(name));
            inside.find_map(|path| {
                machine
                    .permissions(&path)
                    .ok()
                    .filter(|found| open(found.mode))
                    .map(|found| (path, found.mode))
            })
        }
        // A file or a device.
        Err(_) => open(mode).then(|| (path.to_owned(), mode)),
    };
    Ok(wide.map(|(wide, mode)| {
        Fault::warning(
            format!("everybody on this machine can read {} (mode {mode:04o})", wide.display()),
            "it holds what users wrote, whatever the modes of their files say",
        )
        .fix(format!("chmod -R go-rwx {}", path.display()))
        .saw(wide.display(), format!("mode {mode:04o}"))
    }))
}

/// Who can write to the directory can replace the files in it.
fn directory(machine: &Machine, path: &Path) -> Verdict {
    let mode = machine.permissions(path)?.mode;
    let fault = if mode & (OTHERS_WRITE | GROUP_WRITE) != 0 {
        Fault::error(
            format!("others than its owner can write to it (mode {mode:04o})"),
            "they can replace the catalog, the keys and the socket",
        )
    } else if mode & (OTHERS_READ | OTHERS_ENTER) != 0 {
        Fault::warning(
            format!("everybody on this machine can look into it (mode {mode:04o})"),
            "what is in it is for its owner alone",
        )
    } else {
        return Ok(None);
    };
    Ok(Some(
        fault.fix(format!("chmod 700 {}", path.display())).saw(path.display(), format!("mode {mode:04o}")),
    ))
}

fn expiry(certificate: &Certificate, now_s: u64) -> Verdict {
    let (from_s, until_s) = *certificate.validity_s.as_ref().map_err(|why| Gap::Untold(why.clone()))?;
    let why = "clients and other nodes refuse a connection without a valid certificate";
    let days = |seconds: u64| format!("{} days", seconds / DAY_S);
    let fault = if now_s > until_s {
        Fault::error(format!("it ended {} ago", days(now_s - until_s)), why)
    } else if now_s < from_s {
        Fault::error(format!("it begins in {} by the clock of this machine", days(from_s - now_s)), why)
    } else if until_s - now_s < EXPIRY_WARN_S {
        Fault::warning(format!("it ends in {}", days(until_s - now_s)), why)
    } else {
        return Ok(None);
    };
    Ok(Some(
        fault.fix(&certificate.renew).saw("valid", format!("from {from_s} to {until_s}, seconds since 1970")),
    ))
}
