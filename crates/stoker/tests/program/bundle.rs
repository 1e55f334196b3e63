//! `stoker support-bundle`: everything that helps, and no secret in any byte of it.

use std::fs;
use std::process::Command;

use serde_json::Value;

use super::rig::{Node, Rig, ran, tree};

/// Secrets in every place where one could be.
const PLANTED: [&str; 6] = [
    "planted-secret-of-the-environment",
    "planted-token-of-the-environment",
    "planted-password-of-the-database",
    "planted-secret-of-the-lake",
    "planted-value-in-the-log",
    "planted-password-in-a-variable",
];

fn contains(bytes: &[u8], secret: &[u8]) -> bool {
    bytes.windows(secret.len()).any(|window| window == secret)
}

#[test]
fn a_bundle_tells_much_and_no_secret() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let dir = folder.path().join("node");
    let rig = Rig { node: Node::up(&dir), folder };
    let made = rig.succeed("key create --json").json();
    let (public, secret) =
        (made["access_key"].as_str().unwrap().to_owned(), made["secret_key"].as_str().unwrap().to_owned());
    rig.write(
        "stoker.toml",
        format!(
            "[catalog]\nurl = \"postgresql://stoker:{}@db.example/stoker\"\n[lake]\nurl = \"s3://b/p?secret={}\"\n",
            PLANTED[2], PLANTED[3]
        )
        .as_bytes(),
    );
    rig.write("node.log", format!("2026 WARN secret_key={} and {secret} again\n", PLANTED[4]).as_bytes());
    let args = "support-bundle --json -o bundle.tar.gz --config stoker.toml --log node.log";
    let mut command = rig.command(&args.split(' ').collect::<Vec<_>>());
    command.env("AWS_SECRET_ACCESS_KEY", PLANTED[0]).env("MY_TOKEN", PLANTED[1]);
    command.env("DATABASE_URL", format!("postgresql://u:{}@h/d", PLANTED[5]));
    let told = ran(&mut command);
    assert_eq!(told.code, 0, "{}{}", told.text(), told.err);
    assert_eq!(told.json()["trouble"].as_array().unwrap().len(), 0, "{}", told.text());

    let unpacked = rig.path("unpacked");
    fs::create_dir(&unpacked).unwrap();
    let tar = ran(Command::new("tar").arg("-xzf").arg(rig.path("bundle.tar.gz")).arg("-C").arg(&unpacked));
    assert_eq!(tar.code, 0, "{}", tar.err);
    let files = tree(&unpacked);
    let mut secrets: Vec<String> = PLANTED.iter().map(|secret| (*secret).to_owned()).collect();
    secrets.push(secret);
    for name in ["token", "view-token"] {
        secrets.push(fs::read_to_string(dir.join(name)).unwrap().trim().to_owned());
    }
    let credentials = fs::read_to_string(dir.join("credentials")).unwrap();
    secrets.extend(
        credentials
            .lines()
            .filter_map(|line| line.strip_prefix("aws_secret_access_key = ").map(str::to_owned)),
    );
    secrets.push(rig.node.ready["join_token"].as_str().unwrap().to_owned());
    assert_eq!(secrets.len(), 11);
    let whole = fs::read(rig.path("bundle.tar.gz")).unwrap();
    for secret in &secrets {
        assert!(secret.len() > 10, "{secret}");
        assert!(!contains(&whole, secret.as_bytes()), "the archive has {secret}");
        for (name, bytes) in &files {
            assert!(!contains(bytes, secret.as_bytes()), "{} has {secret}", name.display());
        }
    }
    let text = |name: &str| {
        let found = files.iter().find(|(path, _)| path.ends_with(name));
        String::from_utf8(found.unwrap_or_else(|| panic!("no {name}")).1.clone()).unwrap()
    };
    let status: Value = serde_json::from_str(&text("status.json")).unwrap();
    assert_eq!(status["node"], rig.node.ready["id"]);
    assert!(text("keys.json").contains(&public));
    assert!(text("metrics.txt").contains("stoker_ring_"));
    assert!(text("config.toml").contains("postgresql://stoker:[hidden]@db.example/stoker"));
    assert!(text("log.txt").contains("WARN"));
    assert!(text("stoker.json").contains("AWS_SECRET_ACCESS_KEY"), "names of variables are told");
    assert!(text("catalog.json").contains("seq") && text("files.txt").contains("catalog.redb"));
    assert!(text("machine/version.txt").contains("Linux") && !text("drives.txt").is_empty());

    assert!(text("events.jsonl").contains("\"kind\""), "{}", text("events.jsonl"));
    assert!(text("doctor.txt").contains("node ") && text("doctor.txt").contains("drive"));
    assert!(text("slo.json").is_empty() || text("slo.json").contains("leader"));

    // It is not written over, and a node that does not run is one of the things to tell.
    rig.refuse("support-bundle -o bundle.tar.gz", "is there already", "choose another name");
    drop(rig.node);
    let mut command = super::rig::binary();
    command.args(["support-bundle", "--json", "-o"]).arg(rig.folder.path().join("dark.tar.gz"));
    let dark = ran(command.env("STOKER_DIR", &dir));
    assert_eq!(dark.code, 0, "{}", dark.err);
    assert!(dark.text().contains("the node was not asked"), "{}", dark.text());
}
