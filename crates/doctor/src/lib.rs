//! Looks at a machine and says what would hurt a node of Stoker there: what, why it matters, the command that fixes it.
//!
//! [`examine`] is a function of three things: a [`Machine`], which is a directory with `/proc`, `/sys` and `/etc` in it; a
//! [`Plan`], which says what the node is configured with and what was tried on the machine; and the time. So a tree of small files is a machine to a test.
//!
//! What cannot be read is told as such. It is never taken for healthy, nor for a fault.
//!
//! It must not change or try anything, ask a network, or read a clock.

#![forbid(unsafe_code)]

mod clock;
mod cpus;
mod database;
mod disk;
mod drives;
mod filesystem;
mod finding;
mod gds;
mod groups;
mod iommu;
mod kernel;
mod kubelet;
mod limits;
mod machine;
mod memory;
mod mounts;
mod network;
mod numa;
mod nvmeof;
mod plan;
mod rdma;
mod report;
mod reservation;
mod secrets;

pub use cpus::CpuList;
pub use disk::{Disk, disks_behind};
pub use finding::{Finding, Severity, Unseen};
pub use machine::{Gap, Machine};
pub use plan::{Certificate, Clock, Database, Direct, Drive, DriveKind, Known, Plan, Standby};
pub use report::Report;
pub use reservation::Reservation;

use disk::Disks;
use finding::Notes;
use mounts::Mounts;

/// Makes the checks of a machine whose nodes are pods: what the kubelet keeps for them, and how it places them.
pub fn examine_kubernetes(machine: &Machine, plan: &Plan) -> Report {
    let mut notes = Notes::default();
    kubelet::check(machine, plan, &mut notes);
    kubelet::check_policies(machine, plan, &mut notes);
    Report::of(notes, Reservation::of(machine, plan))
}

/// Makes every check that applies. `now_s` is the wall clock in seconds since 1970.
pub fn examine(machine: &Machine, plan: &Plan, now_s: u64) -> Report {
    let mut notes = Notes::default();
    let mounts = Mounts::read(machine, plan.process);
    let disks = Disks::find(machine, plan, &mounts);
    let interfaces = network::interfaces(machine, plan);
    kernel::check(machine, plan, &mut notes);
    drives::check(machine, plan, &disks, &mut notes);
    filesystem::check(machine, plan, &mounts, &mut notes);
    numa::check(machine, plan, &disks, &interfaces, &mut notes);
    memory::check(machine, plan, &mut notes);
    limits::check(machine, plan, &mut notes);
    kubelet::check(machine, plan, &mut notes);
    iommu::check(machine, &disks, &mut notes);
    nvmeof::check(machine, &mut notes);
    rdma::check(machine, &mut notes);
    network::check(machine, plan, &interfaces, &mut notes);
    clock::check(machine, plan, &mut notes);
    gds::check(machine, plan, &mounts, &mut notes);
    secrets::check(machine, plan, now_s, &mut notes);
    database::check(plan, &mut notes);
    Report::of(notes, Reservation::of(machine, plan))
}
