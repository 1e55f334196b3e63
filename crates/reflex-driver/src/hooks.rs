//! Keeps jobs away from a node that is out, through whoever places jobs: Slurm, Kubernetes, or a program of the operator.
//!
//! Only what was done here is undone. A node that somebody else drained or cordoned is left as it is, before and after.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use stoker_reflex::config::{self, HookKind, Slo, check_host};

use super::program::{self, Failed, Limits, Output};

/// Begins every reason, and tells ours from those of others.
const MARK: &str = "stoker:";
/// The annotation of a node of Kubernetes that we cordoned.
const ANNOTATION: &str = "stoker.dev/cordoned";
/// Characters of a reason. Slurm and `kubectl describe` show it in one line.
const REASON_MAX: usize = 200;
/// What is kept of what a program says.
const WORDS_BYTES_MAX: usize = 4 << 10;
/// What is kept of a node as a scheduler describes it; Kubernetes lists its images.
const NODE_BYTES_MAX: usize = 1 << 20;

/// Tells a scheduler.
pub struct Hook {
    kind: Kind,
    timeout: Duration,
    /// Names in the scheduler, by names here.
    names: BTreeMap<String, String>,
}

enum Kind {
    Slurm { scontrol: PathBuf },
    Kubernetes { kubectl: PathBuf },
    Command { cordon: Vec<String>, uncordon: Vec<String> },
}

impl Hook {
    /// The one that is configured, if there is one.
    pub fn new(slo: &Slo) -> Option<Hook> {
        let hook: &config::Hook = slo.hook.as_ref()?;
        let program = |usual: &str| {
            hook.program.as_ref().map_or_else(|| usual.into(), |program| PathBuf::from(program.get_ref()))
        };
        let words = |command: &Option<toml::Spanned<Vec<String>>>| {
            command.as_ref().map(|command| command.get_ref().clone()).unwrap_or_default()
        };
        let kind = match hook.kind.get_ref() {
            HookKind::Slurm => Kind::Slurm { scontrol: program("scontrol") },
            HookKind::Kubernetes => Kind::Kubernetes { kubectl: program("kubectl") },
            HookKind::Command => {
                Kind::Command { cordon: words(&hook.cordon), uncordon: words(&hook.uncordon) }
            }
        };
        let names = hook.names.iter().map(|(name, host)| (name.clone(), host.get_ref().clone()));
        let timeout = Duration::from_secs(hook.timeout_s.get_ref().get());
        Some(Hook { kind, timeout, names: names.collect() })
    }

    /// Keeps jobs away from a node; says what was done. Doing it twice is as once.
    pub async fn cordon(&self, node_name: &str, reason: &str) -> Result<String, String> {
        let (host, reason) = (self.host(node_name)?, marked(reason));
        match &self.kind {
            Kind::Slurm { scontrol } => self.drain(scontrol, host, &reason).await,
            Kind::Kubernetes { kubectl } => self.kube_cordon(kubectl, host, &reason).await,
            Kind::Command { cordon, .. } => self.command(cordon, host, &reason).await,
        }
    }

    /// Lets jobs run there again, if it was us who kept them away; says what was done.
    pub async fn uncordon(&self, node_name: &str) -> Result<String, String> {
        let host = self.host(node_name)?;
        match &self.kind {
            Kind::Slurm { scontrol } => self.undrain(scontrol, host).await,
            Kind::Kubernetes { kubectl } => self.kube_uncordon(kubectl, host).await,
            Kind::Command { uncordon, .. } => self.command(uncordon, host, &marked("it is sound")).await,
        }
    }

    /// The name in the scheduler, which becomes a word of a command.
    fn host<'a>(&'a self, node_name: &'a str) -> Result<&'a str, String> {
        let host = self.names.get(node_name).map_or(node_name, String::as_str);
        check_host(host).map_err(|why| format!("`{}`: {why}", program::one_line(host.as_bytes())))?;
        Ok(host)
    }

    async fn drain(&self, scontrol: &Path, host: &str, reason: &str) -> Result<String, String> {
        let node = self.slurm_node(scontrol, host).await?;
        if node.is_drained {
            return Ok(match node.is_ours() {
                true => format!("{host} is drained already"),
                false => format!("somebody else drained {host}: {}", node.reason),
            });
        }
        let words = ["update", &format!("NodeName={host}"), "State=DRAIN", &format!("Reason={reason}")];
        self.done(scontrol, &words).await?;
        Ok(format!("{host} is drained"))
    }

    async fn undrain(&self, scontrol: &Path, host: &str) -> Result<String, String> {
        let node = self.slurm_node(scontrol, host).await?;
        if !node.is_drained {
            return Ok(format!("{host} is not drained"));
        }
        if !node.is_ours() {
            return Ok(format!("somebody else drained {host}, it stays so: {}", node.reason));
        }
        // RESUME would also bring a node back that is down.
        self.done(scontrol, &["update", &format!("NodeName={host}"), "State=UNDRAIN"]).await?;
        Ok(format!("{host} is not drained any more"))
    }

    async fn slurm_node(&self, scontrol: &Path, host: &str) -> Result<SlurmNode, String> {
        let output = self.run(scontrol, &["show", "node", "-o", host], NODE_BYTES_MAX).await?;
        let text = String::from_utf8_lossy(&output.stdout);
        SlurmNode::parse(&text, host)
            .ok_or_else(|| format!("{}: no node in its answer: {}", scontrol.display(), output.words()))
    }

    async fn kube_cordon(&self, kubectl: &Path, host: &str, reason: &str) -> Result<String, String> {
        let node = self.kube_node(kubectl, host).await?;
        match (node.is_cordoned(), node.is_ours()) {
            (true, true) => return Ok(format!("{host} is cordoned already")),
            (true, false) => return Ok(format!("somebody else cordoned {host}")),
            (false, _) => {}
        }
        // First, so that whatever happens in between a cordon of ours is known as one.
        let annotation = format!("{ANNOTATION}={reason}");
        self.done(kubectl, &["annotate", "--overwrite", "node", host, &annotation]).await?;
        self.done(kubectl, &["cordon", host]).await?;
        Ok(format!("{host} is cordoned"))
    }

    async fn kube_uncordon(&self, kubectl: &Path, host: &str) -> Result<String, String> {
        let node = self.kube_node(kubectl, host).await?;
        if !node.is_ours() {
            return Ok(match node.is_cordoned() {
                true => format!("somebody else cordoned {host}, it stays so"),
                false => format!("{host} is not cordoned"),
            });
        }
        if node.is_cordoned() {
            self.done(kubectl, &["uncordon", host]).await?;
        }
        self.done(kubectl, &["annotate", "node", host, &format!("{ANNOTATION}-")]).await?;
        Ok(format!("{host} is not cordoned any more"))
    }

    async fn kube_node(&self, kubectl: &Path, host: &str) -> Result<KubeNode, String> {
        let output = self.run(kubectl, &["get", "node", host, "-o", "json"], NODE_BYTES_MAX).await?;
        serde_json::from_slice(&output.stdout)
            .map_err(|error| format!("{}: its answer makes no sense: {error}", kubectl.display()))
    }

    async fn command(&self, command: &[String], host: &str, reason: &str) -> Result<String, String> {
        let Some((program, words)) = command.split_first() else { return Err("no command".into()) };
        // The reason last: what is in it is not replaced again.
        let filled: Vec<String> =
            words.iter().map(|word| word.replace("{node}", host).replace("{reason}", reason)).collect();
        let output = self.run(Path::new(program), &filled, WORDS_BYTES_MAX).await?;
        Ok(match program::one_line(&output.stdout) {
            said if said.is_empty() => format!("{program} is done with {host}"),
            said => said,
        })
    }

    async fn done(&self, program: &Path, words: &[&str]) -> Result<(), String> {
        self.run(program, words, WORDS_BYTES_MAX).await.map(drop)
    }

    async fn run(
        &self,
        program: &Path,
        words: &[impl AsRef<std::ffi::OsStr>],
        bytes: usize,
    ) -> Result<Output, String> {
        let name = program.display();
        match program::run(program, words, Limits { time: self.timeout, bytes }).await {
            Ok(output) if output.status.success() => Ok(output),
            Ok(output) => Err(format!("{name}: {}", output.words())),
            Err(Failed::Missing) => Err(format!("{name}: there is no such program")),
            Err(Failed::Other(why)) => Err(why),
        }
    }
}

/// A reason in one line, with our mark. Slurm takes quotes away.
fn marked(reason: &str) -> String {
    let plain = program::one_line(reason.as_bytes()).replace('"', "'");
    format!("{MARK} {plain}").chars().take(REASON_MAX).collect()
}

/// What matters of `scontrol show node -o`.
struct SlurmNode {
    is_drained: bool,
    reason: String,
}

impl SlurmNode {
    /// `NodeName=gpu-07 Arch=x86_64 ... State=IDLE+DRAIN ... Reason=stoker: it is bad [root@2026-01-01T00:00:00]`
    fn parse(text: &str, host: &str) -> Option<SlurmNode> {
        let line =
            text.lines().find(|line| line.split_whitespace().next() == Some(&format!("NodeName={host}")))?;
        let state = line.split_whitespace().find_map(|field| field.strip_prefix("State="))?;
        // A reason may hold anything, also what looks like a field; it comes after the fields that matter here.
        let reason = line.split_once(" Reason=").map_or("", |(_, rest)| rest.trim());
        let is_drained = state.split('+').any(|flag| flag.starts_with("DRAIN"));
        Some(SlurmNode { is_drained, reason: program::one_line(reason.as_bytes()) })
    }

    fn is_ours(&self) -> bool {
        self.reason.starts_with(MARK)
    }
}

/// What matters of a node of Kubernetes.
#[derive(Deserialize)]
struct KubeNode {
    metadata: KubeMetadata,
    #[serde(default)]
    spec: KubeSpec,
}

#[derive(Deserialize)]
struct KubeMetadata {
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Deserialize, Default)]
struct KubeSpec {
    #[serde(default)]
    unschedulable: bool,
}

impl KubeNode {
    fn is_cordoned(&self) -> bool {
        self.spec.unschedulable
    }

    fn is_ours(&self) -> bool {
        self.metadata.annotations.contains_key(ANNOTATION)
    }
}

#[cfg(test)]
mod tests;
