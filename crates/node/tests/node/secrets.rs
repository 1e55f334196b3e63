//! What lies in a node's directory: files that only their owner can read, and no secret of an access key in plain text.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use stoker_node::{AuthorityChange, ClusterOptions, Labels, Member, Node, authority_rotate};
use stoker_store::{Access, AccessKey, Store};

use crate::harness::{Home, lazy};

const SECRET: &str = "wJalrXUtnFEMIbPxRfiCYEXAMPLEKEY0";

fn access_key(name: &str) -> AccessKey {
    AccessKey {
        access_key: name.into(),
        secret_key: SECRET.into(),
        access: Access { read_only: false, prefixes: Vec::new(), uid: 0, gid: 0 },
        created_ms: 1,
    }
}

async fn member(home: &Home) -> Arc<Member> {
    let cluster = ClusterOptions {
        node: home.options(),
        name: "alone".into(),
        listen: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0))],
        gossip: Vec::new(),
        labels: Labels::default(),
        weight: 1,
        plaintext: false,
        grace: Duration::from_secs(30),
        promote: None,
    };
    Member::start(cluster).await.unwrap()
}

/// Every file and folder below a folder.
fn below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![dir.to_path_buf()];
    assert!(dir.is_dir());
    while let Some(dir) = left.pop() {
        // A node that runs takes folders and files away.
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                left.push(path.clone());
            }
            found.push(path);
        }
    }
    found
}

fn files_with_secret(dir: &Path) -> Vec<PathBuf> {
    let holds = |path: &PathBuf| {
        let bytes = std::fs::read(path).unwrap_or_default();
        bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes())
    };
    below(dir).into_iter().filter(|path| path.is_file()).filter(holds).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_file_of_a_member_holds_a_secret_or_is_open_to_others() {
    let home = Home::new(lazy());
    let options = home.options();
    let (dir, drive) = (options.dir.clone(), options.drives[0].path.clone());
    let running = member(&home).await;
    running.node().access_key_put(access_key("AKIAONE")).await.unwrap();
    assert_eq!(running.node().access_key("AKIAONE").await.unwrap().unwrap().secret_key, SECRET);
    assert_eq!(running.node().access_keys().await.unwrap()[0].secret_key, SECRET);
    running.stop().await;
    drop(running);
    assert_eq!(files_with_secret(&dir), Vec::<PathBuf>::new());
    let open = [below(&dir), below(&drive)]
        .concat()
        .into_iter()
        .filter(|path| std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o077 != 0);
    assert_eq!(open.collect::<Vec<_>>(), Vec::<PathBuf>::new());
    for folder in [&dir, &drive] {
        assert_eq!(
            std::fs::metadata(folder).unwrap().permissions().mode() & 0o077,
            0,
            "{}",
            folder.display()
        );
    }
}

/// Keys outlive a change of the secret that wrapped them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_keys_work_on_and_are_wrapped_at_the_next_start() {
    let home = Home::new(lazy());
    let dir = home.options().dir;
    let alone = Node::open(home.options()).await.unwrap();
    alone.access_key_put(access_key("AKIAOLD")).await.unwrap();
    alone.stop().await;
    drop(alone);
    assert!(files_with_secret(&dir).is_empty(), "a node that is alone has a key of its own");

    let alone = Node::open(home.options()).await.unwrap();
    assert_eq!(alone.access_key("AKIAOLD").await.unwrap().unwrap().secret_key, SECRET);
    alone.stop().await;
    drop(alone);

    // The cluster's secret is replaced, and what it wrapped is still there.
    let authority = dir.parent().unwrap().join("authority");
    assert_eq!(authority_rotate(&dir, &authority).unwrap(), AuthorityChange::Made);
    for _ in 0..2 {
        let alone = Node::open(home.options()).await.unwrap();
        assert_eq!(alone.access_key("AKIAOLD").await.unwrap().unwrap().secret_key, SECRET);
        alone.stop().await;
        drop(alone);
    }
}
