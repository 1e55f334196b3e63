//! What the rules allow. Every row is a decision: a new one comes with its reason, here and, if it
//! changes the shape of the project, in ARCHITECTURE.md.

/// This file, for messages that tell where to look.
pub const HERE: &str = "xtask/src/tidy/tables.rs";

/// Package -> workspace packages that it may depend on, for building, testing or both.
/// Dependencies point down; a package that is not listed fails. (D1)
pub const ARROWS: &[(&str, &[&str])] = &[
    // For tests alone; whoever has some may use it.
    ("stoker-testing", &[]),
    ("stoker-format", &[]),
    ("stoker-buffer", &["stoker-format"]),
    ("stoker-ring", &["stoker-format", "stoker-buffer", "stoker-testing"]),
    ("stoker-consensus", &["stoker-format"]),
    ("stoker-catalog", &["stoker-consensus", "stoker-format", "stoker-testing"]),
    ("stoker-schema", &["stoker-format", "stoker-catalog"]),
    ("stoker-fabric", &["stoker-format", "stoker-buffer"]),
    // Seals and wraps bytes; knows what a record is.
    ("stoker-keys", &["stoker-format"]),
    // Codes bytes; knows what a chunk is called and how bytes are summed.
    ("stoker-ec", &["stoker-format"]),
    // Signs and checks; knows nothing else.
    ("stoker-sigv4", &[]),
    ("stoker-lake", &["stoker-format", "stoker-sigv4", "stoker-testing"]),
    // Certificates and trust; whoever listens or dials for people has it.
    ("stoker-tls", &[]),
    ("stoker-store", &["stoker-format", "stoker-buffer"]),
    // Plain types of the door are all that it knows of a cluster: what was measured.
    ("stoker-planner", &["stoker-store"]),
    // Plain types of the door are all that it knows of a cluster: specs, states and plans.
    ("stoker-jobs", &["stoker-store"]),
    // Decides about copies, rules and costs; knows no lake and no catalog.
    ("stoker-tiers", &[]),
    // Decides about tags, costs and time; what they are about is the caller's.
    ("stoker-qos", &[]),
    ("stoker-qos-driver", &["stoker-qos"]),
    // The directory of a node has files whose form the level decides.
    ("stoker-host", &["stoker-format", "stoker-catalog", "stoker-schema", "stoker-store"]),
    (
        "stoker-records",
        &[
            "stoker-format",
            "stoker-ring",
            "stoker-catalog",
            "stoker-schema",
            "stoker-lake",
            "stoker-store",
            "stoker-host",
        ],
    ),
    // Nodes as members: no ring, no lake, no chunk.
    (
        "stoker-cluster",
        &[
            "stoker-format",
            "stoker-buffer",
            "stoker-catalog",
            "stoker-schema",
            "stoker-fabric",
            "stoker-store",
            "stoker-host",
        ],
    ),
    // Works on what stopped nodes left, so it knows the forms and no node.
    (
        "stoker-salvage",
        &[
            "stoker-format",
            "stoker-ring",
            "stoker-catalog",
            "stoker-schema",
            "stoker-lake",
            "stoker-store",
            "stoker-host",
            "stoker-keys",
            "stoker-records",
        ],
    ),
    (
        "stoker-node",
        &[
            "stoker-format",
            "stoker-buffer",
            "stoker-ring",
            "stoker-catalog",
            "stoker-schema",
            "stoker-fabric",
            "stoker-keys",
            "stoker-lake",
            "stoker-store",
            "stoker-host",
            "stoker-jobs",
            "stoker-records",
            "stoker-cluster",
            "stoker-salvage",
            "stoker-qos",
            "stoker-qos-driver",
            "stoker-tiers",
            "stoker-testing",
        ],
    ),
    // Tokens of providers: names of users are what they become, and TLS is how providers are asked.
    ("stoker-oidc", &["stoker-store", "stoker-tls"]),
    // Lines and files; what they are about are texts.
    ("stoker-audit", &[]),
    // Decides in front of the door, so it knows the door alone; its tests run against a real node. Writes down what it decided.
    // The places of a job are decided one by one, so it knows what a spec says.
    ("stoker-access", &["stoker-audit", "stoker-format", "stoker-jobs", "stoker-store", "stoker-node"]),
    // The tests of what stands in front of the door run against a real node.
    (
        "stoker-client",
        &[
            "stoker-access",
            "stoker-format",
            "stoker-tls",
            "stoker-buffer",
            "stoker-store",
            "stoker-node",
            "stoker-catalog",
            "stoker-lake",
            "stoker-ring",
        ],
    ),
    (
        "stoker-gateway-s3",
        &[
            "stoker-access",
            "stoker-format",
            "stoker-oidc",
            "stoker-sigv4",
            "stoker-tls",
            "stoker-buffer",
            "stoker-store",
            // Lifecycle rules: their form, and whether they make sense.
            "stoker-tiers",
            "stoker-node",
            "stoker-catalog",
            "stoker-lake",
            "stoker-ring",
        ],
    ),
    // A dataset is made and read through the door alone; its tests run against a real node.
    ("stoker-dataset", &["stoker-format", "stoker-store", "stoker-node"]),
    // A cache of blocks knows the door alone; its tests run against a real node.
    ("stoker-kv", &["stoker-format", "stoker-store", "stoker-node"]),
    // Output of jobs is written and read through the door alone; its tests run against a real node.
    ("stoker-logs", &["stoker-store", "stoker-node"]),
    // Images come from an upstream and lie behind the door; its tests run against a real node.
    ("stoker-registry", &["stoker-store", "stoker-tls", "stoker-node"]),
    // Copies bytes to devices; where they come from is a trait, and checksums are all that it takes from us.
    ("stoker-gpu", &["stoker-format"]),
    // The binding to Python is a client, and never a node.
    // Plans come to Python from the models themselves, so a notebook shows what the command line shows.
    (
        "stoker-python",
        &[
            "stoker-format",
            "stoker-store",
            "stoker-client",
            "stoker-dataset",
            "stoker-gpu",
            "stoker-jobs",
            "stoker-kv",
            "stoker-planner",
        ],
    ),
    (
        "stoker-files",
        &["stoker-access", "stoker-format", "stoker-buffer", "stoker-store", "stoker-node", "stoker-client"],
    ),
    // Volumes for orchestrators: a client of the door as the command line is, and never a node.
    ("stoker-gateway-csi", &["stoker-store", "stoker-client"]),
    ("stoker-gateway-fuse", &["stoker-files"]),
    ("stoker-gateway-nfs", &["stoker-access", "stoker-files", "stoker-format", "stoker-store"]),
    // Decisions about what breaks know nobody: what they are about are names, and a driver carries them out.
    ("stoker-reflex", &[]),
    // Looks at machines, and is told what a node is configured with: it knows none itself.
    ("stoker-doctor", &[]),
    // Failures say what to do about errors of the ring and of the door; dates are written as the break-fix loop writes them.
    ("stoker-terminal", &["stoker-ring", "stoker-store", "stoker-reflex"]),
    ("stoker-probe", &["stoker-format", "stoker-ring", "stoker-terminal"]),
    // Measures every layer, so it knows them; nothing that serves may know it.
    (
        "stoker-bench",
        &[
            "stoker-ec",
            "stoker-format",
            "stoker-sigv4",
            "stoker-ring",
            "stoker-catalog",
            "stoker-schema",
            "stoker-store",
            "stoker-node",
            "stoker-client",
            "stoker-probe",
            "stoker-terminal",
        ],
    ),
    // The API knows the door alone; its tests run against a real node.
    (
        "stoker-admin",
        &[
            "stoker-access",
            "stoker-audit",
            "stoker-oidc",
            "stoker-jobs",
            "stoker-planner",
            "stoker-store",
            "stoker-tls",
            "stoker-node",
        ],
    ),
    (
        "stoker-telemetry",
        &[
            "stoker-format",
            "stoker-ring",
            "stoker-store",
            "stoker-node",
            "stoker-reflex",
            "stoker-admin",
            "stoker-terminal",
        ],
    ),
    (
        "stoker-reflex-driver",
        &[
            "stoker-doctor",
            "stoker-ring",
            "stoker-schema",
            "stoker-store",
            "stoker-node",
            "stoker-reflex",
            "stoker-admin",
            "stoker-telemetry",
            "stoker-terminal",
        ],
    ),
    // The process: it starts the parts, and so it knows them.
    (
        "stoker-agent",
        &[
            "stoker-access",
            "stoker-audit",
            "stoker-format",
            "stoker-tls",
            "stoker-ring",
            "stoker-catalog",
            "stoker-lake",
            "stoker-store",
            "stoker-node",
            "stoker-client",
            "stoker-gateway-nfs",
            "stoker-gateway-s3",
            "stoker-oidc",
            "stoker-registry",
            "stoker-admin",
            "stoker-reflex",
            "stoker-reflex-driver",
            "stoker-telemetry",
            "stoker-terminal",
        ],
    ),
    // What commands share: a node is somebody whom they speak to.
    ("stoker-command", &["stoker-format", "stoker-host", "stoker-store", "stoker-client", "stoker-terminal"]),
    ("stoker-transfer", &["stoker-store", "stoker-client", "stoker-terminal", "stoker-command"]),
    ("stoker-top", &["stoker-format", "stoker-store", "stoker-client", "stoker-terminal", "stoker-command"]),
    ("stoker-ring-tools", &["stoker-format", "stoker-ring", "stoker-terminal", "stoker-probe"]),
    (
        "stoker-plan",
        &["stoker-store", "stoker-planner", "stoker-client", "stoker-terminal", "stoker-command"],
    ),
    // Tries what a node would do on this machine, by its settings.
    (
        "stoker-support",
        &[
            "stoker-format",
            "stoker-tls",
            "stoker-ring",
            "stoker-store",
            "stoker-node",
            "stoker-client",
            "stoker-doctor",
            "stoker-terminal",
            "stoker-reflex-driver",
            "stoker-agent",
            "stoker-command",
        ],
    ),
    // Starts nodes as processes, by the settings that a person would give.
    (
        "stoker-demo",
        &[
            "stoker-store",
            "stoker-client",
            "stoker-terminal",
            "stoker-probe",
            "stoker-agent",
            "stoker-command",
        ],
    ),
    // Measures a node from outside and its drives and lake directly; the break-fix loop asks it through a trait.
    (
        "stoker-gate",
        &[
            "stoker-ring",
            "stoker-lake",
            "stoker-store",
            "stoker-node",
            "stoker-client",
            "stoker-terminal",
            "stoker-probe",
            "stoker-reflex-driver",
            "stoker-agent",
            "stoker-command",
        ],
    ),
    (
        "stoker-sim",
        &[
            "stoker-format",
            "stoker-buffer",
            "stoker-ring",
            "stoker-catalog",
            "stoker-consensus",
            "stoker-schema",
            "stoker-lake",
            "stoker-store",
            "stoker-node",
        ],
    ),
    (
        "stoker",
        &[
            "stoker-access",
            "stoker-audit",
            "stoker-format",
            "stoker-buffer",
            "stoker-ring",
            "stoker-catalog",
            "stoker-fabric",
            "stoker-lake",
            "stoker-store",
            "stoker-salvage",
            "stoker-node",
            "stoker-client",
            "stoker-dataset",
            "stoker-files",
            "stoker-jobs",
            "stoker-logs",
            "stoker-reflex",
            "stoker-schema",
            "stoker-gateway-csi",
            "stoker-gateway-fuse",
            "stoker-gateway-nfs",
            "stoker-gateway-s3",
            "stoker-oidc",
            "stoker-admin",
            "stoker-doctor",
            "stoker-planner",
            "stoker-tls",
            "stoker-terminal",
            "stoker-probe",
            "stoker-bench",
            "stoker-agent",
            "stoker-command",
            "stoker-transfer",
            "stoker-top",
            "stoker-ring-tools",
            "stoker-plan",
            "stoker-support",
            "stoker-demo",
            "stoker-gate",
            "stoker-telemetry",
            "stoker-reflex-driver",
            "stoker-testing",
        ],
    ),
    ("xtask", &[]),
];

/// Something that a rule lets pass, and why.
pub struct Exception {
    /// A path from the repository root; every path that starts like this is meant.
    pub prefix: &'static str,
    pub reason: &'static str,
}

const fn exception(prefix: &'static str, reason: &'static str) -> Exception {
    Exception { prefix, reason }
}

/// Files that may hold `unsafe`.
pub const UNSAFE: &[Exception] = &[
    exception("crates/ring/src/io/uring", "the io_uring driver hands memory and descriptors to the kernel"),
    exception("crates/buffer/src/", "aligned, huge-page and registered buffers are raw memory"),
    exception(
        "crates/python/src/buffer.rs",
        "memory of Python objects is shared through its buffer protocol",
    ),
    exception("crates/gpu/src/", "the CUDA driver, pinned buffers, and memory of the caller that is filled"),
    exception("crates/gpu/tests/", "a driver of the tests' own, behind the same functions"),
    exception("crates/python/src/gpu.rs", "addresses of tensors, which Python vouches for"),
    exception("crates/python/src/process.rs", "what belongs to the parent of a fork must not be dropped"),
    exception("crates/ec/src/kernel/", "vector instructions, and the memory that they are pointed at"),
    exception("crates/ring/src/sys", "system calls that the standard library does not wrap"),
    exception("crates/terminal/src/sys", "signals and getrusage, which the standard library does not wrap"),
    exception("crates/probe/src/raw", "measures the drive without the ring, with its own io_uring"),
    exception(
        "crates/gateway-csi/src/sys.rs",
        "mounts and statvfs, which the standard library does not wrap",
    ),
    exception("crates/bench/src/ec/isal.rs", "ISA-L is a library in C"),
    exception("crates/bench/src/posix/libnfs.rs", "libnfs is a library in C"),
];

/// Source files that may be longer than the limit.
pub const LONG: &[Exception] = &[];

/// Files that may hold an absolute path of somebody's machine.
pub const PATHS: &[Exception] = &[
    exception("crates/jobs/src/", "where a job sees the home of its user, as specs of jobs say it"),
    exception("docs/jobs.md", "where a job sees the home of its user, as specs of jobs say it"),
];

/// The row of a table that covers a path, if there is one.
pub fn covering<'t>(table: &'t [Exception], path: &str) -> Option<&'t Exception> {
    table.iter().find(|exception| path.starts_with(exception.prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_gives_a_reason() {
        for exception in UNSAFE.iter().chain(LONG).chain(PATHS) {
            assert!(exception.reason.contains(' '), "{} has no reason", exception.prefix);
        }
    }

    /// The table itself must not hold a cycle; cargo would refuse it only once it is in manifests.
    #[test]
    fn arrows_point_down() {
        for (index, (package, below)) in ARROWS.iter().enumerate() {
            for other in *below {
                let place = ARROWS.iter().position(|(name, _)| name == other);
                assert!(place.is_some_and(|place| place < index), "{package} -> {other}: list {other} above");
            }
        }
    }
}
