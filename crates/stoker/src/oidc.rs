//! `stoker oidc`: the OpenID providers of a configuration, and whether they and their tokens do what they should. Needs no node that runs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;
use stoker_oidc::{Issuer, IssuerOptions, Issuers, Role, RoleName};

use crate::config::{Config, issuers};
use crate::failure::Failure;
use crate::small_file::read_small;
use crate::{clock, out};

/// What to do with providers.
#[derive(clap::Subcommand)]
pub enum Verb {
    /// List providers of a configuration, and what their users may become.
    Ls(LsArgs),
    /// Ask providers for what a node asks them, and say what a token is worth. Exit code 1 if something is not as it should be.
    Check(CheckArgs),
}

/// Arguments of `oidc ls`.
#[derive(clap::Args)]
pub struct LsArgs {
    /// The configuration of the node.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Print one object per provider: name, issuer, audiences, groups_claim, roles, console.
    #[arg(long)]
    json: bool,
}

/// Arguments of `oidc check`.
#[derive(clap::Args)]
pub struct CheckArgs {
    /// The provider by its name; all of them by default.
    name: Option<String>,
    /// The configuration of the node.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// A token, as AWS_WEB_IDENTITY_TOKEN_FILE has it: which roles it gives, and why not the others. It is not printed.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Print one object per provider: name, issuer, jwks_uri, keys, fault, and roles with a token.
    #[arg(long)]
    json: bool,
}

/// Runs a subcommand.
pub fn run(verb: &Verb) -> Result<ExitCode, Failure> {
    match verb {
        Verb::Ls(args) => list(args),
        Verb::Check(args) => check(args),
    }
}

fn read(config: &Path) -> Result<Vec<IssuerOptions>, Failure> {
    let all = issuers(&Config::read(config)?.oidc)?;
    if all.is_empty() {
        return Err(Failure::new(format!("{} has no [[oidc]]", config.display()))
            .hint("docs/access.md and deploy/stoker.toml show one"));
    }
    Ok(all)
}

fn whom(role: &Role) -> String {
    let list = |what: &str, all: &[String]| (!all.is_empty()).then(|| format!("{what} {}", all.join(", ")));
    let claims = role.claims.iter().map(|(name, pattern)| format!("{name} {pattern}"));
    let all = [list("groups", &role.groups), list("subjects", &role.subjects)].into_iter().flatten();
    all.chain(claims).collect::<Vec<_>>().join("; ")
}

fn list(args: &LsArgs) -> Result<ExitCode, Failure> {
    let mut rows = vec![["provider", "role", "is user", "for"].map(String::from).to_vec()];
    for one in read(&args.config)? {
        let console = one.console.as_ref();
        if args.json {
            let roles = one.roles.iter().map(|role| {
                json!({
                    "role": role.name.to_string(), "arn": role.name.arn(), "user": role.user, "groups": role.groups,
                    "subjects": role.subjects, "claims": role.claims.iter().cloned().collect::<std::collections::BTreeMap<_, _>>(),
                    "read_only": role.is_read_only, "prefixes": role.prefixes, "duration_max_s": role.duration_max_s,
                })
            });
            let console =
                console.map(|console| json!({ "operators": console.operators, "viewers": console.viewers }));
            out::json(&json!({
                "name": one.name, "issuer": one.issuer, "audiences": one.audiences, "groups_claim": one.groups_claim,
                "roles": roles.collect::<Vec<_>>(), "console": console,
            }))?;
            continue;
        }
        let user = |role: &Role| format!("{}/{}", role.name.tenant, role.user);
        rows.extend(
            one.roles
                .iter()
                .map(|role| vec![one.name.clone(), role.name.to_string(), user(role), whom(role)]),
        );
        if let Some(console) = console {
            for (role, groups) in [("operator", &console.operators), ("viewer", &console.viewers)] {
                if !groups.is_empty() {
                    let groups = format!("groups {}", groups.join(", "));
                    rows.push(vec![one.name.clone(), "console".to_owned(), role.to_owned(), groups]);
                }
            }
        }
    }
    if !args.json {
        out::table(&rows)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What a provider says.
struct Said {
    jwks_uri: String,
    keys: Vec<(String, &'static str)>,
}

async fn ask(issuer: &Issuer) -> Result<Said, String> {
    let discovered = issuer.discover().await?;
    if issuer.options().console.is_some()
        && (discovered.authorization_endpoint.is_none() || discovered.token_endpoint.is_none())
    {
        return Err("it has no page to log in, and [oidc.console] needs one".to_owned());
    }
    let keys = issuer.key_set().await?.list();
    Ok(Said { jwks_uri: discovered.jwks_uri.clone(), keys })
}

/// What a token is worth for each role; an error if it is none of this provider.
async fn worth(
    issuers: &Issuers,
    issuer: &Issuer,
    token: &str,
) -> Result<Vec<(RoleName, Result<String, String>)>, String> {
    let of = issuers.of_token(token).map_err(|why| why.to_string())?;
    if of.options().issuer != issuer.options().issuer {
        return Ok(Vec::new());
    }
    let now_s = i64::try_from(clock::unix_ms() / 1_000).unwrap_or(0);
    let mut names: Vec<RoleName> = issuer.options().roles.iter().map(|role| role.name.clone()).collect();
    names.dedup();
    let mut all = Vec::new();
    for name in names {
        let assumed = issuers.assume(&name, token, now_s).await;
        all.push((name, assumed.map(|assumed| assumed.user.to_string()).map_err(|why| why.to_string())));
    }
    Ok(all)
}

fn check(args: &CheckArgs) -> Result<ExitCode, Failure> {
    let options = read(&args.config)?;
    if let Some(name) = args.name.as_ref().filter(|name| !options.iter().any(|one| one.name == **name)) {
        return Err(Failure::new(format!("{} has no [[oidc]] called `{name}`", args.config.display()))
            .hint("`stoker oidc ls` lists them"));
    }
    let token = match &args.token_file {
        None => None,
        Some(file) => match read_small(file)? {
            Some(text) => Some(text.trim().to_owned()),
            None => {
                return Err(Failure::new(format!("{} is not there", file.display())).hint("check the path"));
            }
        },
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::io("runtime", &error))?;
    let issuers = Issuers::new(options);
    let is_fine = runtime.block_on(async {
        let mut is_fine = true;
        for issuer in issuers.all() {
            if args.name.as_ref().is_none_or(|name| *name == issuer.options().name) {
                is_fine &= check_one(args, &issuers, issuer, token.as_deref()).await?;
            }
        }
        Ok::<_, Failure>(is_fine)
    })?;
    Ok(if is_fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn check_one(
    args: &CheckArgs,
    issuers: &Issuers,
    issuer: &Issuer,
    token: Option<&str>,
) -> Result<bool, Failure> {
    let options = issuer.options();
    let said = ask(issuer).await;
    let worth = match (token, &said) {
        (Some(token), Ok(_)) => worth(issuers, issuer, token).await,
        _ => Ok(Vec::new()),
    };
    let fault = said.as_ref().err().or(worth.as_ref().err());
    let is_fine = fault.is_none();
    let roles = worth.as_deref().unwrap_or_default();
    if args.json {
        let keys = said.as_ref().map(|said| {
            said.keys.iter().map(|(kid, kind)| json!({ "kid": kid, "alg": kind })).collect::<Vec<_>>()
        });
        let role = |(name, user): &(RoleName, Result<String, String>)| json!({ "role": name.to_string(), "user": user.as_ref().ok(), "fault": user.as_ref().err() });
        out::json(&json!({
            "name": options.name, "issuer": options.issuer, "jwks_uri": said.as_ref().ok().map(|said| &said.jwks_uri),
            "keys": keys.unwrap_or_default(), "fault": fault, "roles": roles.iter().map(role).collect::<Vec<_>>(),
        }))?;
        return Ok(is_fine);
    }
    let mut rows = vec![vec![options.name.clone(), options.issuer.clone()]];
    if let Ok(said) = &said {
        let keys: Vec<String> = said.keys.iter().map(|(kid, kind)| format!("{kid} ({kind})")).collect();
        rows.push(vec![String::new(), format!("keys at {}: {}", said.jwks_uri, keys.join(", "))]);
    }
    for (name, user) in roles {
        rows.push(vec![
            String::new(),
            match user {
                Ok(user) => format!("{name}: the token makes user {user}"),
                Err(why) => format!("{name}: {why}"),
            },
        ]);
    }
    if let Some(fault) = fault {
        rows.push(vec![String::new(), format!("fault: {fault}")]);
    }
    out::table(&rows)?;
    Ok(is_fine)
}
