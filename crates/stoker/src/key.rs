//! `stoker key`: access keys for S3.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use stoker_node::AuthorityChange;
use stoker_store::{
    Access, AccessKey, ErrorKind, Order, Report, Store, StoreError, Subject, TENANT_DEFAULT, UserName,
    full_volume_name, owner_entry, split_owner,
};

use crate::address::Address;
use crate::connect::{self, Target};
use crate::daemon::place::Place;
use crate::daemon::{self, Credentials};
use crate::failure::Failure;
use crate::{clock, out, span};

/// What to do with access keys.
#[derive(clap::Subcommand)]
pub enum Verb {
    /// List access keys, without their secrets.
    Ls(LsArgs),
    /// Make an access key; prints its secret.
    Create(CreateArgs),
    /// Show an access key with its secret.
    Show(NameArgs),
    /// Remove an access key; whoever uses it is refused from then on.
    Rm(NameArgs),
    /// Replace an access key or the join tokens, while everything runs, or the authority of stopped nodes.
    Rotate(RotateArgs),
}

/// Arguments of `key ls`.
#[derive(clap::Args)]
pub struct LsArgs {
    /// Print one object per line: access_key, read_only, prefixes, uid, gid, created, and expires where it does.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `key create`.
#[derive(clap::Args)]
pub struct CreateArgs {
    /// May not change anything.
    #[arg(long)]
    read_only: bool,
    /// The user that it belongs to, as TENANT/USER: it may do what they may do. By default it is nobody's, in the default tenant.
    #[arg(long, value_name = "TENANT/USER", value_parser = crate::user::parse)]
    user: Option<UserName>,
    /// Only this VOLUME or VOLUME/PREFIX; can be repeated.
    #[arg(long, value_name = "VOLUME[/PREFIX]")]
    prefix: Vec<Address>,
    /// User that its files belong to.
    #[arg(long, default_value_t = 0)]
    uid: u32,
    /// Group that its files belong to.
    #[arg(long, default_value_t = 0)]
    gid: u32,
    /// How long it works, as 12h or 30d; without it, as long as it is there. A key that replaces it lives as long.
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    expires: Option<Duration>,
    /// Print one object, secret_key included.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `key show` and `key rm`.
#[derive(clap::Args)]
pub struct NameArgs {
    /// The public part of the key.
    access_key: String,
    /// Print one object, secret_key included.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `key rotate`.
#[derive(clap::Args)]
pub struct RotateArgs {
    /// The public part of the key that is to go.
    #[arg(required_unless_present_any = ["join_token", "authority"])]
    access_key: Option<String>,
    /// How long the old key works on, so that whoever uses it has time to change; 0s for not at all.
    #[arg(long, value_name = "SPAN", default_value = "24h", value_parser = span::parse)]
    grace: Duration,
    /// Revoke every join token and make a new one, for one node within an hour. Nodes that joined stay.
    #[arg(long, conflicts_with = "access_key")]
    join_token: bool,
    /// Replace the certificate authority of the cluster. All its nodes have to be stopped, and each gets this command with the same
    /// FILE before it starts again: the first one makes it, the others take it from there.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["access_key", "join_token"])]
    authority: Option<PathBuf>,
    /// Print one object: the new key, secret_key included, and old_until; or join_token.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Runs a subcommand.
pub fn run(verb: &Verb) -> Result<ExitCode, Failure> {
    match verb {
        Verb::Ls(args) => connect::run(&args.target, async |client| {
            let (keys, ends) = (client.access_keys().await?, ends(&client).await);
            if args.json {
                keys.iter().try_for_each(|key| out::json(&shape(key, end(&ends, key), Secret::Hidden)))?;
            } else {
                out::table(&keys.iter().map(|key| row(key, end(&ends, key))).collect::<Vec<_>>())?;
            }
            Ok(ExitCode::SUCCESS)
        }),
        Verb::Create(args) => connect::run(&args.target, async |client| {
            if let Some(name) = &args.user
                && !crate::tenant::people(&client).await?.users.iter().any(|user| user.name == *name)
            {
                return Err(
                    Failure::new(format!("there is no user `{name}`")).hint("`stoker user create` makes one")
                );
            }
            let key = make(args)?;
            let Some(lifetime) = args.expires else {
                client.access_key_put(key.clone()).await?;
                return tell(&key, None, args.json);
            };
            let lifetime_ms = u64::try_from(lifetime.as_millis()).unwrap_or(u64::MAX);
            let order = Order::KeyCreate { key, lifetime_ms: Some(lifetime_ms) };
            let Report::Key(key) = client.operate(order).await? else { return Err(Failure::confused()) };
            tell(&key, Some(key.created_ms.saturating_add(lifetime_ms)), args.json)
        }),
        Verb::Show(args) => connect::run(&args.target, async |client| {
            let key = client.access_key(&args.access_key).await?;
            let key = key.ok_or_else(|| missing(&args.access_key))?;
            tell(&key, end(&ends(&client).await, &key), args.json)
        }),
        Verb::Rotate(args) => rotate(args),
        Verb::Rm(args) => connect::run(&args.target, async |client| {
            if client.access_key(&args.access_key).await?.is_none() {
                return Err(missing(&args.access_key));
            }
            client.access_key_delete(&args.access_key).await?;
            Ok(ExitCode::SUCCESS)
        }),
    }
}

fn rotate_authority(args: &RotateArgs, file: &Path) -> Result<ExitCode, Failure> {
    let elsewhere = || {
        Failure::new("the authority is changed in the directory of a stopped node").hint("name it with --dir")
    };
    let place = Place::of_node(&args.target.folder()?.ok_or_else(elsewhere)?)?;
    let name = file.display();
    out::say(match stoker_node::authority_rotate(place.dir(), file)? {
        AuthorityChange::Made => {
            format!("{name} has a new authority, and this node too: run this with it on every other node")
        }
        AuthorityChange::Taken => format!("this node has the authority of {name}"),
        AuthorityChange::Known => format!("this node had the authority of {name} already"),
    });
    out::say("start nodes when all of them have it, then remove the file".to_owned());
    Ok(ExitCode::SUCCESS)
}

fn rotate(args: &RotateArgs) -> Result<ExitCode, Failure> {
    if let Some(file) = &args.authority {
        return rotate_authority(args, file);
    }
    connect::run(&args.target, async |client| {
        let Some(access_key) = args.access_key.clone() else {
            let Report::JoinToken(token) = client.operate(Order::JoinTokenRotate).await? else {
                return Err(Failure::confused());
            };
            match args.json {
                true => out::json(&json!({ "join_token": token }))?,
                false => out::line(token)?,
            }
            return Ok(ExitCode::SUCCESS);
        };
        let grace_ms = u64::try_from(args.grace.as_millis()).unwrap_or(u64::MAX);
        let order = Order::KeyRotate { access_key: access_key.clone(), grace_ms };
        let Report::Key(key) = client.operate(order).await? else { return Err(Failure::confused()) };
        if let Some(dir) = args.target.folder()? {
            daemon::replace_credentials(&dir, &access_key, &key)?;
        }
        let until = clock::rfc3339(clock::unix_ms().saturating_add(grace_ms));
        if args.json {
            let mut shape = shape(&key, end(&ends(&client).await, &key), Secret::Shown);
            shape["old_until"] = json!(until);
            out::json(&shape)?;
            return Ok(ExitCode::SUCCESS);
        }
        tell(&key, end(&ends(&client).await, &key), args.json)?;
        out::say(format!("{access_key} works until {until}"));
        Ok(ExitCode::SUCCESS)
    })
}

fn missing(access_key: &str) -> Failure {
    let message = format!("there is no access key `{access_key}`");
    StoreError::about(ErrorKind::NotFound, Subject::AccessKey, message).into()
}

fn make(args: &CreateArgs) -> Result<AccessKey, Failure> {
    let tenant = args.user.as_ref().map_or(TENANT_DEFAULT, |name| &name.tenant);
    let prefix = |address: &Address| match (full_volume_name(tenant, &address.volume), address.path.as_str())
    {
        (volume, "") => volume,
        (volume, path) => format!("{volume}/{path}"),
    };
    let owner = args.user.iter().map(owner_entry);
    let access = Access {
        read_only: args.read_only,
        prefixes: owner.chain(args.prefix.iter().map(prefix)).collect(),
        uid: args.uid,
        gid: args.gid,
    };
    let Credentials { access_key, secret_key } = Credentials::random()?;
    Ok(AccessKey { access_key, secret_key, access, created_ms: clock::unix_ms() })
}

enum Secret {
    Shown,
    Hidden,
}

/// When keys stop to work. A node of an earlier release does not tell.
async fn ends(client: &impl Store) -> Vec<(String, u64)> {
    match client.operate(Order::KeyTimes).await {
        Ok(Report::KeyTimes(times)) => times,
        _ => Vec::new(),
    }
}

fn end(ends: &[(String, u64)], key: &AccessKey) -> Option<u64> {
    ends.iter().find(|(access_key, _)| *access_key == key.access_key).map(|(_, end_ms)| *end_ms)
}

fn shape(key: &AccessKey, end_ms: Option<u64>, secret: Secret) -> Value {
    let (owner, prefixes) = split_owner(&key.access.prefixes);
    let mut value = json!({
        "access_key": key.access_key,
        "read_only": key.access.read_only,
        "prefixes": prefixes,
        "uid": key.access.uid,
        "gid": key.access.gid,
        "created": clock::rfc3339(key.created_ms),
    });
    if let Some(owner) = owner {
        value["user"] = owner.to_string().into();
    }
    if let Some(end_ms) = end_ms {
        value["expires"] = clock::rfc3339(end_ms).into();
    }
    if let Secret::Shown = secret {
        value["secret_key"] = key.secret_key.clone().into();
    }
    value
}

fn scope(access: &Access) -> String {
    let (owner, prefixes) = split_owner(&access.prefixes);
    match (owner, prefixes.is_empty()) {
        (None, true) => "everything".to_owned(),
        (None, false) => prefixes.join(", "),
        (Some(owner), true) => format!("what {owner} may do"),
        (Some(owner), false) => format!("what {owner} may do in {}", prefixes.join(", ")),
    }
}

fn row(key: &AccessKey, end_ms: Option<u64>) -> Vec<String> {
    let rights = if key.access.read_only { "read" } else { "read, write" };
    let owner = format!("{}:{}", key.access.uid, key.access.gid);
    vec![
        key.access_key.clone(),
        rights.to_owned(),
        owner,
        clock::rfc3339(key.created_ms),
        end_ms.map_or_else(
            || "does not expire".to_owned(),
            |end_ms| format!("until {}", clock::rfc3339(end_ms)),
        ),
        scope(&key.access),
    ]
}

fn tell(key: &AccessKey, end_ms: Option<u64>, json: bool) -> Result<ExitCode, Failure> {
    if json {
        out::json(&shape(key, end_ms, Secret::Shown))?;
        return Ok(ExitCode::SUCCESS);
    }
    let rights = if key.access.read_only { "read" } else { "read, write" };
    let mut fields = vec![
        ("access key", key.access_key.clone()),
        ("secret key", key.secret_key.clone()),
        ("may", format!("{rights}: {}", scope(&key.access))),
        ("owner", format!("{}:{}", key.access.uid, key.access.gid)),
        ("made", clock::rfc3339(key.created_ms)),
    ];
    fields.extend(end_ms.map(|end_ms| ("works until", clock::rfc3339(end_ms))));
    out::fields(&fields)?;
    Ok(ExitCode::SUCCESS)
}
