//! `stoker volume`: makes, shows, changes and removes volumes.

use std::process::ExitCode;

use stoker_client::Client;
use stoker_store::{
    Class, DrainPolicy, LAKE_SCHEME, LakeMode, Order, Report, Spread, Store, TierOrder, VERSIONING_SETTING,
    VolumeInfo, VolumeOptions, VolumePolicy, WhenAlone,
};

use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::{data_key, lake, out, show, size, span};

/// What to do with volumes.
#[derive(clap::Subcommand)]
pub enum Verb {
    /// List volumes.
    Ls(LsArgs),
    /// Make a volume.
    Create(CreateArgs),
    /// Change what a volume wants; what is not named stays.
    Set(SetArgs),
    /// Show a volume.
    Show(NameArgs),
    /// Remove an empty volume. Objects in its lake stay as they are.
    Rm(RmArgs),
}

/// Arguments of `volume ls`.
#[derive(clap::Args)]
pub struct LsArgs {
    /// Print one object per line, as `volume show --json` does.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `volume create`.
#[derive(clap::Args)]
pub struct CreateArgs {
    /// Name; also the S3 bucket.
    name: String,
    /// Where it drains: the name of a lake, or s3://…, gs://…, az://…, file://…; `none` for no lake; by default a folder of its own
    /// in the node's lake.
    #[arg(long, value_name = "NAME|URL")]
    lake: Option<String>,
    /// Encrypt its bytes and the records of its names on drives: aes-256-gcm. Cannot be changed later.
    #[arg(long, value_name = "CIPHER", value_parser = parse_cipher)]
    encrypt: Option<Cipher>,
    /// What its objects in the lake are: plain, the files as they are.
    #[arg(long, value_name = "FORM", value_parser = parse_lake_form)]
    lake_form: Option<LakeForm>,
    #[command(flatten)]
    policy: PolicyArgs,
    /// Print the volume as one object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// How a volume is encrypted.
#[derive(Clone, Copy)]
enum Cipher {
    /// AES-256-GCM.
    Aes256Gcm,
}

/// What objects in the lake are.
#[derive(Clone, Copy)]
enum LakeForm {
    /// The files as they are.
    Plain,
}

/// Arguments of `volume set`.
#[derive(clap::Args)]
pub struct SetArgs {
    /// Name.
    name: String,
    #[command(flatten)]
    policy: PolicyArgs,
    /// A second lake, by its name, to which everything that is drained is copied; `none` takes it away.
    #[arg(long, value_name = "NAME")]
    replica: Option<String>,
    /// Whether versions are kept of what is replaced or deleted: on, or suspended, which keeps those that there are. It cannot be taken
    /// back altogether.
    #[arg(long, value_name = "WHAT", value_parser = parse_versioning)]
    versioning: Option<&'static str>,
    /// Print the volume as one object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `volume show`.
#[derive(clap::Args)]
pub struct NameArgs {
    /// Name.
    name: String,
    /// Print one object: name, id, created_ms, lake, policy, files, bytes.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `volume rm`.
#[derive(clap::Args)]
pub struct RmArgs {
    /// Name.
    name: String,
    #[command(flatten)]
    target: Target,
}

/// What a volume wants.
#[derive(clap::Args, Default)]
struct PolicyArgs {
    /// How it commits: one, two or three copies on different nodes, or auto (one while the node is alone, then two).
    #[arg(long, value_name = "CLASS", value_parser = parse_class)]
    class: Option<Class>,
    /// How far apart copies must be: node, tor (different switches) or power (different feeds).
    #[arg(long, value_name = "SPREAD", value_parser = parse_spread)]
    spread: Option<Spread>,
    /// What a write does that finds too few nodes: refuse, or lake (it goes on when the lake has it).
    #[arg(long, value_name = "WHAT", value_parser = parse_when_alone)]
    when_alone: Option<WhenAlone>,
    /// When files leave for the lake: always, never, on-demand, or every:N publishes of a key.
    #[arg(long, value_name = "WHEN", value_parser = crate::daemon::parse_drain)]
    drain: Option<DrainPolicy>,
    /// A file drains after it was left alone for this long.
    #[arg(long, value_name = "SPAN", value_parser = span::parse_seconds)]
    drain_quiet: Option<u32>,
    /// A file drains at the latest when its oldest undrained change is this old.
    #[arg(long, value_name = "SPAN", value_parser = span::parse_seconds)]
    drain_lag_max: Option<u32>,
    /// Most bytes of all files together; 0 for no limit.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    quota: Option<u64>,
    /// Who else writes to the lake: owned (nobody), shared, read-only (others, and Stoker must not).
    #[arg(long, value_name = "MODE", value_parser = parse_lake_mode)]
    lake_mode: Option<LakeMode>,
    /// Whether programs on the node's machine may read its drives themselves.
    #[arg(long, value_name = "BOOL")]
    leases: Option<bool>,
}

impl PolicyArgs {
    fn is_empty(&self) -> bool {
        self.class.is_none()
            && self.spread.is_none()
            && self.when_alone.is_none()
            && self.drain.is_none()
            && self.drain_quiet.is_none()
            && self.drain_lag_max.is_none()
            && self.quota.is_none()
            && self.lake_mode.is_none()
            && self.leases.is_none()
    }

    fn apply(&self, policy: VolumePolicy) -> VolumePolicy {
        VolumePolicy {
            class: self.class.unwrap_or(policy.class),
            spread: self.spread.unwrap_or(policy.spread),
            when_alone: self.when_alone.unwrap_or(policy.when_alone),
            drain: self.drain.unwrap_or(policy.drain),
            drain_quiet_s: self.drain_quiet.unwrap_or(policy.drain_quiet_s),
            drain_lag_max_s: self.drain_lag_max.unwrap_or(policy.drain_lag_max_s),
            quota_bytes: self.quota.unwrap_or(policy.quota_bytes),
            lake_mode: self.lake_mode.unwrap_or(policy.lake_mode),
            leases: self.leases.unwrap_or(policy.leases),
        }
    }
}

fn parse_versioning(text: &str) -> Result<&'static str, String> {
    match text {
        "on" | "enabled" => Ok("enabled"),
        "suspended" => Ok("suspended"),
        _ => Err("expected on or suspended; what was kept once is not forgotten by a setting".into()),
    }
}

fn parse_cipher(text: &str) -> Result<Cipher, String> {
    match text {
        "aes-256-gcm" => Ok(Cipher::Aes256Gcm),
        _ => Err("expected aes-256-gcm".into()),
    }
}

fn parse_lake_form(text: &str) -> Result<LakeForm, String> {
    match text {
        "plain" => Ok(LakeForm::Plain),
        "sealed" => Err(
            "this release does not write sealed objects; a volume without a lake (--lake none) has nothing \
                         in plain outside the nodes"
                .into(),
        ),
        _ => Err("expected plain".into()),
    }
}

fn parse_class(text: &str) -> Result<Class, String> {
    match text {
        "auto" => Ok(Class::Auto),
        "one" | "1" => Ok(Class::One),
        "two" | "2" => Ok(Class::Two),
        "three" | "3" => Ok(Class::Three),
        _ => Err("expected auto, one, two or three".into()),
    }
}

fn parse_spread(text: &str) -> Result<Spread, String> {
    match text {
        "node" => Ok(Spread::Node),
        "tor" => Ok(Spread::Tor),
        "power" => Ok(Spread::Power),
        _ => Err("expected node, tor or power".into()),
    }
}

fn parse_when_alone(text: &str) -> Result<WhenAlone, String> {
    match text {
        "refuse" => Ok(WhenAlone::Refuse),
        "lake" => Ok(WhenAlone::Lake),
        _ => Err("expected refuse or lake".into()),
    }
}

fn parse_lake_mode(text: &str) -> Result<LakeMode, String> {
    match text {
        "owned" => Ok(LakeMode::Owned),
        "shared" => Ok(LakeMode::Shared),
        "read-only" => Ok(LakeMode::ReadOnly),
        _ => Err("expected owned, shared or read-only".into()),
    }
}

/// Runs a subcommand.
pub fn run(verb: &Verb) -> Result<ExitCode, Failure> {
    match verb {
        Verb::Ls(args) => connect::run(&args.target, async |client| {
            list(&client, args.json).await?;
            Ok(ExitCode::SUCCESS)
        }),
        Verb::Create(args) => connect::run(&args.target, async |client| {
            let made = create(&client, args).await?;
            tell(&client, &made, args.json).await
        }),
        Verb::Set(args) => connect::run(&args.target, async |client| {
            if args.policy.is_empty() && args.replica.is_none() && args.versioning.is_none() {
                return Err(Failure::new("nothing to change").hint("name at least one of the options"));
            }
            if let Some(lake) = &args.replica {
                let lake = Some(lake.clone()).filter(|lake| lake != "none");
                lake::ask(&client, TierOrder::ReplicaSet { volume: args.name.clone(), lake }).await?;
            }
            if let Some(wish) = args.versioning {
                client
                    .set_volume_setting(&args.name, VERSIONING_SETTING, Some(wish.as_bytes().to_vec()))
                    .await?;
            }
            if args.policy.is_empty() {
                return tell(&client, &client.volume(&args.name).await?, args.json).await;
            }
            let policy = args.policy.apply(client.volume(&args.name).await?.policy);
            tell(&client, &client.volume_set(&args.name, policy).await?, args.json).await
        }),
        Verb::Show(args) => connect::run(&args.target, async |client| {
            tell(&client, &client.volume(&args.name).await?, args.json).await
        }),
        Verb::Rm(args) => connect::run(&args.target, async |client| {
            client.volume_delete(&args.name).await?;
            Ok(ExitCode::SUCCESS)
        }),
    }
}

/// Without options, the node's defaults count; the first step makes the volume with them, the second changes what was
/// asked for.
async fn create(client: &Client, args: &CreateArgs) -> Result<VolumeInfo, Failure> {
    let options = VolumeOptions { lake: args.lake.as_deref().map(lake_place), policy: None };
    let made = match (args.encrypt, args.lake_form) {
        (None, None | Some(LakeForm::Plain)) => client.volume_create(&args.name, options).await?,
        (Some(Cipher::Aes256Gcm), None | Some(LakeForm::Plain)) => {
            match client.operate(Order::EncryptedVolume { name: args.name.clone(), options }).await? {
                Report::Volume(made) => *made,
                _ => return Err(Failure::new("the node did not answer what it was asked")),
            }
        }
    };
    if args.policy.is_empty() {
        return Ok(made);
    }
    let policy = args.policy.apply(made.policy.clone());
    match client.volume_set(&args.name, policy).await {
        Ok(set) => Ok(set),
        Err(error) => {
            // Nothing is in it yet: the half-made volume goes away again.
            let _ = client.volume_delete(&args.name).await;
            Err(error.into())
        }
    }
}

/// What is no url is the name of a lake.
fn lake_place(text: &str) -> String {
    match text.contains(['/', ':']) || text == "none" {
        true => text.to_owned(),
        false => format!("{LAKE_SCHEME}{text}"),
    }
}

async fn tell(client: &Client, volume: &VolumeInfo, json: bool) -> Result<ExitCode, Failure> {
    if json {
        let mut value = show::plain(volume);
        value["encryption"] = show::plain(&data_key::of_volume(client, &volume.name).await);
        out::json(&value)?
    } else {
        // What `auto` comes to is the node's to say.
        let copies = match client.operate(Order::Protection).await {
            Ok(Report::Protection(all)) => {
                all.iter().find(|one| one.volume == volume.name).map(|one| one.copies)
            }
            _ => None,
        };
        let mut rows = show::volume_rows(volume, copies);
        let keys = data_key::of_volume(client, &volume.name).await;
        let mut summary = data_key::summary(keys.as_ref());
        if keys.is_some_and(|keys| keys.destroyed_ms.is_none()) && volume.lake.is_some() {
            summary.push_str("; plain in the lake");
        }
        rows.push(("encryption", summary));
        if let Ok(Some(kept)) = client.volume_setting(&volume.name, VERSIONING_SETTING).await {
            rows.push(("versions", String::from_utf8_lossy(&kept).into_owned()));
        }
        out::fields(&rows)?
    }
    Ok(ExitCode::SUCCESS)
}

/// Lists volumes; also for `stoker ls`.
pub async fn list(client: &Client, json: bool) -> Result<(), Failure> {
    let volumes = client.volumes().await?;
    if json {
        return volumes.iter().try_for_each(|volume| out::json(&show::plain(volume)));
    }
    if volumes.is_empty() {
        out::say("no volume yet; make one with `stoker volume create NAME`");
        return Ok(());
    }
    let row = |volume: &VolumeInfo| {
        vec![
            volume.name.clone(),
            show::count(volume.files, "file"),
            size::human(volume.bytes),
            format!("class {}", volume.policy.class.as_str()),
            format!("drain {}", show::policy(volume.policy.drain)),
            volume.lake.clone().unwrap_or_else(|| "no lake".to_owned()),
        ]
    };
    out::table(&volumes.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read() {
        for text in ["every:5", "every 5"] {
            assert_eq!(crate::daemon::parse_drain(text), Ok(DrainPolicy::Every(5)), "{text}");
        }
        for text in ["every:0", "every:", "every:x", "every5", "every", "sometimes"] {
            assert!(crate::daemon::parse_drain(text).is_err(), "{text}");
        }
        assert_eq!(parse_class("two"), Ok(Class::Two));
        assert_eq!(parse_lake_mode("read-only"), Ok(LakeMode::ReadOnly));
        let args = PolicyArgs { quota: Some(7), ..PolicyArgs::default() };
        assert!(!args.is_empty());
        let policy = VolumePolicy { class: Class::Three, ..VolumePolicy::default() };
        assert_eq!(args.apply(policy.clone()), VolumePolicy { quota_bytes: 7, ..policy });
    }
}
