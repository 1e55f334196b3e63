//! `stoker usage`, and the quotas of tenants, projects and users: what they are is in docs/access.md.

use std::process::ExitCode;

use serde_json::{Value, json};
use stoker_store::{
    AccountInfo, AccountName, Order, PeopleChange, QuotaLimits, Report, Store, TENANT_DEFAULT, VolumeInfo,
    volume_tenant,
};

use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::tenant::change;
use crate::{out, size};

/// Limits of a tenant, a project or a user.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub struct QuotaArgs {
    /// Most bytes of all files together; 0 for no limit.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    quota_bytes: Option<u64>,
    /// Most files; 0 for no limit.
    #[arg(long, value_name = "N")]
    quota_files: Option<u64>,
    /// More bytes than this are logged and counted in metrics, and not refused; 0 for no such limit.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    soft_bytes: Option<u64>,
    /// More files than this are logged and counted in metrics, and not refused; 0 for no such limit.
    #[arg(long, value_name = "N")]
    soft_files: Option<u64>,
}

impl QuotaArgs {
    /// Whether nothing is to be changed.
    pub fn is_empty(&self) -> bool {
        let QuotaArgs { quota_bytes, quota_files, soft_bytes, soft_files } = self;
        [quota_bytes, quota_files, soft_bytes, soft_files].into_iter().all(Option::is_none)
    }

    fn apply(&self, limits: QuotaLimits) -> QuotaLimits {
        QuotaLimits {
            bytes: self.quota_bytes.unwrap_or(limits.bytes),
            files: self.quota_files.unwrap_or(limits.files),
            soft_bytes: self.soft_bytes.unwrap_or(limits.soft_bytes),
            soft_files: self.soft_files.unwrap_or(limits.soft_files),
        }
    }
}

/// Arguments of `usage`.
#[derive(clap::Args)]
pub struct UsageArgs {
    /// Only of this tenant.
    tenant: Option<String>,
    /// Print one object per line: kind, name, tenant, files, bytes, quota_bytes, quota_files, soft_bytes, soft_files, above_soft.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// What everybody has and may have.
pub async fn accounts(client: &impl Store) -> Result<Vec<AccountInfo>, Failure> {
    match client.operate(Order::Accounts).await? {
        Report::Accounts(accounts) => Ok(accounts),
        _ => Err(Failure::confused()),
    }
}

/// What one of them has and may have.
pub fn of(accounts: &[AccountInfo], account: AccountName) -> AccountInfo {
    let nothing = |account| AccountInfo { account, limits: QuotaLimits::default(), files: 0, bytes: 0 };
    accounts.iter().find(|info| info.account == account).cloned().unwrap_or_else(|| nothing(account))
}

/// Changes what is named of a quota.
pub async fn set(client: &impl Store, account: AccountName, args: &QuotaArgs) -> Result<ExitCode, Failure> {
    let limits = args.apply(of(&accounts(client).await?, account.clone()).limits);
    change(client, PeopleChange::Quota { account, limits }).await
}

/// Says that a command to change something names no change.
pub fn nothing() -> Failure {
    Failure::new("nothing to change").hint("name a limit, as --quota-bytes 10TiB; `--help` lists them")
}

/// Fields of a quota, for objects that people and programs read.
pub fn fields(info: &AccountInfo) -> [(&'static str, Value); 7] {
    let AccountInfo { limits, files, bytes, .. } = info;
    [
        ("files", json!(files)),
        ("bytes", json!(bytes)),
        ("quota_bytes", json!(limits.bytes)),
        ("quota_files", json!(limits.files)),
        ("soft_bytes", json!(limits.soft_bytes)),
        ("soft_files", json!(limits.soft_files)),
        ("above_soft", json!(limits.is_soft_exceeded(*files, *bytes))),
    ]
}

/// What somebody has, of what they may have.
pub fn words(info: &AccountInfo) -> [String; 2] {
    let of = |used: String, limit: Option<String>| match limit {
        Some(limit) => format!("{used} of {limit}"),
        None => used,
    };
    let AccountInfo { limits, files, bytes, .. } = info;
    let most_files = (limits.files > 0).then(|| limits.files.to_string());
    let most_bytes = (limits.bytes > 0).then(|| size::human(limits.bytes));
    [
        of(files.to_string(), most_files) + " files",
        of(size::human(*bytes), most_bytes)
            + if limits.is_soft_exceeded(*files, *bytes) { ", above the soft limit" } else { "" },
    ]
}

/// Runs `stoker usage`.
pub fn run_usage(args: &UsageArgs) -> Result<ExitCode, Failure> {
    connect::run(&args.target, async |client| {
        let (mut all, volumes) = (accounts(&client).await?, client.volumes().await?);
        // It has no counters of its own.
        all.push(default_tenant(&volumes));
        if let Some(tenant) = &args.tenant {
            all.retain(|info| info.account.tenant() == tenant);
            if !all.iter().any(|info| matches!(&info.account, AccountName::Tenant(name) if name == tenant)) {
                return Err(Failure::new(format!("there is no tenant `{tenant}`"))
                    .hint("`stoker tenant list` lists them"));
            }
        }
        all.sort_by(|one, other| {
            (one.account.tenant(), &one.account).cmp(&(other.account.tenant(), &other.account))
        });
        match args.json {
            true => all.iter().try_for_each(|info| {
                let mut shape = json!({
                    "kind": info.account.kind(),
                    "name": info.account.to_string(),
                    "tenant": info.account.tenant(),
                });
                fields(info).into_iter().for_each(|(name, value)| shape[name] = value);
                out::json(&shape)
            })?,
            false => {
                let row = |info: &AccountInfo| {
                    let [files, bytes] = words(info);
                    vec![info.account.kind().to_owned(), info.account.to_string(), files, bytes]
                };
                out::table(&all.iter().map(row).collect::<Vec<_>>())?;
            }
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// The default tenant: the sum of its volumes, without limits.
pub fn default_tenant(volumes: &[VolumeInfo]) -> AccountInfo {
    let own = || volumes.iter().filter(|volume| volume_tenant(&volume.name).0 == TENANT_DEFAULT);
    AccountInfo {
        account: AccountName::Tenant(TENANT_DEFAULT.to_owned()),
        limits: QuotaLimits::default(),
        files: own().map(|volume| volume.files).sum(),
        bytes: own().map(|volume| volume.bytes).sum(),
    }
}
