//! `stoker user`: who may connect, and what they may do. What they are: docs/access.md.

use std::process::ExitCode;

use serde_json::{Value, json};
use stoker_access::token::UserToken;
use stoker_store::{AccountInfo, AccountName, PeopleChange, UserInfo, UserName, UserRights};

use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::quota::{self, QuotaArgs};
use crate::tenant::{change, people};
use crate::{clock, out};

/// What to do with users.
#[derive(clap::Subcommand)]
pub enum Verb {
    /// Make a user. `stoker key create --user` makes keys for S3, `stoker user token` a token for the client port.
    Create(CreateArgs),
    /// List users with what they may do.
    #[command(alias = "ls")]
    List(ListArgs),
    /// Change what a user may do. What is not named stays as it is.
    Set(SetArgs),
    /// Make a token by which a user connects over TCP, and print it; nobody can print it again. An earlier one stops to work.
    Token(TokenArgs),
    /// Delete a user and their access keys. Their files stay.
    #[command(alias = "rm")]
    Delete(NameArgs),
}

/// Arguments of `user create`.
#[derive(clap::Args)]
pub struct CreateArgs {
    /// The user, as TENANT/USER; USER alone is one of the default tenant.
    #[arg(value_parser = parse)]
    user: UserName,
    /// May not change anything.
    #[arg(long)]
    read_only: bool,
    /// Sees the folder of this project; can be repeated. Without projects and prefixes, a user sees all of the tenant.
    #[arg(long)]
    project: Vec<String>,
    /// Sees this VOLUME or VOLUME/PREFIX of the tenant; can be repeated.
    #[arg(long, value_name = "VOLUME[/PREFIX]")]
    prefix: Vec<String>,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `user list`.
#[derive(clap::Args)]
pub struct ListArgs {
    /// Only of this tenant.
    #[arg(long)]
    tenant: Option<String>,
    /// Print one object per line: user, tenant, read_only, disabled, projects, prefixes, has_token, created.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `user set`.
#[derive(clap::Args)]
pub struct SetArgs {
    /// The user, as TENANT/USER.
    #[arg(value_parser = parse)]
    user: UserName,
    /// May, or may not, change anything.
    #[arg(long, value_name = "BOOL")]
    read_only: Option<bool>,
    /// Is, or is not, kept out.
    #[arg(long, value_name = "BOOL")]
    disabled: Option<bool>,
    /// Sees the folders of these projects and of no others; can be repeated, and empty for none.
    #[arg(long)]
    project: Option<Vec<String>>,
    /// Sees these VOLUMEs or VOLUME/PREFIXes and no others; can be repeated, and empty for none.
    #[arg(long, value_name = "VOLUME[/PREFIX]")]
    prefix: Option<Vec<String>>,
    #[command(flatten)]
    quota: QuotaArgs,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `user token`.
#[derive(clap::Args)]
pub struct TokenArgs {
    /// The user, as TENANT/USER.
    #[arg(value_parser = parse)]
    user: UserName,
    /// Let the present token stop to work, and make no other.
    #[arg(long)]
    revoke: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `user delete`.
#[derive(clap::Args)]
pub struct NameArgs {
    /// The user, as TENANT/USER.
    #[arg(value_parser = parse)]
    user: UserName,
    #[command(flatten)]
    target: Target,
}

/// Reads `TENANT/USER`.
pub fn parse(text: &str) -> Result<UserName, String> {
    UserName::parse(text).map_err(|fault| fault.message)
}

/// Runs a subcommand.
pub fn run(verb: &Verb) -> Result<ExitCode, Failure> {
    match verb {
        Verb::Create(args) => connect::run(&args.target, async |client| {
            let rights = UserRights {
                read_only: args.read_only,
                disabled: false,
                projects: args.project.clone(),
                prefixes: args.prefix.clone(),
            };
            change(&client, PeopleChange::UserCreate { name: args.user.clone(), rights }).await
        }),
        Verb::List(args) => connect::run(&args.target, async |client| {
            let mut users = people(&client).await?.users;
            users.retain(|user| args.tenant.as_ref().is_none_or(|tenant| *tenant == user.name.tenant));
            let accounts = quota::accounts(&client).await?;
            let info = |user: &UserInfo| quota::of(&accounts, AccountName::User(user.name.clone()));
            match args.json {
                true => users.iter().try_for_each(|user| out::json(&shape(user, &info(user))))?,
                false => {
                    out::table(&users.iter().map(|user| row(user, &info(user))).collect::<Vec<_>>())?;
                }
            }
            Ok(ExitCode::SUCCESS)
        }),
        Verb::Set(args) => connect::run(&args.target, async |client| {
            let users = people(&client).await?.users;
            let missing = || {
                Failure::new(format!("there is no user `{}`", args.user))
                    .hint("`stoker user list` lists them")
            };
            let found = users.into_iter().find(|user| user.name == args.user).ok_or_else(missing)?;
            let given = |list: &Option<Vec<String>>, old: Vec<String>| match list {
                Some(list) => list.iter().filter(|one| !one.is_empty()).cloned().collect(),
                None => old,
            };
            let rights = UserRights {
                read_only: args.read_only.unwrap_or(found.rights.read_only),
                disabled: args.disabled.unwrap_or(found.rights.disabled),
                projects: given(&args.project, found.rights.projects.clone()),
                prefixes: given(&args.prefix, found.rights.prefixes.clone()),
            };
            let is_other = rights != found.rights;
            if !is_other && args.quota.is_empty() {
                return Ok(ExitCode::SUCCESS);
            }
            if is_other {
                change(&client, PeopleChange::UserSet { name: found.name.clone(), rights }).await?;
            }
            match args.quota.is_empty() {
                true => Ok(ExitCode::SUCCESS),
                false => quota::set(&client, AccountName::User(found.name), &args.quota).await,
            }
        }),
        Verb::Token(args) => connect::run(&args.target, async |client| {
            let name = args.user.clone();
            if args.revoke {
                return change(&client, PeopleChange::UserToken { name, token: None }).await;
            }
            let token = UserToken::random()?;
            let done = change(&client, PeopleChange::UserToken { name, token: Some(token.check()) }).await?;
            out::line(token.text())?;
            out::say(format!("{} connects with it: STOKER_TOKEN, or --token-file", args.user));
            Ok(done)
        }),
        Verb::Delete(args) => connect::run(&args.target, async |client| {
            change(&client, PeopleChange::UserDelete { name: args.user.clone() }).await
        }),
    }
}

fn shape(user: &UserInfo, info: &AccountInfo) -> Value {
    let mut shape = json!({
        "user": user.name.user,
        "tenant": user.name.tenant,
        "read_only": user.rights.read_only,
        "disabled": user.rights.disabled,
        "projects": user.rights.projects,
        "prefixes": user.rights.prefixes,
        "has_token": user.has_token,
        "created": clock::rfc3339(user.created_ms),
    });
    quota::fields(info).into_iter().for_each(|(name, value)| shape[name] = value);
    shape
}

fn row(user: &UserInfo, info: &AccountInfo) -> Vec<String> {
    let [files, bytes] = quota::words(info);
    let rights = match (user.rights.disabled, user.rights.read_only) {
        (true, _) => "disabled",
        (false, true) => "read",
        (false, false) => "read, write",
    };
    let projects = user.rights.projects.iter().map(|project| format!("project {project}"));
    let places: Vec<String> = projects.chain(user.rights.prefixes.clone()).collect();
    vec![
        user.name.to_string(),
        rights.to_owned(),
        if places.is_empty() { "everything of the tenant".to_owned() } else { places.join(", ") },
        files,
        bytes,
    ]
}
