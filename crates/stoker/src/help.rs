//! What `--help` says beside the descriptions of arguments: verbs in groups, and an example for each. Tests hold that no verb is
//! left out, and that the program takes every example. (D105)

use clap::Command;

/// Verbs by what they are for, in the order in which somebody meets them.
pub const GROUPS: &[(&str, &[&str])] = &[
    ("Start", &["demo", "up", "join", "serve", "witness"]),
    (
        "Data",
        &[
            "put", "get", "ls", "stat", "cp", "mv", "rm", "versions", "mount", "umount", "csi", "volume",
            "lake", "policy", "set", "pack", "seal", "stage", "drain", "wait", "explain", "conflict",
        ],
    ),
    ("Jobs", &["job", "log", "logs", "qos"]),
    ("Access", &["key", "tenant", "project", "user", "usage", "oidc", "data-key"]),
    ("Cluster", &["status", "top", "risk", "node", "rebuild", "catalog", "cluster", "upgrade", "join-token"]),
    ("Drives", &["drive", "ring"]),
    ("Operations", &["config", "doctor", "gate", "slo", "audit", "support-bundle"]),
    ("Measure", &["plan", "bench"]),
];

/// Examples of verbs, by the words behind the program's name.
pub const EXAMPLES: &[(&str, &[&str])] = &[
    ("up", &["stoker up", "stoker up --nodes 3 --dir /mnt/nvme0/stoker"]),
    ("join", &["STOKER_JOIN_TOKEN=... stoker join 10.0.0.1:9002"]),
    (
        "witness",
        &["STOKER_JOIN_TOKEN=... stoker witness 10.0.0.1:9002", "stoker witness --dir /var/lib/stoker"],
    ),
    (
        "qos set",
        &[
            "stoker qos set --job train-7 --floor 2GiB --latency interactive",
            "stoker qos set --tenant acme --ceiling 500MiB --weight 50",
        ],
    ),
    ("qos ls", &["stoker qos ls"]),
    ("qos show", &["stoker qos show train-7"]),
    ("qos unset", &["stoker qos unset train-7"]),
    ("join-token create", &["stoker join-token create --uses 3 --ttl 2h"]),
    ("join-token ls", &["stoker join-token ls"]),
    ("join-token revoke", &["stoker join-token revoke 3f2a"]),
    ("demo", &["stoker demo", "stoker demo --dir /mnt/nvme0 --size 4GiB --keep"]),
    ("serve", &["stoker serve --config /etc/stoker/stoker.toml"]),
    ("put", &["stoker put model.bin data/model.bin", "tar c photos | stoker put - data/photos.tar"]),
    ("get", &["stoker get data/model.bin .", "stoker get -r data/run-7/ ./run-7"]),
    ("ls", &["stoker ls", "stoker ls data/run-7/"]),
    ("rm", &["stoker rm data/old.bin"]),
    ("versions ls", &["stoker versions ls data/run-7/"]),
    ("versions restore", &["stoker versions restore data/model.bin"]),
    ("versions rm", &["stoker versions rm data/model.bin 0000019a9d3c5e2000000000000000000000f00d"]),
    ("cp", &["stoker cp stoker://data/a.bin stoker://data/b.bin"]),
    ("mv", &["stoker mv data/a.bin data/b.bin"]),
    ("stat", &["stoker stat data/model.bin"]),
    ("mount", &["stoker mount data /mnt/data"]),
    ("umount", &["stoker umount /mnt/data"]),
    ("csi controller", &["stoker csi controller --endpoint unix:///csi/csi.sock"]),
    ("csi node", &["stoker csi node --endpoint unix:///csi/csi.sock --node-id gpu-01"]),
    ("csi all", &["stoker csi all --endpoint unix:///run/stoker/csi.sock"]),
    ("csi probe", &["stoker csi probe --endpoint unix:///csi/csi.sock"]),
    ("oidc ls", &["stoker oidc ls --config /etc/stoker/stoker.toml"]),
    (
        "oidc check",
        &[
            "stoker oidc check --config /etc/stoker/stoker.toml",
            "stoker oidc check corp --config /etc/stoker/stoker.toml --token-file /run/secrets/token",
        ],
    ),
    ("audit query", &["stoker audit query --path data/run-7/ --from 2026-11-19 --result denied"]),
    ("audit verify", &["stoker audit verify", "stoker audit verify --files ./copy"]),
    (
        "job submit",
        &["stoker job submit train.yaml --id train-7 --start-in 10m", "stoker job submit --script job.sh"],
    ),
    ("job check", &["stoker job check train.yaml", "stoker job check --script job.sh"]),
    ("job show", &["stoker job show train-7", "stoker job show acme/train-7 --json"]),
    ("job ls", &["stoker job ls", "stoker job ls --all --state failed"]),
    ("job cancel", &["stoker job cancel train-7 --reason obsolete"]),
    ("job wait", &["stoker job wait train-7 --until ready --timeout 10m"]),
    ("job start", &["stoker job start train-7 --nodes gpu-01,gpu-02"]),
    ("job end", &["stoker job end train-7", "stoker job end train-7 --failed --reason exit-code-1"]),
    ("job readiness", &["stoker job readiness train-7 --nodes gpu-01,gpu-02"]),
    (
        "log pipe",
        &[
            "python3 train.py | stoker log pipe --job train-7 --tee",
            "make 2>&1 | stoker log pipe --to data/builds/7 --tee",
        ],
    ),
    (
        "logs",
        &["stoker logs train-7 --follow", "stoker logs train-7 --stream stderr --since 10m --grep Error"],
    ),
    ("wait", &["stoker wait data/model.bin --drained --timeout 5m"]),
    ("volume ls", &["stoker volume ls"]),
    (
        "volume create",
        &[
            "stoker volume create ckpt --class two --quota 10TiB",
            "stoker volume create patients --encrypt aes-256-gcm",
        ],
    ),
    (
        "volume set",
        &["stoker volume set ckpt --drain on-demand", "stoker volume set ckpt --replica frankfurt"],
    ),
    (
        "lake add",
        &[
            "stoker lake add zurich --url s3://bucket/stoker --access-key AKIA... --secret-key-file key.txt",
            "stoker lake add frankfurt --url s3://other --lake-endpoint http://10.0.0.9:8333 --cost-gb-month 0.023",
        ],
    ),
    ("lake set", &["stoker lake set zurich --access-key AKIB... --secret-key-file new.txt"]),
    ("lake check", &["stoker lake check zurich"]),
    ("lake ls", &["stoker lake ls"]),
    ("lake rm", &["stoker lake rm zurich"]),
    ("lake replicas", &["stoker lake replicas", "stoker lake replicas ckpt --json"]),
    ("lake promote", &["stoker lake promote ckpt --to frankfurt"]),
    ("lake lacking", &["stoker lake lacking ckpt"]),
    (
        "policy apply",
        &["stoker policy apply tidy.toml --dry-run", "stoker policy apply tidy.toml --run --name tidy"],
    ),
    ("policy ls", &["stoker policy ls"]),
    ("policy moves", &["stoker policy moves tidy"]),
    ("policy rm", &["stoker policy rm tidy"]),
    ("volume show", &["stoker volume show ckpt"]),
    ("volume rm", &["stoker volume rm scratch"]),
    ("set put", &["stoker set put ckpt/step-1000/ ./step-1000"]),
    ("set begin", &["stoker set begin ckpt/step-1000/ --shards 8 --owner job-17"]),
    ("set add", &["stoker set add ckpt/step-1000/ rank-0.pt --shard 0"]),
    ("set publish", &["stoker set publish ckpt/step-1000/"]),
    ("set abort", &["stoker set abort ckpt/step-1000/"]),
    ("set status", &["stoker set status ckpt/step-1000/"]),
    ("set ls", &["stoker set ls ckpt"]),
    ("set latest", &["stoker set latest ckpt/"]),
    ("key ls", &["stoker key ls"]),
    (
        "key create",
        &["stoker key create --read-only --prefix data/train/", "stoker key create --user acme/alice"],
    ),
    ("key show", &["stoker key show STK4EXAMPLE"]),
    ("key rm", &["stoker key rm STK4EXAMPLE"]),
    ("key rotate", &["stoker key rotate STK4EXAMPLE"]),
    ("tenant create", &["stoker tenant create acme"]),
    ("tenant list", &["stoker tenant list"]),
    ("tenant set", &["stoker tenant set acme --quota-bytes 10TiB --soft-bytes 8TiB"]),
    ("usage", &["stoker usage", "stoker usage acme --json"]),
    ("tenant delete", &["stoker tenant delete acme"]),
    ("project create", &["stoker project create acme/vision"]),
    ("project list", &["stoker project list"]),
    ("project set", &["stoker project set acme/vision --quota-files 5000000"]),
    ("project delete", &["stoker project delete acme/vision"]),
    ("user create", &["stoker user create acme/alice --project vision"]),
    ("user list", &["stoker user list --tenant acme"]),
    ("user set", &["stoker user set acme/alice --disabled true"]),
    ("user token", &["stoker user token acme/alice"]),
    ("user delete", &["stoker user delete acme/alice"]),
    ("data-key ls", &["stoker data-key ls"]),
    ("data-key rotate", &["stoker data-key rotate patients"]),
    ("data-key destroy", &["stoker data-key destroy patients --lose-data"]),
    ("pack", &["stoker pack ./images data/images --shard-bytes 1GiB"]),
    ("seal", &["stoker seal data/images --to data/images.seal"]),
    ("status", &["stoker status", "stoker status --json"]),
    ("top", &["stoker top", "stoker top --once --interval 5s"]),
    ("explain", &["stoker explain data/model.bin"]),
    ("explain slow", &["stoker explain slow run.json"]),
    ("conflict ls", &["stoker conflict ls"]),
    ("conflict resolve", &["stoker conflict resolve data/model.bin keep-both"]),
    ("drain", &["stoker drain data/run-7/"]),
    ("stage", &["stoker stage -r data/train/"]),
    ("catalog status", &["stoker catalog status"]),
    ("catalog promote", &["stoker catalog promote --dir /var/lib/stoker"]),
    ("catalog detach", &["stoker catalog detach node-3"]),
    ("catalog backup", &["stoker catalog backup catalog.backup"]),
    ("catalog restore", &["stoker catalog restore catalog.backup --dir /var/lib/stoker"]),
    ("catalog salvage", &["stoker catalog salvage --dir /var/lib/stoker"]),
    ("catalog compare", &["stoker catalog compare monday.backup tuesday.backup"]),
    ("cluster level", &["stoker cluster level", "stoker cluster level --hold"]),
    ("upgrade check", &["stoker upgrade check"]),
    ("node ls", &["stoker node ls"]),
    ("node quarantine", &["stoker node quarantine node-3"]),
    ("node rejoin", &["stoker node rejoin node-3"]),
    ("node evacuate", &["stoker node evacuate node-3"]),
    ("node remove", &["stoker node remove node-3", "stoker node remove node-3 --accept-loss"]),
    ("node can-stop", &["stoker node can-stop node-3"]),
    ("drive ls", &["stoker drive ls", "stoker drive ls node-3"]),
    ("drive add", &["stoker drive add node-3 /mnt/nvme4"]),
    ("drive remove", &["stoker drive remove node-3 /mnt/nvme4 --timeout 10m"]),
    ("drive replace", &["stoker drive replace node-3 /mnt/nvme4 /mnt/nvme5"]),
    ("drive cordon", &["stoker drive cordon node-3 /mnt/nvme4"]),
    ("drive uncordon", &["stoker drive uncordon node-3 /mnt/nvme4"]),
    ("risk", &["stoker risk", "stoker risk --lost"]),
    ("rebuild status", &["stoker rebuild status"]),
    ("slo", &["stoker slo"]),
    ("slo repaired", &["stoker slo repaired node-3:/mnt/nvme4"]),
    ("slo retry", &["stoker slo retry"]),
    ("slo reset", &["stoker slo reset"]),
    ("config show", &["stoker config show", "stoker config show --config /etc/stoker/stoker.toml"]),
    ("config export", &["stoker config export --dir /mnt/nvme0/stoker"]),
    ("config unset", &["stoker config unset lake --dir /mnt/nvme0/stoker"]),
    ("doctor", &["stoker doctor", "stoker doctor --kubernetes"]),
    ("gate", &["stoker gate --quick", "stoker gate --record"]),
    ("support-bundle", &["stoker support-bundle"]),
    ("ring init", &["stoker ring init --dir /mnt/nvme4"]),
    ("ring stat", &["stoker ring stat --dir /mnt/nvme4"]),
    ("ring verify", &["stoker ring verify --dir /mnt/nvme4"]),
    ("ring dump", &["stoker ring dump --dir /mnt/nvme4"]),
    (
        "plan io",
        &[
            "stoker plan io --gpus 64 --pattern files --sample-size 150KB",
            "stoker plan io --model lab --workers 8 --pattern prefetch",
        ],
    ),
    ("plan design", &["stoker plan design --nodes 32 --class two --report design.html"]),
    (
        "plan sim",
        &[
            "stoker plan sim --nodes 64 --lake-rate 5GB/s --strike rack",
            "stoker plan sim --days 30 --runs 100",
        ],
    ),
    ("plan gravity", &["stoker plan gravity --data-size 100TB --runs 10"]),
    ("plan kv", &["stoker plan kv --layers 80 --flash-size 60TB"]),
    ("plan slo", &["stoker plan slo --calibrate", "stoker plan slo --hardware own --drives 8"]),
    ("plan what-if", &["stoker plan what-if lose-rack double-gpus --live"]),
    ("plan calibrate", &["stoker plan calibrate --out calibration.json"]),
    ("plan ledger ls", &["stoker plan ledger ls"]),
    ("plan ledger show", &["stoker plan ledger show 3f2a"]),
    ("plan ledger record", &["stoker plan ledger record 3f2a utilization=0.91"]),
    ("plan ledger compare", &["stoker plan ledger compare"]),
    ("plan ledger export", &["stoker plan ledger export"]),
    ("plan ledger import", &["stoker plan ledger import ledger.jsonl"]),
    ("bench device", &["stoker bench device --dir /mnt/nvme4"]),
    ("bench ring", &["stoker bench ring --dir /mnt/nvme4"]),
    ("bench commit", &["stoker bench commit --dir /mnt/nvme4"]),
    ("bench read", &["stoker bench read --dir /mnt/nvme4"]),
    ("bench s3", &["stoker bench s3 --dir /mnt/nvme4"]),
    ("bench posix", &["stoker bench posix --dir /mnt/nvme4"]),
    ("bench catalog", &["stoker bench catalog --dir /mnt/nvme4"]),
    ("bench keys", &["stoker bench keys --dir /mnt/nvme4 --count 100000"]),
    ("bench ec", &["stoker bench ec", "stoker bench ec --schemes 14+4 --stripes 32 --json"]),
    ("bench qos", &["stoker bench qos --dir /mnt/nvme0 --data 16GiB"]),
    ("bench interference", &["stoker bench interference --dir /mnt/nvme4"]),
];

/// How the list of all verbs looks, without clap's own.
const TEMPLATE: &str =
    "{about-with-newline}\n{usage-heading} {usage}\n\n{before-help}Options:\n{options}{after-help}";

/// The program's arguments with everything that help says.
pub fn with_help(command: Command) -> Command {
    let verbs = grouped(&command);
    with_examples(command, "").before_help(verbs).help_template(TEMPLATE)
}

/// The verbs by groups; one that is in none comes last, rather than not at all.
fn grouped(command: &Command) -> String {
    let about = |verb: &Command| verb.get_about().map(ToString::to_string).unwrap_or_default();
    let shown: Vec<&Command> = command.get_subcommands().filter(|verb| !verb.is_hide_set()).collect();
    let width = shown.iter().map(|verb| verb.get_name().len()).max().unwrap_or(0);
    let line = |verb: &Command| format!("  {:width$}  {}\n", verb.get_name(), about(verb));
    let mut text = String::new();
    for (group, names) in GROUPS {
        text.push_str(&format!("{group}:\n"));
        let members = names.iter().filter_map(|name| shown.iter().find(|verb| verb.get_name() == *name));
        text.extend(members.map(|verb| line(verb)));
        text.push('\n');
    }
    let is_grouped = |verb: &&&Command| GROUPS.iter().any(|(_, names)| names.contains(&verb.get_name()));
    let rest: String = shown.iter().filter(|verb| !is_grouped(verb)).map(|verb| line(verb)).collect();
    if !rest.is_empty() {
        text.push_str(&format!("Other:\n{rest}\n"));
    }
    text.push_str("`stoker VERB --help` has its options and an example.\n");
    text
}

/// Puts its examples behind the help of each verb.
fn with_examples(command: Command, path: &str) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
    let mut command = command;
    for name in names {
        let path = if path.is_empty() { name.clone() } else { format!("{path} {name}") };
        command = command.mut_subcommand(name, |verb| with_examples(verb, &path));
    }
    let Some((_, examples)) = EXAMPLES.iter().find(|(verb, _)| *verb == path) else { return command };
    let title = if examples.len() == 1 { "Example" } else { "Examples" };
    let mut text = format!("{title}:\n  {}", examples.join("\n  "));
    if let Some(more) = command.get_after_help() {
        text.push_str(&format!("\n\n{more}"));
    }
    command.after_help(text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::command;

    /// Every verb that does something by itself, with its help.
    fn leaves(command: &Command, path: &str, into: &mut BTreeMap<String, String>) {
        for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help")
        {
            let path = if path.is_empty() {
                verb.get_name().to_owned()
            } else {
                format!("{path} {}", verb.get_name())
            };
            if !verb.is_subcommand_required_set() && !verb.is_arg_required_else_help_set()
                || !verb.has_subcommands()
            {
                into.insert(path.clone(), verb.clone().render_long_help().to_string());
            }
            leaves(verb, &path, into);
        }
    }

    /// Where every help text is kept.
    const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/help.txt");

    fn write_all(command: &Command, path: &str, into: &mut String) {
        // What is set in the environment of a test is nobody's help.
        let mut shown = command.clone().term_width(120).mut_args(|arg| arg.hide_env_values(true));
        into.push_str(&format!("## {path}\n\n{}\n", shown.render_long_help()));
        for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help")
        {
            write_all(verb, &format!("{path} {}", verb.get_name()), into);
        }
    }

    /// A change of words is seen where it is reviewed. `STOKER_BLESS=1` writes the file anew.
    #[test]
    fn every_help_text_is_the_one_that_was_reviewed() {
        let mut command = command();
        command.build();
        let mut all = String::new();
        write_all(&command, "stoker", &mut all);
        let all: String = all.lines().map(|line| format!("{}\n", line.trim_end())).collect();
        if std::env::var_os("STOKER_BLESS").is_some_and(|value| value == "1") {
            std::fs::create_dir_all(std::path::Path::new(GOLDEN).parent().unwrap()).unwrap();
            std::fs::write(GOLDEN, &all).unwrap();
        }
        let kept = std::fs::read_to_string(GOLDEN).expect("STOKER_BLESS=1 writes it");
        let differs = all.lines().zip(kept.lines()).find(|(now, kept)| now != kept);
        assert!(all == kept, "a help text changed (STOKER_BLESS=1 takes it): {differs:?}");
    }

    #[test]
    fn every_verb_has_an_example_that_the_program_takes() {
        let mut all = BTreeMap::new();
        leaves(&command(), "", &mut all);
        assert!(all.len() > 70, "{}", all.len());
        for (path, help) in &all {
            let (_, examples) = EXAMPLES
                .iter()
                .find(|(verb, _)| verb == path)
                .unwrap_or_else(|| panic!("`stoker {path}` has no example in help.rs"));
            for example in *examples {
                assert!(help.contains(example), "`stoker {path} --help` does not show: {example}\n{help}");
                // What comes before it feeds it, or is a variable for it.
                let line = example.rsplit(" | ").next().unwrap();
                let words = line.split(' ').skip_while(|word| word.contains('='));
                let parsed = command().try_get_matches_from(words);
                assert!(parsed.is_ok(), "{example}: {}", parsed.unwrap_err());
                assert!(line.contains(&format!("stoker {path}")), "{example} is no example of {path}");
            }
        }
        for (path, _) in EXAMPLES {
            assert!(all.contains_key(*path), "there is no `stoker {path}`");
        }
    }

    #[test]
    fn every_verb_is_in_one_group() {
        let command = command();
        let help = command.clone().render_help().to_string();
        assert!(!help.contains("Other:"), "{help}");
        for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help")
        {
            let name = verb.get_name();
            let groups = GROUPS.iter().filter(|(_, names)| names.contains(&name)).count();
            assert_eq!(groups, 1, "{name}");
            assert!(help.contains(&format!("\n  {name} ")), "{name} is not in the help\n{help}");
        }
        let named: usize = GROUPS.iter().map(|(_, names)| names.len()).sum();
        let there =
            command.get_subcommands().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help").count();
        assert_eq!(named, there, "a group names a verb that is not there");
        assert!(help.contains("Exit codes: 0 done"), "{help}");
    }
}
