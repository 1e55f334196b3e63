//! The section `[slo.hook]`: who keeps jobs away from a node that is out.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use serde::Deserialize;
use toml::Spanned;

use super::{at, some64};
use crate::fault::Fault;

/// Longest name of a host, as in the name system.
pub const HOST_LEN_MAX: usize = 253;

/// Nodes that may have another name in the scheduler.
const NAMES_MAX: usize = 100_000;

/// Words of a command.
const WORDS_MAX: usize = 64;

/// Longest time that a program may be given: the next decision waits for it.
const TIMEOUT_S_MAX: u64 = 600;

/// The section `[slo.hook]`.
#[derive(Clone, Deserialize, PartialEq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Hook {
    /// Which scheduler.
    pub kind: Spanned<HookKind>,
    /// Another program than `scontrol` or `kubectl`, or where it is.
    #[serde(default)]
    pub program: Option<Spanned<String>>,
    /// How long a program may take.
    #[serde(default = "timeout_s")]
    pub timeout_s: Spanned<NonZeroU64>,
    /// Names of nodes in the scheduler, where they differ from their names here.
    #[serde(default)]
    pub names: BTreeMap<String, Spanned<String>>,
    /// Of `command`: the program and its arguments, with `{node}` and `{reason}`.
    #[serde(default)]
    pub cordon: Option<Spanned<Vec<String>>>,
    /// Of `command`: the same, to undo it.
    #[serde(default)]
    pub uncordon: Option<Spanned<Vec<String>>>,
}

/// Which scheduler.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookKind {
    /// `scontrol update ... State=DRAIN`.
    Slurm,
    /// `kubectl cordon`.
    Kubernetes,
    /// A program of the operator.
    Command,
}

fn timeout_s() -> Spanned<NonZeroU64> {
    at(some64(30))
}

/// Refuses a name that a program could take for something else than a host.
pub fn check_host(name: &str) -> Result<(), &'static str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.is_empty() || name.len() > HOST_LEN_MAX || !name.bytes().all(is_plain) {
        return Err("a name of a host has letters, digits, `.`, `_` and `-`, and is not too long");
    }
    if name.starts_with('-') {
        return Err("a name of a host does not begin with `-`: programs would take it for an option");
    }
    Ok(())
}

impl Hook {
    /// Refuses what is well written and cannot be.
    pub(super) fn check(&self) -> Result<(), Fault> {
        if self.timeout_s.get_ref().get() > TIMEOUT_S_MAX {
            let words = format!("at most {TIMEOUT_S_MAX} seconds: other decisions wait for it");
            return Err(Fault::at(self.timeout_s.span(), words));
        }
        for (index, host) in self.names.values().enumerate() {
            if index >= NAMES_MAX {
                return Err(Fault::at(host.span(), format!("at most {NAMES_MAX} names")));
            }
            check_host(host.get_ref()).map_err(|words| Fault::at(host.span(), words))?;
        }
        match self.kind.get_ref() {
            HookKind::Command => self.check_commands(),
            HookKind::Slurm | HookKind::Kubernetes => self.check_program(),
        }
    }

    fn check_program(&self) -> Result<(), Fault> {
        if let Some(words) = [&self.cordon, &self.uncordon].into_iter().flatten().next() {
            return Err(Fault::at(words.span(), "only a hook of the kind `command` has commands of its own"));
        }
        match &self.program {
            Some(program) if program.get_ref().is_empty() || program.get_ref().contains('\0') => {
                Err(Fault::at(program.span(), "the name or path of a program"))
            }
            _ => Ok(()),
        }
    }

    fn check_commands(&self) -> Result<(), Fault> {
        if let Some(program) = &self.program {
            let words = "the program is the first word of `cordon` and `uncordon`";
            return Err(Fault::at(program.span(), words));
        }
        for (name, command) in [("cordon", &self.cordon), ("uncordon", &self.uncordon)] {
            let Some(command) = command else {
                let words = format!("a hook of the kind `command` needs `{name}`");
                return Err(Fault::at(self.kind.span(), words));
            };
            let wrong = |words: &str| Err(Fault::at(command.span(), words));
            let words = command.get_ref();
            if words.len() > WORDS_MAX || words.iter().any(|word| word.contains('\0')) {
                return wrong("too many words, or one with a zero byte");
            }
            if words.first().is_none_or(|program| program.is_empty() || program.contains('{')) {
                return wrong("the first word is a program");
            }
            if !words.iter().any(|word| word.contains("{node}")) {
                return wrong("it does not say which node: use `{node}`");
            }
        }
        Ok(())
    }
}
