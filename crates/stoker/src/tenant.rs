//! `stoker tenant` and `stoker project`: who sees what of a cluster. What they are: docs/access.md.

use std::process::ExitCode;

use serde_json::{Value, json};
use stoker_store::{
    AccountInfo, AccountName, Order, People, PeopleChange, ProjectInfo, Report, Store, VolumeInfo,
    full_volume_name, volume_tenant,
};

use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::quota::{self, QuotaArgs};
use crate::{clock, out, show};

/// What to do with tenants.
#[derive(clap::Subcommand)]
pub enum Verb {
    /// Make a tenant, with a volume of its name.
    Create(NameArgs),
    /// List tenants with what they hold.
    #[command(alias = "ls")]
    List(ListArgs),
    /// Change how much a tenant may have. What is not named stays as it is.
    Set(SetArgs),
    /// Delete a tenant that has no volumes, projects and users any more.
    #[command(alias = "rm")]
    Delete(NameArgs),
}

/// What to do with projects.
#[derive(clap::Subcommand)]
pub enum ProjectVerb {
    /// Make a project: a folder in the volume of its tenant's name, for the users who are put into it.
    Create(ProjectArgs),
    /// List projects with their users.
    #[command(alias = "ls")]
    List(ListArgs),
    /// Change how much a project may have. What is not named stays as it is.
    Set(SetProjectArgs),
    /// Delete a project that no user is in any more. Its files stay.
    #[command(alias = "rm")]
    Delete(ProjectArgs),
}

/// Arguments of `tenant create` and `tenant delete`.
#[derive(clap::Args)]
pub struct NameArgs {
    /// Name of the tenant: 3 to 24 lower-case letters, digits and hyphens.
    tenant: String,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `tenant set`.
#[derive(clap::Args)]
pub struct SetArgs {
    /// Name of the tenant.
    tenant: String,
    #[command(flatten)]
    quota: QuotaArgs,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `project set`.
#[derive(clap::Args)]
pub struct SetProjectArgs {
    /// The project, as TENANT/PROJECT.
    project: String,
    #[command(flatten)]
    quota: QuotaArgs,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `project create` and `project delete`.
#[derive(clap::Args)]
pub struct ProjectArgs {
    /// The project, as TENANT/PROJECT.
    project: String,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `tenant list` and `project list`.
#[derive(clap::Args)]
pub struct ListArgs {
    /// Print one object per line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Everybody in the cluster.
pub async fn people(client: &impl Store) -> Result<People, Failure> {
    match client.operate(Order::People).await? {
        Report::People(people) => Ok(people),
        _ => Err(Failure::confused()),
    }
}

/// Carries a change out.
pub async fn change(client: &impl Store, change: PeopleChange) -> Result<ExitCode, Failure> {
    match client.operate(Order::PeopleChange(change)).await? {
        Report::Done => Ok(ExitCode::SUCCESS),
        _ => Err(Failure::confused()),
    }
}

/// Runs a subcommand about tenants.
pub fn run(verb: &Verb) -> Result<ExitCode, Failure> {
    match verb {
        Verb::Create(args) => connect::run(&args.target, async |client| {
            let tenant = args.tenant.clone();
            let done = change(&client, PeopleChange::TenantCreate { tenant }).await?;
            let volume = full_volume_name(&args.tenant, &args.tenant);
            out::say(format!(
                "tenant {0} has the volume {volume}, which its users call {0}; `stoker user create {0}/NAME` makes one",
                args.tenant
            ));
            Ok(done)
        }),
        Verb::Delete(args) => connect::run(&args.target, async |client| {
            change(&client, PeopleChange::TenantDelete { tenant: args.tenant.clone() }).await
        }),
        Verb::Set(args) => connect::run(&args.target, async |client| {
            if args.quota.is_empty() {
                return Err(quota::nothing());
            }
            quota::set(&client, AccountName::Tenant(args.tenant.clone()), &args.quota).await
        }),
        Verb::List(args) => connect::run(&args.target, async |client| {
            let (people, volumes) = (people(&client).await?, client.volumes().await?);
            let mut accounts = vec![quota::default_tenant(&volumes)];
            accounts.extend(quota::accounts(&client).await?);
            let all: Vec<Usage<'_>> =
                accounts.iter().filter_map(|info| Usage::of(info, &people, &volumes)).collect();
            match args.json {
                true => all.iter().try_for_each(|usage| out::json(&usage.shape()))?,
                false => out::table(&all.iter().map(Usage::row).collect::<Vec<_>>())?,
            }
            Ok(ExitCode::SUCCESS)
        }),
    }
}

/// A tenant and what it holds.
struct Usage<'a> {
    info: &'a AccountInfo,
    volumes: usize,
    users: usize,
}

impl Usage<'_> {
    fn of<'a>(info: &'a AccountInfo, people: &People, volumes: &[VolumeInfo]) -> Option<Usage<'a>> {
        let AccountName::Tenant(tenant) = &info.account else { return None };
        Some(Usage {
            info,
            volumes: volumes.iter().filter(|volume| volume_tenant(&volume.name).0 == tenant).count(),
            users: people.users.iter().filter(|user| user.name.tenant == *tenant).count(),
        })
    }

    fn shape(&self) -> Value {
        let mut shape = json!({
            "tenant": self.info.account.tenant(),
            "volumes": self.volumes,
            "users": self.users,
        });
        quota::fields(self.info).into_iter().for_each(|(name, value)| shape[name] = value);
        shape
    }

    fn row(&self) -> Vec<String> {
        let [files, bytes] = quota::words(self.info);
        vec![
            self.info.account.to_string(),
            show::count(self.volumes as u64, "volume"),
            show::count(self.users as u64, "user"),
            files,
            bytes,
        ]
    }
}

/// Runs a subcommand about projects.
pub fn run_project(verb: &ProjectVerb) -> Result<ExitCode, Failure> {
    match verb {
        ProjectVerb::Create(args) => connect::run(&args.target, async |client| {
            let (tenant, project) = named(&args.project)?;
            change(&client, PeopleChange::ProjectCreate { tenant, project }).await
        }),
        ProjectVerb::Delete(args) => connect::run(&args.target, async |client| {
            let (tenant, project) = named(&args.project)?;
            change(&client, PeopleChange::ProjectDelete { tenant, project }).await
        }),
        ProjectVerb::Set(args) => connect::run(&args.target, async |client| {
            if args.quota.is_empty() {
                return Err(quota::nothing());
            }
            let (tenant, project) = named(&args.project)?;
            quota::set(&client, AccountName::Project { tenant, project }, &args.quota).await
        }),
        ProjectVerb::List(args) => connect::run(&args.target, async |client| {
            let (people, accounts) = (people(&client).await?, quota::accounts(&client).await?);
            let info = |project: &ProjectInfo| {
                let ProjectInfo { tenant, name, .. } = project.clone();
                let account = AccountName::Project { tenant, project: name };
                quota::of(&accounts, account)
            };
            let all = people.projects.iter();
            match args.json {
                true => all
                    .map(|project| shape(project, &people, &info(project)))
                    .try_for_each(|shape| out::json(&shape))?,
                false => {
                    out::table(&all.map(|project| row(project, &people, &info(project))).collect::<Vec<_>>())?
                }
            }
            Ok(ExitCode::SUCCESS)
        }),
    }
}

fn named(text: &str) -> Result<(String, String), Failure> {
    let odd = || Failure::new(format!("`{text}` names no project")).hint("a project is named TENANT/PROJECT");
    let (tenant, project) = text.split_once('/').ok_or_else(odd)?;
    Ok((tenant.to_owned(), project.to_owned()))
}

fn users(project: &ProjectInfo, people: &People) -> Vec<String> {
    let is_in = |user: &&stoker_store::UserInfo| {
        user.name.tenant == project.tenant && user.rights.projects.contains(&project.name)
    };
    people.users.iter().filter(is_in).map(|user| user.name.user.clone()).collect()
}

fn shape(project: &ProjectInfo, people: &People, info: &AccountInfo) -> Value {
    let mut shape = json!({
        "tenant": project.tenant,
        "project": project.name,
        "path": format!("{0}/{1}/", project.tenant, project.name),
        "users": users(project, people),
        "created": clock::rfc3339(project.created_ms),
    });
    quota::fields(info).into_iter().for_each(|(name, value)| shape[name] = value);
    shape
}

fn row(project: &ProjectInfo, people: &People, info: &AccountInfo) -> Vec<String> {
    let users = users(project, people);
    let [files, bytes] = quota::words(info);
    vec![
        format!("{}/{}", project.tenant, project.name),
        if users.is_empty() { "no users".to_owned() } else { users.join(", ") },
        files,
        bytes,
    ]
}
