//! The binary `stoker`: one file per subcommand, each an adapter over the crates below.
//!
//! Data goes to stdout, messages to stderr, and only [`out`] prints.
//!
//! It must not hold logic that another program would want.

mod audit;
mod catalog;
mod cluster;
mod config;
mod conflict;
mod cp;
mod csi;
mod data_key;
mod drain;
mod drive;
mod explain;
mod generate;
mod get;
mod help;
mod job;
mod join;
mod join_token;
mod key;
mod lake;
mod logs;
mod ls;
mod mount;
mod mv;
mod node;
mod oidc;
mod pack;
mod policy;
mod put;
mod qos;
mod quota;
mod rebuild;
mod risk;
mod rm;
mod seal;
mod serve;
mod set;
mod slo;
mod stage;
mod stat;
mod status;
mod tenant;
mod umount;
mod up;
mod upgrade;
mod user;
mod versions;
mod volume;
mod wait;
mod witness;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use failure::Failure;
use stoker_agent as daemon;
use stoker_agent::log;
use stoker_command::{address, connect, home, outages, show, waiting};
#[allow(unused_imports, reason = "modules find them here")]
use stoker_terminal::{
    clock, failure, journal, out, paint, progress, rng, shell, size, small_file, span, sys,
};
use stoker_transfer as transfer;

const EXIT_CODES: &str = "Exit codes: 0 done; 1 failed, or bad records were found; 2 wrong usage; 128+n stopped by \
                          signal n. A closed pipe on stdout counts as done.";

/// Keeps GPUs fed: a fast, durable first tier in front of any object store.
#[derive(Parser)]
#[command(name = "stoker", version, after_help = EXIT_CODES, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Start a node on this machine, without a configuration.
    Up(up::Args),
    /// Start a new node on this machine as a member of a cluster.
    Join(join::Args),
    /// Start a node without drives that votes on names, so that of two nodes with drives either may be lost.
    Witness(witness::Args),
    /// Make, list and revoke the tokens that let nodes join.
    #[command(subcommand)]
    JoinToken(join_token::Verb),
    /// Show in half a minute what Stoker promises: three nodes, a checkpoint, and two of them killed.
    Demo(stoker_demo::Args),
    /// Start a node by its configuration file.
    Serve(serve::Args),
    /// Show what a node is started with and where each setting comes from; make the file for `serve`.
    #[command(subcommand)]
    Config(config::Verb),
    /// Copy a file, a folder or stdin into Stoker.
    Put(put::Args),
    /// Copy a file or a folder out of Stoker.
    Get(get::Args),
    /// List volumes, or files in one.
    Ls(ls::Args),
    /// Delete files.
    Rm(rm::Args),
    /// Copy inside Stoker by reference, or between Stoker and here.
    Cp(cp::Args),
    /// Rename a file or a folder.
    Mv(mv::Args),
    /// Show what is known of a file.
    Stat(stat::Args),
    /// List, bring back and remove what files were before, in volumes that keep versions.
    #[command(subcommand)]
    Versions(versions::Verb),
    /// Show a volume as a file system.
    Mount(mount::Args),
    /// Take a mounted volume away.
    Umount(umount::Args),
    /// Serve volumes to Kubernetes and others that speak the Container Storage Interface.
    #[command(subcommand)]
    Csi(csi::Verb),
    /// Wait until a file is committed or in the lake.
    Wait(wait::Args),
    /// Make, show, change and remove volumes.
    #[command(subcommand)]
    Volume(volume::Verb),
    /// Give lakes names, try them, and see to second lakes of volumes.
    #[command(subcommand)]
    Lake(lake::Verb),
    /// Stage, drain and delete files by rules.
    #[command(subcommand)]
    Policy(policy::Verb),
    /// Write, publish and show checkpoint sets.
    #[command(subcommand)]
    Set(set::Verb),
    /// Submit, show, start and end jobs, whose data is there before they are.
    #[command(subcommand)]
    Job(job::Verb),
    /// Write the output of programs to the logs of their job.
    #[command(subcommand)]
    Log(logs::Verb),
    /// Show what the programs of a job said, also while they say it.
    Logs(logs::Args),
    /// Make, show, replace and remove access keys for S3.
    #[command(subcommand)]
    Key(key::Verb),
    /// List, rotate and destroy the keys of encrypted volumes.
    #[command(subcommand)]
    DataKey(data_key::Verb),
    /// Make, list and delete tenants: each sees its own volumes and no others.
    #[command(subcommand)]
    Tenant(tenant::Verb),
    /// Make, list and delete projects: folders of a tenant for some of its users.
    #[command(subcommand)]
    Project(tenant::ProjectVerb),
    /// Show what tenants, projects and users have, and may have.
    Usage(quota::UsageArgs),
    /// Promise and allow bandwidth to jobs, tenants and volumes.
    #[command(subcommand)]
    Qos(qos::Verb),
    /// Make, list, change and delete users.
    #[command(subcommand)]
    User(user::Verb),
    /// List OpenID providers, and check what they and their tokens are worth here.
    #[command(subcommand)]
    Oidc(oidc::Verb),
    /// Search the audit log of a node, and check that nothing of it was changed.
    #[command(subcommand)]
    Audit(audit::Verb),
    /// Turn many small files into few tar shards, with a seal that finds each sample.
    Pack(pack::Args),
    /// Make a seal of tar shards that are there.
    Seal(seal::Args),
    /// Show how a node is and what is at risk.
    Status(status::Args),
    /// Show how a node and its cluster are, live.
    Top(stoker_top::Args),
    /// Show where a file is, what happens to it next, and why the last read of it was slow.
    Explain(explain::Args),
    /// List and end conflicts with other writers of a lake.
    #[command(subcommand)]
    Conflict(conflict::Verb),
    /// Let files leave for the lake now.
    Drain(drain::Args),
    /// Bring files from the lake onto drives.
    Stage(stage::Args),
    /// Show who keeps the catalog, let another node take it over, keep it and bring it back.
    #[command(subcommand)]
    Catalog(catalog::Verb),
    /// Show in which forms all nodes write, and what keeps that from changing.
    #[command(subcommand)]
    Cluster(cluster::Verb),
    /// Say whether this release may take the place of the one that runs.
    #[command(subcommand)]
    Upgrade(upgrade::Verb),
    /// List nodes, take them out of placement or empty them, ask whether one can stop.
    #[command(subcommand)]
    Node(node::Verb),
    /// List drives, and put them in and out of service while their nodes run.
    #[command(subcommand)]
    Drive(drive::Verb),
    /// Show what would be lost if a node or a cell died now.
    Risk(risk::Args),
    /// Show how far the protection of what lost a copy is.
    #[command(subcommand)]
    Rebuild(rebuild::Verb),
    /// Show how the objectives do, which parts are in trouble and what is done about them.
    Slo(slo::Args),
    /// Look at this machine and say what would hurt a node on it, why, and how to fix it.
    Doctor(stoker_support::doctor::Args),
    /// Test a node before it takes traffic: drives, ring, commits, catalog, the ways between nodes, lake.
    Gate(stoker_gate::Args),
    /// Predict what a job or a cluster will do, design storage, and compare predictions with what happened.
    #[command(subcommand)]
    Plan(stoker_plan::Verb),
    /// Gather what somebody who helps needs to know, without secrets.
    SupportBundle(stoker_support::bundle::Args),
    /// Make and look at the ring on one drive.
    #[command(subcommand)]
    Ring(stoker_ring_tools::Verb),
    /// Write man pages and completions of shells into a folder, for packages.
    #[command(hide = true)]
    Generate(generate::Args),
    /// Measure a drive, bare and through the ring.
    #[command(subcommand)]
    Bench(stoker_bench::Verb),
}

/// The arguments, with all that help says.
fn command() -> clap::Command {
    help::with_help(Cli::command())
}

fn main() -> ExitCode {
    let cli = Cli::from_arg_matches(&command().get_matches()).unwrap_or_else(|error| error.exit());
    let done = match cli.verb {
        Verb::Up(args) => up::run(&args),
        Verb::Join(args) => join::run(&args),
        Verb::Witness(args) => witness::run(&args),
        Verb::Job(verb) => job::run(&verb),
        Verb::Log(verb) => logs::run_pipe(&verb),
        Verb::Logs(args) => logs::run(&args),
        Verb::JoinToken(verb) => join_token::run(&verb),
        Verb::Demo(args) => stoker_demo::run(&args),
        Verb::Serve(args) => serve::run(&args),
        Verb::Config(verb) => config::run(&verb),
        Verb::Put(args) => put::run(&args),
        Verb::Get(args) => get::run(&args),
        Verb::Ls(args) => ls::run(&args),
        Verb::Versions(verb) => versions::run(&verb),
        Verb::Rm(args) => rm::run(&args),
        Verb::Cp(args) => cp::run(&args),
        Verb::Mv(args) => mv::run(&args),
        Verb::Stat(args) => stat::run(&args),
        Verb::Mount(args) => mount::run(&args),
        Verb::Umount(args) => umount::run(&args),
        Verb::Csi(verb) => csi::run(&verb),
        Verb::Wait(args) => wait::run(&args),
        Verb::Volume(verb) => volume::run(&verb),
        Verb::Lake(verb) => lake::run(&verb),
        Verb::Policy(verb) => policy::run(&verb),
        Verb::Set(verb) => set::run(&verb),
        Verb::Key(verb) => key::run(&verb),
        Verb::DataKey(verb) => data_key::run(&verb),
        Verb::Tenant(verb) => tenant::run(&verb),
        Verb::Project(verb) => tenant::run_project(&verb),
        Verb::Usage(args) => quota::run_usage(&args),
        Verb::Qos(verb) => qos::run(&verb),
        Verb::User(verb) => user::run(&verb),
        Verb::Oidc(verb) => oidc::run(&verb),
        Verb::Audit(verb) => audit::run(&verb),
        Verb::Pack(args) => pack::run(&args),
        Verb::Seal(args) => seal::run(&args),
        Verb::Status(args) => status::run(&args),
        Verb::Top(args) => stoker_top::run(&args),
        Verb::Explain(args) => explain::run(&args),
        Verb::Conflict(verb) => conflict::run(&verb),
        Verb::Drain(args) => drain::run(&args),
        Verb::Stage(args) => stage::run(&args),
        Verb::Catalog(verb) => catalog::run(&verb),
        Verb::Cluster(verb) => cluster::run(&verb),
        Verb::Upgrade(verb) => upgrade::run(&verb),
        Verb::Node(verb) => node::run(&verb),
        Verb::Drive(verb) => drive::run(&verb),
        Verb::Risk(args) => risk::run(&args),
        Verb::Rebuild(verb) => rebuild::run(&verb),
        Verb::Slo(args) => slo::run(&args),
        Verb::Doctor(args) => stoker_support::doctor::run(&args),
        Verb::Gate(args) => stoker_gate::run(&args),
        Verb::Plan(verb) => stoker_plan::run(&verb),
        Verb::SupportBundle(args) => stoker_support::bundle::run(&args),
        Verb::Generate(args) => generate::run(&args),
        Verb::Ring(verb) => stoker_ring_tools::run(&verb),
        Verb::Bench(verb) => stoker_bench::run(&verb),
    };
    done.unwrap_or_else(|failure: Failure| failure.report())
}
